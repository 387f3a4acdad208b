"""What second attempts come to beside runs without: metrics, their table, and what they are held against."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.sim.run_table import OUTCOMES
from loadtests.drivers.http_driver import HttpRun
from loadtests.watch.gateway_page import MetricsPage
from routing.request.effects import OutcomeKind

WITHOUT, WITH = "no_hedge", "slowdown"
BUDGET_FRACTION = 0.1
CANCEL_SECONDS = "spillway_cancel_seconds"
REPLICA_COUNTERS = ("spillway_replica_attempts_total", "spillway_replica_prompt_tokens_total")
CALM_LOOKS = 6
"""Half a second apart; replicas report every half a second, and it takes them as long again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgingCell:
    """One run.

    Args:
        policy: Which hedged.
        seed: Of the plan and of the times at which the replica was slow.
        ttft_s: Times to first token of the requests that came when the policy had learned, from the scheduled time.
        requests: Sent.
        unanswered: Requests that were not answered once, with all their tokens.
        hedges: Second attempts.
        hedges_to_slow: How many of them went to the replica that is slow now and then.
        hedges_won: Second attempts that were quicker.
        firsts_won: Hedged requests whose first attempt was quicker.
        duplicated: Prompt tokens of attempts that were beaten, over those of requests.
        finished_twice: Prompt tokens that engines have computed to a first token beyond those of requests, over these.
        cancels: Attempts that were stopped.
        cancel_mean_s: From asking for their end to their end; NaN without any.
        cancel_most_s: Upper bound of the slowest, to a bucket of the metric.
        astray: Attempts that did not run where they were sent; see :func:`num_astray`.
        untaken: Attempts that were stopped before their replicas took them.
        left_open: Requests that the gateway held in the end.
        kv_left: Fraction of KV blocks that was held in the end, the sum over replicas.
        episodes: How often the replica was slow.
        foreign_fraction: Share of all cores' time that other work took meanwhile.
    """

    policy: str
    seed: int
    ttft_s: Sequence[float]
    requests: int
    unanswered: int
    hedges: int
    hedges_to_slow: int
    hedges_won: int
    firsts_won: int
    duplicated: float
    finished_twice: float
    cancels: int
    cancel_mean_s: float
    cancel_most_s: float
    astray: int
    untaken: int
    left_open: int
    kv_left: float
    episodes: int
    foreign_fraction: float


def cell_of(
    policy: str, seed: int, run: HttpRun, page: MetricsPage, *, slow_id: str, from_s: float, **others: Any
) -> HedgingCell:
    """What a run comes to.

    Args:
        policy: Which hedged.
        seed: Of the plan.
        run: What the client saw.
        page: By how much the gateway's and the replicas' counters have grown meanwhile.
        slow_id: The replica that is slow now and then.
        from_s: Requests that came before are not measured.
        others: Fields that are known already.
    """
    table = run.table
    completed = table.outcome == OUTCOMES.index(OutcomeKind.COMPLETED.value)
    ttft_s = (table.first_token_s - table.scheduled_s)[completed & (table.scheduled_s >= from_s)]
    counted = page.sum("spillway_requests_total", outcome="completed")
    cancels = page.sum(f"{CANCEL_SECONDS}_count")
    prompt_tokens = max(1, int(table.prompt_tokens.sum()))
    return HedgingCell(
        policy=policy,
        seed=seed,
        ttft_s=[float(each) for each in ttft_s],
        requests=len(table),
        unanswered=int((~completed).sum()) + run.health.wrong_lengths + abs(int(counted) - int(completed.sum())),
        hedges=int(page.sum("spillway_attempts_total", hedge="true")),
        hedges_to_slow=int(page.sum("spillway_attempts_total", hedge="true", replica=slow_id)),
        hedges_won=int(page.sum("spillway_hedge_races_total", hedge_won="true")),
        firsts_won=int(page.sum("spillway_hedge_races_total", hedge_won="false")),
        duplicated=page.sum("spillway_superseded_prompt_tokens_total") / prompt_tokens,
        finished_twice=page.sum("spillway_replica_prompt_tokens_total") / prompt_tokens - 1.0,
        cancels=int(cancels),
        cancel_mean_s=page.sum(f"{CANCEL_SECONDS}_sum") / cancels if cancels else math.nan,
        cancel_most_s=_highest(page.by("le", f"{CANCEL_SECONDS}_bucket")),
        astray=num_astray(page),
        untaken=int(page.sum("spillway_attempts_total") - page.sum("spillway_replica_attempts_total")),
        **others,
    )


def num_astray(page: MetricsPage) -> int:
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


def is_at_rest(page: MetricsPage) -> bool:
    """Nobody waits, and no replica holds any KV blocks."""
    return page.sum("spillway_requests_open") == 0 and page.sum("spillway_replica_kv_cache_usage") == 0


class Calm:
    """Whether a deployment is at rest, and has been for so many looks that its replicas' last reports are in."""

    def __init__(self) -> None:
        self._counted: tuple[float, ...] = ()
        self._num_looks = 0

    def __call__(self, page: MetricsPage) -> bool:
        counted = tuple(page.sum(name) for name in REPLICA_COUNTERS)
        is_calm = is_at_rest(page) and counted == self._counted
        self._num_looks = self._num_looks + 1 if is_calm else 0
        self._counted = counted
        return self._num_looks >= CALM_LOOKS
