"""What a client's health and a deployment's own metrics say of a run: the metrics that no table of requests has."""

import math
from collections.abc import Iterator, Mapping, Sequence

from cluster.sim.run_table import OUTCOMES, RunTable
from loadtests.results.client_health import ClientHealth
from loadtests.results.lost_time import lost_metrics
from loadtests.results.metrics import MetricValue
from loadtests.watch.gateway_page import MetricsPage
from policies.capacity.bounds import Bound, what_binds

STATED_ERRORS = ("HTTP 429", "HTTP 503 no_replica_available", "HTTP 504 deadline_exceeded")
"""What a client may be told in an overload."""
CANCEL_SECONDS = "spillway_cancel_seconds"
BOUND_SECONDS = "spillway_request_bound_seconds_total"


def of_client(table: RunTable, health: ClientHealth) -> dict[str, MetricValue]:
    """What the client knows of itself.

    Args:
        table: A row for each request.
        health: How it fared.
    """
    unstated = sum(count for error, count in health.errors.items() if not error.startswith(STATED_ERRORS))
    return {
        "send_lag_p99_s": MetricValue(value=health.send_lag_p99_s, samples=health.sent),
        "wrong_lengths": MetricValue(value=float(health.wrong_lengths), samples=len(table)),
        "unstated_errors": MetricValue(value=float(unstated), samples=len(table)),
    }


def of_gateways(
    table: RunTable, wrong_lengths: int, before: MetricsPage, after: MetricsPage, slowed_ids: Sequence[str]
) -> dict[str, MetricValue]:
    """What gateways and replicas say.

    Args:
        table: A row for each request.
        wrong_lengths: Answers with another number of tokens than was asked for.
        before: Their metrics before the run.
        after: Their metrics when they were at rest again.
        slowed_ids: Replicas that the study slows down.
    """
    grown = after.since(before)
    values = dict(_counted(table, wrong_lengths, grown, slowed_ids))
    values["left_open_requests"] = after.sum("spillway_requests_open")
    values["left_kv_fraction"] = after.sum("spillway_replica_kv_cache_usage")
    counted = {name: MetricValue(value=value, samples=len(table)) for name, value in values.items()}
    return counted | lost_metrics(_bound_seconds(grown), len(table))


def _counted(
    table: RunTable, wrong_lengths: int, grown: MetricsPage, slowed_ids: Sequence[str]
) -> Iterator[tuple[str, float]]:
    completed = int((table.outcome == OUTCOMES.index("completed")).sum())
    miscounted = abs(int(grown.sum("spillway_requests_total", outcome="completed")) - completed)
    yield "unanswered_requests", len(table) - completed + wrong_lengths + miscounted
    yield "reconnections", grown.sum("spillway_reconnections_total")
    yield "hedges", grown.sum("spillway_attempts_total", hedge="true")
    slowed = (grown.sum("spillway_attempts_total", hedge="true", replica=each) for each in slowed_ids)
    yield "hedges_to_slowed", sum(slowed)
    yield "hedges_won", grown.sum("spillway_hedge_races_total", hedge_won="true")
    yield "hedges_lost", grown.sum("spillway_hedge_races_total", hedge_won="false")
    prompt_tokens = max(1, int(table.prompt_tokens.sum()))
    yield "superseded_prompt_fraction", grown.sum("spillway_superseded_prompt_tokens_total") / prompt_tokens
    yield "recomputed_prompt_fraction", grown.sum("spillway_replica_prompt_tokens_total") / prompt_tokens - 1.0
    cancels = grown.sum(f"{CANCEL_SECONDS}_count")
    yield "cancelled_attempts", cancels
    yield "cancel_mean_s", grown.sum(f"{CANCEL_SECONDS}_sum") / cancels if cancels else math.nan
    yield "cancel_max_s", _highest(grown.by("le", f"{CANCEL_SECONDS}_bucket"))
    yield "untaken_attempts", grown.sum("spillway_attempts_total") - grown.sum("spillway_replica_attempts_total")
    yield "misplaced_attempts", _misplaced(grown)


def _bound_seconds(grown: MetricsPage) -> dict[Bound, float]:
    """Where the time of requests went, by what gateways have counted."""
    return {Bound(name): seconds for name, seconds in grown.by("bound", BOUND_SECONDS).items()}


def binding(before: MetricsPage, after: MetricsPage) -> list[str]:
    """What a run's requests lose time to, in words; nothing where gateways have counted none of them."""
    grown = _bound_seconds(after.since(before))
    spent_s = {bound: max(0.0, each_s) for bound, each_s in grown.items()}  # a gateway that starts anew counts from 0
    return [str(what_binds(spent_s))] if any(spent_s.values()) else []


def _misplaced(page: MetricsPage) -> int:
    """Attempts that a replica took and was not sent, and those that none took though nobody stopped them.

    One that is stopped at once, because the other one's first token has just come, may never get to its replica.
    """
    sent, taken = (page.by("replica", f"spillway_{who}attempts_total") for who in ("", "replica_"))
    missing = [sent.get(each, 0.0) - taken.get(each, 0.0) for each in sent.keys() | taken.keys()]
    num_unsent = -sum(each for each in missing if each < 0)
    num_lost = sum(each for each in missing if each > 0) - page.sum(f"{CANCEL_SECONDS}_count")
    return int(num_unsent + max(0.0, num_lost))


def _highest(buckets: Mapping[str, float]) -> float:
    """The bound of the first bucket of a histogram that has everything in it; NaN where there is nothing."""
    everything = max(buckets.values(), default=0.0)
    return min(float(bound) for bound, count in buckets.items() if count == everything) if everything else math.nan
