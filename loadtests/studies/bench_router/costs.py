"""What routers took, and the table of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table

from loadtests.studies.bench_router.peers import DIRECT

MOST_ADDED_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCosts:
    """What one router took.

    Args:
        system: Its row.
        unary_us: Processor microseconds of a whole answer, 16 at a time.
        stream_us: Of a stream of 16 tokens.
        at_rate_us: Of a whole answer, by requests a second.
        p99_ms: 99th percentile of the time to an answer, by requests a second.
        num_failed: Requests without an answer, in all.
    """

    system: str
    unary_us: float
    stream_us: float
    at_rate_us: dict[int, float] = field(default_factory=dict)
    p99_ms: dict[int, float] = field(default_factory=dict)
    num_failed: int = 0


def highest_rate(costs: RouterCosts, direct: RouterCosts) -> int:
    """The highest rate at which the 99th percentile is at most 50 ms above that of workers asked directly; 0: none."""
    kept = 0
    for rate in sorted(costs.p99_ms):
        base_ms = direct.p99_ms.get(rate, min(direct.p99_ms.values()))
        if costs.p99_ms[rate] - base_ms > 1e3 * MOST_ADDED_S:
            break
        kept = rate
    return kept


def table(rows: Sequence[RouterCosts], rates: Sequence[int]) -> Table:
    """One row for each router."""
    direct = next((row for row in rows if row.system == DIRECT), rows[0])
    drawn = Table(
        title="CPU in microseconds of a core for each request, of the router's own processes", title_justify="left"
    )
    drawn.add_column("router")
    columns = [
        "unary",
        "16 tokens streamed",
        *(f"at {rate}/s" for rate in rates),
        *(f"p99 at {rate}/s" for rate in rates),
    ]
    for column in (*columns, "highest rate", "failed"):
        drawn.add_column(column, justify="right")
    for row in rows:
        at_rates = [f"{row.at_rate_us[rate]:,.0f}" if rate in row.at_rate_us else "-" for rate in rates]
        p99s = [f"{row.p99_ms[rate]:,.1f} ms" if rate in row.p99_ms else "-" for rate in rates]
        best = f"{highest_rate(row, direct):,}/s"
        cells = [f"{row.unary_us:,.0f}", f"{row.stream_us:,.0f}", *at_rates, *p99s, best, f"{row.num_failed}"]
        drawn.add_row(row.system, *cells)
    return drawn
