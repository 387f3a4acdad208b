"""The charts of a report's chapter: which curves, on which axes, at which sizes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.reports.curves import LEAST_QUANTILE, Curve, goodput_curves, quantile, tail_curve
from loadtests.reports.runs import Chapter, Series
from loadtests.reports.svg.axes import Axis, Tick, duration, linear_axis, seconds_axis
from loadtests.reports.svg.plot import Plot, PlotLine, Rule, draw
from loadtests.reports.svg.scales import Probit
from loadtests.reports.timeline import RunTimeline, bin_width_s, timeline
from loadtests.results.analysis import Floats
from loadtests.results.metrics import ALL

WIDE_PX, NARROW_PX = 528.0, 350.0
_HEIGHT_PX = 236.0
LATENCIES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "e2e": "End to end",
    "longest_gap": "Longest gap between tokens",
}
PANELS = {
    "wanted": ("Wanted", "logical requests per second"),
    "served": ("Served within the SLO", "logical requests per second"),
    "refused": ("Refused", "requests per second"),
}
GAUGES = {
    "queue_work_s": ("Work in the queues", "seconds of work"),
    "queue_requests": ("Requests in the queues", "requests"),
    "shed_fraction": ("Shed fraction", "fraction of the work"),
    "requests_open": ("Requests open", "requests"),
    "requests_waiting": ("Requests that wait for a replica", "requests"),
}
"""Titles and units of what deployments say of themselves; what is not here stands under its own name."""
DASHED = 8
"""Added to a series's number: the same colour, dashed."""
QUANTILES = (Tick(0.1, "p10"), Tick(0.5, "p50"), Tick(0.9, "p90"), Tick(0.99, "p99"), Tick(0.999, "p99.9"))


@dataclass(frozen=True)
class Chart:
    """A chart for wide screens and one for narrow ones.

    Args:
        title: What it shows.
        wide: As SVG.
        narrow: As SVG.
        note: What a reader has to know; may be empty.
        legend: Numbers and names of lines that are not the chapter's series.
    """

    title: str
    wide: str
    narrow: str
    note: str = ""
    legend: Sequence[tuple[int, str]] = ()


def chart(title: str, plot: Plot, note: str = "", legend: Sequence[tuple[int, str]] = ()) -> Chart:
    """Draws a plot at both sizes."""
    return Chart(title, draw(plot, WIDE_PX, _HEIGHT_PX), draw(plot, NARROW_PX, _HEIGHT_PX), note, legend)


def latency_charts(chapter: Chapter) -> Iterator[tuple[str, list[Chart]]]:
    """For each lane or traffic class: a chart for each latency that is known."""
    for group in chapter.groups:
        plots = (_latency_chart(chapter, latency, group) for latency in LATENCIES)
        yield group, [each for each in plots if each is not None]


def _latency_chart(chapter: Chapter, latency: str, group: str) -> Chart | None:
    values = {series: series.latencies_s(latency, group) for series in chapter.series}
    curves = {series: tail_curve(of_series) for series, of_series in values.items()}
    drawn = {series: curve for series, curve in curves.items() if len(curve.x)}
    if not drawn:
        return None
    rules = _limits(chapter, latency, group)
    ends_s = [float(end) for curve in drawn.values() for end in (curve.x[0], curve.x[-1])] + [each.at for each in rules]
    lines = [
        PlotLine(series.number, f"{series.label}: {percentiles_text(values[series])}", curve.x, curve.y)
        for series, curve in drawn.items()
    ]
    most = max(float(curve.y[-1]) for curve in drawn.values())
    y = Axis("percentile", Probit(LEAST_QUANTILE, most), [tick for tick in QUANTILES if tick.at <= most + 1e-9])
    title = LATENCIES[latency]
    plot = Plot(
        label=f"Percentiles of the {title.lower()}, {group}",
        x=seconds_axis(title.lower(), min(ends_s), max(ends_s)),
        y=y,
        lines=lines,
        rules=rules,
    )
    return chart(title, plot, _left_out(chapter, drawn))


def _left_out(chapter: Chapter, drawn: Mapping[Series, Curve]) -> str:
    missing = [series.label for series in chapter.series if series not in drawn]
    return f"Not known, or too few: {'; '.join(missing)}." if missing else ""


def _limits(chapter: Chapter, latency: str, group: str) -> list[Rule]:
    """The SLO of a class, where it is the same in all runs."""
    limits_s = {getattr(run.record.slos.get(group), f"{latency}_s", None) for run in chapter.runs}
    limit_s = limits_s.pop()
    return [] if limit_s is None or limits_s or chapter.by_lane else [Rule(limit_s, f"SLO {duration(limit_s, '.3g')}")]


def percentiles_text(values: Floats) -> str:
    """``p50 20 ms, p99 1.2 s``."""
    named = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    return ", ".join(f"{name} {duration(quantile(values, at))}" for name, at in named)


