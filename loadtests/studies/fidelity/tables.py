"""The comparison for people: tables for a terminal, and the same as Markdown."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from loadtests.studies.fidelity.pairs import SHOWN, Pair, value
from loadtests.studies.fidelity.rows import FidelityRow, Ranking, Summary

TAU_GOAL = 0.8
RESULTS = ("variant", "load", "metric", "measured (range)", "simulated", "error (range)", "goal", "verdict")
SUMMARY = ("part", "metric", "median |error|", "worst", "bias", "goal", "within it")
RANKING = ("metric", "measured, best first", "simulated, best first", "Kendall's tau", "clear pairs in order")
VALIDITY = ("part", "variant", "load", "round", "requests", "send lag p99", "client CPU", "other work", "verdict")
RIGHT_ALIGNED = {"load", "measured (range)", "simulated", "error (range)", "goal", "median |error|", "worst", "bias"}

Cells = tuple[str, ...]


def result_cells(rows: Iterable[FidelityRow]) -> list[Cells]:
    """A line for each row, under ``RESULTS``."""
    return [
        (
            row.variant,
            f"{row.load:g}",
            SHOWN[row.metric].label,
            f"{_value(row.metric, row.measured)} ({_span(row.metric, row.measured_range)}) {SHOWN[row.metric].unit}",
            _value(row.metric, row.simulated),
            f"{row.error:+.0%} ({row.error_range[0]:+.0%} to {row.error_range[1]:+.0%})",
            "" if row.goal is None else f"{row.goal:.0%}",
            row.verdict,
        )
        for row in rows
    ]


def summary_cells(summaries: Iterable[Summary]) -> list[Cells]:
    """A line for each summary, under ``SUMMARY``."""
    return [
        (
            each.part,
            SHOWN[each.metric].label,
            f"{each.median:.0%}",
            f"{each.worst:.0%}",
            f"{each.bias:+.0%}",
            "" if each.goal is None else f"{each.goal:.0%}",
            "" if each.goal is None else f"{each.met} of {each.rows}",
        )
        for each in summaries
    ]


def ranking_cells(rankings: Iterable[Ranking]) -> list[Cells]:
    """A line for each ranking, under ``RANKING``."""
    return [
        (
            SHOWN[each.metric].label,
            _order(each.metric, each.measured),
            _order(each.metric, each.simulated),
            f"{each.tau:.2f} (goal {TAU_GOAL:g}: {'met' if each.tau >= TAU_GOAL else 'missed'})",
            f"{each.agreed} of {each.separable}; {each.pairs - each.separable} pairs within noise",
        )
        for each in rankings
    ]


def validity_cells(part: str, pairs: Iterable[Pair]) -> list[Cells]:
    """A line for each run of a part, under ``VALIDITY``."""
    return [
        (
            part,
            pair.measured.variant,
            f"{pair.measured.load:g}",
            str(pair.measured.seed),
            f"{value(pair.measured, 'offered_requests'):.0f}",
            f"{1e3 * value(pair.measured, 'send_lag_p99_s'):.1f} ms",
            f"{health.cpu_fraction:.0%}" if (health := pair.measured.saved.record.health) else "",
            f"{value(pair.measured, 'foreign_fraction'):.0%}",
            f"INVALID: {'; '.join(pair.invalid_because)}" if pair.invalid_because else "valid",
        )
        for pair in pairs
    ]


def rich_table(title: str, header: Sequence[str], lines: Iterable[Cells]) -> Table:
    """For a terminal."""
    table = Table(title=title, title_justify="left")
    for name in header:
        table.add_column(name, justify="right" if name in RIGHT_ALIGNED else "left")
    for line in lines:
        table.add_row(*line, end_section=line[2:3] == (list(SHOWN.values())[-1].label,))
    return table


def markdown_table(header: Sequence[str], lines: Iterable[Cells]) -> str:
    """For the documentation."""
    rule = ("---:" if name in RIGHT_ALIGNED else "---" for name in header)
    rows = (header, tuple(rule), *lines)
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _value(metric: str, number: float) -> str:
    scaled = number * SHOWN[metric].factor
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.1f}"


def _span(metric: str, span: tuple[float, float]) -> str:
    return f"{_value(metric, span[0])}-{_value(metric, span[1])}"


def _order(metric: str, ranked: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {_value(metric, number)}" for name, number in ranked)
