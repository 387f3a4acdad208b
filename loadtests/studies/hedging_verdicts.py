"""What hedged runs come to beside runs without: their table, and what they are held against."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table

from loadtests.studies.hedging_metrics import BUDGET_FRACTION, WITH, WITHOUT, HedgingCell

MOST_P99_RATIO = 0.8


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
    """A row for each metric, a column for each policy, all plans together."""
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
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
    """A line for each check, and whether all are met."""
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
    lines = [f"{name}: {value:.3g}, check {limit}: {'met' if ok else 'MISSED'}" for name, value, limit, ok in checks]
    return lines, all(ok for *_, ok in checks)
