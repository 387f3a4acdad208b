"""What a run against a deployment came to, for a terminal: metrics by class, by lane, checks, health and verdict."""

import math
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.drivers.lane_stats import QUANTILES, TITLES, LaneStats, lane_stats
from loadtests.results.client_health import ClientHealth
from loadtests.results.metrics import ALL, METRICS, MetricValue, min_samples_of
from loadtests.results.run_folder import SavedRun
from loadtests.results.run_record import RunRecord
from loadtests.simulation.result_table import STYLES, TOO_FEW, number

SHOWN = {
    "offered_requests": "offered",
    "ok_fraction": "ok",
    "goodput_fraction": "goodput",
    "refused_fraction": "refused",
    "failed_fraction": "failed",
    "ttft_p50_s": "TTFT p50",
    "ttft_p99_s": "p99",
    "tpot_p50_s": "TPOT p50",
    "tpot_p99_s": "p99",
    "e2e_p50_s": "E2E p50",
    "throughput_tokens_per_s": "tokens/s",
}
"""Metrics in the table, by their names in ``METRICS``, with headings."""


def show(saved: SavedRun, console: Console) -> None:
    """Prints a run.

    Args:
        saved: The run.
        console: Where; what makes the run invalid goes to its standard output, too, so that a log has both.
    """
    record = saved.record
    console.print(_metrics(record))
    lanes = lane_stats(saved.table, saved.details) if saved.details else []
    if any(line.lane for line in lanes):
        console.print(_lanes(lanes))
    for line in _lines(record):
        console.print(line)


def _metrics(record: RunRecord) -> Table:
    title = f"{record.scenario} over {record.driver}, {record.rate_fraction:.3g} of its rate, seed {record.seed}"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("class", no_wrap=True)
    for heading in SHOWN.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for group in (*record.traffic_classes, ALL):
        metrics = record.metrics.get(group, {})
        table.add_row(Text(group), *(_cell(name, metrics) for name in SHOWN))
    return table


def _cell(name: str, metrics: Mapping[str, MetricValue]) -> str:
    metric_value = metrics.get(name)
    if metric_value is None:
        return "-"
    if metric_value.samples < METRICS[name].min_samples:
        return TOO_FEW
    if name.endswith("_fraction"):
        return f"{metric_value.value:.1%}"
    return f"{1e3 * metric_value.value:,.1f} ms" if METRICS[name].quantile is not None else number(metric_value.value)


def _lanes(lines: list[LaneStats]) -> Table:
    table = Table(title="by lane, every request of the run", title_justify="left")
    for name, title in TITLES.items():
        table.add_column(title, justify="left" if name in ("lane", "traffic_class") else "right")
    for line in lines:
        table.add_row(*(Text(_lane_cell(name, value, line.completed)) for name, value in line._asdict().items()))
    return table


def _lane_cell(name: str, value: str | float, num_completed: int) -> str:
    if isinstance(value, str):
        return value or "-"
    if math.isnan(value):
        return "-"
    if name in QUANTILES:
        return f"{value:,.1f}" if num_completed >= min_samples_of(QUANTILES[name]) else TOO_FEW
    return f"{value:,}"


def _lines(record: RunRecord) -> Iterator[Text]:
    for check in record.checks:
        value = "" if check.value is None else f" (it was {number(check.value)})"
        yield Text(f"{check.text}: {check.verdict}{value}{': ' + check.problem if check.problem else ''}")
    if record.health is not None:
        yield Text(health_line(record.health))
    yield from (Text(note) for note in record.notes)
    for problem in record.problems:
        yield Text(f"INVALID: {problem}", style=STYLES["INVALID"])
    yield Text(f"{record.scenario}: {record.verdict}", style=STYLES[record.verdict])


def health_line(health: ClientHealth) -> str:
    """The client's health in a line."""
    return (
        f"client: {health.sent:,} sent, p99 {1e3 * health.send_lag_p99_s:.1f} ms late, {health.cpu_fraction:.0%} of a "
        f"core, {health.achieved_fraction:.1%} of the planned rate, {health.client_dropped:,} dropped"
    )