def rate_charts(chapter: Chapter) -> Iterator[Chart]:
    """Goodput and time to first token against the offered rate; none where all runs had the same."""
    curves = goodput_curves(chapter)
    if not curves:
        return
    offered = {name: _means(series, "offered_rps") for name, series in curves.items()}
    most = max(rate for rates in offered.values() for rate in rates.tolist())
    x = linear_axis("offered, logical requests per second", most)
    legend = [(series[0].number, name) for name, series in curves.items()]
    good = [
        PlotLine(series[0].number, name, offered[name], _means(series, "goodput_rps"), has_dots=True)
        for name, series in curves.items()
    ]
    ends = np.array([0.0, x.ticks[-1].at])
    title = "Goodput against the offered rate"
    y = linear_axis("within the SLO, logical requests per second", most)
    yield chart(title, Plot(label=title, x=x, y=y, lines=good, guide=(ends, ends)), "Dotted: all of it.", legend)
    late = [
        PlotLine(
            series[0].number + dashes, f"{name}, {_name(at)}", offered[name], _percentiles(series, at), has_dots=True
        )
        for name, series in curves.items()
        for at, dashes in ((0.5, DASHED), (0.99, 0))
    ]
    known_s = [value for line in late for value in line.y.tolist() if not math.isnan(value)]
    if known_s:
        title = "Time to first token against the offered rate"
        y = seconds_axis("time to first token", min(known_s), max(known_s))
        yield chart(title, Plot(label=title, x=x, y=y, lines=late), "Solid: p99. Dashed: p50.", legend)


def _means(series: Sequence[Series], metric: str) -> Floats:
    return np.array([each.mean(ALL, metric) for each in series])


def _percentiles(series: Sequence[Series], at: float) -> Floats:
    return np.array([quantile(each.latencies_s("ttft", ALL), at) for each in series])


def _name(at: float) -> str:
    return f"p{100 * at:g}"


def timeline_charts(chapter: Chapter) -> Iterator[Chart]:
    """What happened second by second, on one time axis; what never happened has no chart."""
    width_s = bin_width_s(chapter)
    found = {series: timeline(series, width_s) for series in chapter.series}
    for name, (title, unit) in PANELS.items():
        if any(of.counts[name].any() for of in found.values()):
            rates = {each: of.counts[name] / of.width_s for each, of in found.items()}
            yield _panel(chapter, title, unit, rates, found)
    waiting = {each: of.waiting for each, of in found.items()}
    yield _panel(chapter, "Waiting for the first token", "requests", waiting, found)
    names = dict.fromkeys(name for of in found.values() for name in of.gauges)
    for name in sorted(names, key=lambda each: (list(GAUGES).index(each) if each in GAUGES else len(GAUGES), each)):
        title, unit = GAUGES.get(name, (name, name))
        gauges = {each: of.gauges[name] for each, of in found.items() if name in of.gauges}
        yield _panel(chapter, title, unit, gauges, found)


def _panel(
    chapter: Chapter, title: str, unit: str, values: Mapping[Series, Floats], times: Mapping[Series, RunTimeline]
) -> Chart:
    lines = []
    for series, of_series in values.items():
        known = of_series[~np.isnan(of_series)]
        tip = f"{series.label}: mean {_mean(known):.4g}, at most {max(known.tolist(), default=0.0):.4g}"
        lines.append(PlotLine(series.number, tip, *_steps(times[series], of_series)))
    ended_s = max(float(of.starts_s[-1]) + of.width_s for of in times.values())
    most = max((float(np.nanmax(line.y)) for line in lines if not np.isnan(line.y).all()), default=0.0)
    plot = Plot(
        label=f"{title}, {unit}, over time",
        x=linear_axis("seconds since the start", ended_s, num_ticks=6, is_rounded=False),
        y=linear_axis(unit, most, num_ticks=4),
        lines=lines,
        shaded=_not_measured(chapter, ended_s),
    )
    return chart(title, plot)


def _steps(times: RunTimeline, values: Floats) -> tuple[Floats, Floats]:
    """A bin's value from its begin to its end."""
    edges_s = np.stack((times.starts_s, times.starts_s + times.width_s), axis=1).ravel()
    return edges_s, np.repeat(values, 2)


def _not_measured(chapter: Chapter, ended_s: float) -> Sequence[tuple[float, float]]:
    """Warm-up and what comes after the last arrival, where they are the same in all runs."""
    spans = {(run.record.warm_up_s, run.record.duration_s) for run in chapter.runs}
    if len(spans) > 1:
        return ()
    ((warm_up_s, duration_s),) = spans
    return [(start, end) for start, end in ((0.0, warm_up_s), (duration_s, ended_s)) if start < end]


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan
