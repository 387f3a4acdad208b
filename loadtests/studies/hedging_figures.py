"""What second attempts come to beside runs without: figures, their table, and what they are held against."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from cluster.sim.run_table import OUTCOMES
from loadtests.drivers.http_driver import HttpRun
from loadtests.watch.gateway_page import MetricsPage
from routing.request.effects import OutcomeKind

WITHOUT, WITH = "no_hedge", "slowdown"
BUDGET_FRACTION = 0.1
MOST_P99_RATIO = 0.8
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


def quantile_s(cells: Sequence[HedgingCell], policy: str, quantile: float) -> float:
    """Of the times to first token of all of a policy's runs together."""
    pooled = [each for cell in cells if cell.policy == policy for each in cell.ttft_s]
    return float(np.quantile(pooled, quantile)) if pooled else math.nan


def ratios(cells: Sequence[HedgingCell]) -> list[float]:
    """The p99 with second attempts over that without, plan by plan."""
    plans = [[cell for cell in cells if cell.seed == seed] for seed in sorted({cell.seed for cell in cells})]
    return [quantile_s(plan, WITH, 0.99) / quantile_s(plan, WITHOUT, 0.99) for plan in plans]


def total(cells: Sequence[HedgingCell], policy: str, name: str) -> float:
    """The sum of a field over a policy's runs."""
    return float(sum(getattr(cell, name) for cell in cells if cell.policy == policy))


def table_of(cells: Sequence[HedgingCell], title: str) -> Table:
    """A row for each figure, a column for each policy, all plans together."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    for policy in (WITHOUT, WITH):
        table.add_column(policy, justify="right")
    for name, text in _ROWS:
        table.add_row(name, *(text(cells, policy) for policy in (WITHOUT, WITH)))
    return table


def _ms(value_s: float) -> str:
    return "-" if math.isnan(value_s) else f"{1000 * value_s:,.0f} ms"


def _mean_cancel_s(cells: Sequence[HedgingCell], policy: str) -> float:
    own = [cell for cell in cells if cell.policy == policy and cell.cancels]
    cancels = sum(cell.cancels for cell in own)
    return sum(cell.cancels * cell.cancel_mean_s for cell in own) / cancels if cancels else math.nan


def _most_cancel_s(cells: Sequence[HedgingCell], policy: str) -> float:
    return max((cell.cancel_most_s for cell in cells if cell.policy == policy and cell.cancels), default=math.nan)


def _per_request(cells: Sequence[HedgingCell], policy: str) -> float:
    return total(cells, policy, "hedges") / max(1.0, total(cells, policy, "requests"))


def _mean(cells: Sequence[HedgingCell], policy: str, name: str) -> float:
    return total(cells, policy, name) / max(1, sum(cell.policy == policy for cell in cells))


_ROWS: Sequence[tuple[str, Callable[[Sequence[HedgingCell], str], str]]] = (
    ("requests", lambda cells, policy: f"{total(cells, policy, 'requests'):,.0f}"),
    ("TTFT p50", lambda cells, policy: _ms(quantile_s(cells, policy, 0.5))),
    ("TTFT p99", lambda cells, policy: _ms(quantile_s(cells, policy, 0.99))),
    ("second attempts per request", lambda cells, policy: f"{_per_request(cells, policy):.3f}"),
    ("  of them to the slow replica", lambda cells, policy: f"{total(cells, policy, 'hedges_to_slow'):.0f}"),
    ("  the second attempt won", lambda cells, policy: f"{total(cells, policy, 'hedges_won'):.0f}"),
    ("  the first attempt won", lambda cells, policy: f"{total(cells, policy, 'firsts_won'):.0f}"),
    ("prompt tokens of attempts that were beaten", lambda cells, policy: f"{_mean(cells, policy, 'duplicated'):.3f}"),
    ("  computed to a first token all the same", lambda cells, policy: f"{_mean(cells, policy, 'finished_twice'):.3f}"),
    ("attempts that were stopped", lambda cells, policy: f"{total(cells, policy, 'cancels'):.0f}"),
    ("  before their replicas took them", lambda cells, policy: f"{total(cells, policy, 'untaken'):.0f}"),
    ("  until they ended, mean", lambda cells, policy: _ms(_mean_cancel_s(cells, policy))),
    ("  the slowest, at most", lambda cells, policy: _ms(_most_cancel_s(cells, policy))),
)


def verdicts(cells: Sequence[HedgingCell]) -> tuple[list[str], bool]:
    """A line for each mark, and whether all are met."""
    ratio = quantile_s(cells, WITH, 0.99) / quantile_s(cells, WITHOUT, 0.99)
    by_plan = ", ".join(f"{each:.2f}" for each in ratios(cells))
    hedges, twice = total(cells, WITH, "hedges"), _mean(cells, WITH, "duplicated")
    checks = [
        (
            f"TTFT p99, {WITH} over {WITHOUT} (by plan: {by_plan})",
            ratio,
            f"<= {MOST_P99_RATIO:g}",
            ratio <= MOST_P99_RATIO,
        ),
        ("second attempts", hedges, ">= 1", hedges >= 1),
        ("prompt tokens of attempts that were beaten", twice, f"<= {BUDGET_FRACTION:g}", twice <= BUDGET_FRACTION),
    ]
    without = total(cells, WITHOUT, "hedges")
    checks.append((f"second attempts, {WITHOUT}", without, "<= 0", without == 0))
    for name, what in (
        ("unanswered", "requests not answered exactly once and completely"),
        ("astray", "attempts that did not run where they were sent"),
        ("left_open", "requests left open"),
        ("kv_left", "KV blocks left held, as a fraction"),
    ):
        value = total(cells, WITHOUT, name) + total(cells, WITH, name)
        checks.append((what, value, "<= 0", value == 0))
    lines = [f"{name}: {value:.3g}, mark {limit}: {'met' if ok else 'MISSED'}" for name, value, limit, ok in checks]
    return lines, all(ok for *_, ok in checks)
