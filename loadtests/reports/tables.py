"""The tables of a report's chapter, the same for the page and for the Markdown summary."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from cluster.sim.run_table import OUTCOMES, REASONS
from loadtests.reports.agreement import GOAL, Agreement, agreements
from loadtests.reports.cells import TONES, Bar, ReportCell, Table, fraction, number_cell, text
from loadtests.reports.charts import LATENCIES
from loadtests.reports.comparison import Compared, ResampledUnit, comparisons
from loadtests.reports.curves import LatencyShare, latency_budget, quantile
from loadtests.reports.runs import Chapter, LoadedRun, Series
from loadtests.reports.svg.axes import duration
from loadtests.reports.wording import metric_text, named
from loadtests.results.analysis import ABANDONED, Floats
from loadtests.results.comparison import IntervalKind, SeedEstimate
from loadtests.results.metrics import ALL
from loadtests.simulation.result_table import number

QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
AMPLIFICATION = (
    "sends_per_request",
    "sends_per_sent_request",
    "attempts_per_request",
    "hedges_per_request",
    "wasted_prefill_fraction",
    "wasted_tokens_fraction",
    "degraded_fraction",
)
GOODPUT_NOTE = "Refused and late requests are misses. Goodput is the mean of the seeds; of latencies seeds are pooled."
BUDGET_NOTE = (
    "Blue, above: the mean of completed requests. Orange, below: the slowest hundredth of them by time to first token."
)
_RATIO_SPAN = (0.25, 4.0)
"""What the picture of a ratio shows at most, from end to end; a longer interval is cut off there."""


def goodput_table(chapter: Chapter) -> Table:
    """How much of what was wanted was served in time, for everything and for each class, and how long it took."""
    classes = sorted({name for run in chapter.runs for name in run.record.traffic_classes})
    groups = classes if len(classes) > 1 else []
    rows = []
    for series in chapter.series:
        share = series.mean(ALL, "goodput_fraction")
        bars = (
            ()
            if math.isnan(share)
            else (Bar(length=1.0, tone="track"), Bar(length=share, tone=f"s{series.number % 8}"))
        )
        rows.append(
            [
                named(series),
                number_cell(number(series.mean(ALL, "offered_rps"))),
                number_cell(number(series.mean(ALL, "goodput_rps"))),
                ReportCell(text=fraction(share), is_number=True, bars=bars),
                *(number_cell(duration(quantile(series.latencies_s("ttft", ALL), at))) for at in (0.5, 0.99)),
                *(number_cell(fraction(series.mean(name, "goodput_fraction"))) for name in groups),
            ]
        )
    head = (
        "series",
        "offered/s",
        "within SLO/s",
        "goodput",
        "TTFT p50",
        "TTFT p99",
        *(f"goodput, {name}" for name in groups),
    )
    return Table(title="Goodput", head=head, rows=rows, note=GOODPUT_NOTE)


def percentile_tables(chapter: Chapter) -> Iterator[Table]:
    """For each latency that is known: its percentiles, for everything and for each lane or traffic class."""
    groups = (ALL, *chapter.groups) if len(chapter.groups) > 1 else chapter.groups
    for latency, title in LATENCIES.items():
        found = [(group, series, series.latencies_s(latency, group)) for group in groups for series in chapter.series]
        if any(len(values) for _, _, values in found):
            kind = "lane" if chapter.by_lane else "class"
            rows = [_percentiles(group, series, values) for group, series, values in found]
            yield Table(title=title, head=(kind, "series", "samples", *(name for name, _ in QUANTILES)), rows=rows)


def _percentiles(group: str, series: Series, values: Floats) -> list[ReportCell]:
    shown = (number_cell(duration(quantile(values, at))) for _, at in QUANTILES)
    return [text(group), named(series), number_cell(f"{len(values):,}"), *shown]


def amplification_table(chapter: Chapter) -> Table:
    """How much more was done than users wanted."""
    known = [name for name in AMPLIFICATION if not all(math.isnan(each.mean(ALL, name)) for each in chapter.series)]
    rows = [
        [named(series), *(number_cell(metric_text(name, series.mean(ALL, name))) for name in known)]
        for series in chapter.series
    ]
    head = ("series", *(name.removesuffix("_fraction").replace("_", " ") for name in known))
    return Table(title="Amplification", head=head, rows=rows, note="Mean over seeds, all classes together.")


def reasons_table(chapter: Chapter) -> Table:
    """Why requests ended early."""
    rows = []
    for series in chapter.series:
        logical_requests: Counter[str] = Counter()
        requests: Counter[str] = Counter()
        for run in series.runs.values():
            logical_requests.update(_reasons(run, only_last=True))
            requests.update(_reasons(run, only_last=False))
        offered = sum(int(np.count_nonzero(run.saved.table.is_last)) for run in series.runs.values())
        rows += [
            [named(series), text(reason), number_cell(f"{count:,}"), number_cell(f"{logical_requests[reason]:,}"),
             number_cell(fraction(logical_requests[reason] / offered if offered else math.nan))]
            for reason, count in requests.most_common()
        ]  # fmt: skip
    return Table(
        title="Reasons", head=("series", "reason", "requests", "logical requests", "of all logical requests"), rows=rows
    )


def _reasons(run: LoadedRun, *, only_last: bool) -> dict[str, int]:
    """How often each reason was given; what was never sent is named by its outcome."""
    table = run.saved.table
    chosen = table.is_last if only_last else np.ones(len(table), dtype=np.bool_)
    counts = np.bincount(table.reason[chosen], minlength=len(REASONS)).tolist()
    found = {reason: count for reason, count in zip(REASONS, counts, strict=True) if reason and count}
    abandoned = int(np.count_nonzero(table.outcome[chosen] == ABANDONED))
    return {**found, OUTCOMES[ABANDONED]: abandoned} if abandoned else found


def budget_tables(chapter: Chapter) -> Iterator[Table]:
    """For each series that knows it: where the time went, stage after stage."""
    for series in chapter.series:
        stages = latency_budget(series)
        if stages:
            head = ("stage", "mean", "slowest 1 %", "one after the other")
            rows = list(_waterfall(stages))
            yield Table(title=f"Latency budget, {series.label}", head=head, rows=rows, note=BUDGET_NOTE)


def _waterfall(stages: Sequence[LatencyShare]) -> Iterator[list[ReportCell]]:
    whole, slow_whole = sum(each.mean_s for each in stages), sum(each.slow_s for each in stages)
    longest_s = max(whole, slow_whole) or 1.0
    start_s = slow_start_s = 0.0
    for each in stages:
        bars = (
            Bar(start=start_s / longest_s, length=each.mean_s / longest_s, tone="mean"),
            Bar(start=slow_start_s / longest_s, length=each.slow_s / longest_s, tone="slow"),
        )
        yield [
            text(each.name),
            number_cell(duration(each.mean_s)),
            number_cell(duration(each.slow_s)),
            ReportCell(text="", bars=bars),
        ]
        start_s, slow_start_s = start_s + each.mean_s, slow_start_s + each.slow_s
    yield [text("together"), number_cell(duration(whole)), number_cell(duration(slow_whole)), text("")]


def comparison_tables(chapter: Chapter) -> Iterator[Table]:
    """For each pair of series: what differs, and how sure that is."""
    found: dict[tuple[str, str], list[Compared]] = {}
    for each in comparisons(chapter):
        found.setdefault((each.ours.label, each.theirs.label), []).append(each)
    for (ours, theirs), of_pair in found.items():
        rows = [_comparison(each) for each in of_pair]
        head = ("class", "metric", ours, theirs, "ratio", "ratio from ¼ to 4", "conclusion")
        yield Table(title=f"{ours} against {theirs}", head=head, rows=rows, note=_unit_note(of_pair[0]))


def _comparison(each: Compared) -> list[ReportCell]:
    result = each.result
    conclusion = ReportCell(text=result.change.value, tone=TONES.get(result.change, "plain"))
    sides = (number_cell(metric_text(each.metric, value)) for value in (result.policy, result.baseline))
    return [
        text(each.group),
        text(each.metric),
        *sides,
        text(_estimate(result.ratio)),
        _interval(result.ratio),
        conclusion,
    ]


def _estimate(ratio: SeedEstimate) -> str:
    if math.isnan(ratio.value):
        return "-"
    interval = "" if ratio.kind is IntervalKind.NONE else f" [{ratio.low:.3g}, {ratio.high:.3g}]"
    return f"{ratio.value:.3g}{interval}"


def _interval(ratio: SeedEstimate) -> ReportCell:
    """The ratio's interval on a logarithmic line with 1 in its middle."""
    if math.isnan(ratio.low) or ratio.low <= 0:
        return text("")
    least, most = _RATIO_SPAN
    low, value, high = (
        min(max(math.log(each / least) / math.log(most / least), 0.0), 1.0)
        for each in (ratio.low, ratio.value, ratio.high)
    )
    return ReportCell(text="", bars=(Bar(start=low, length=high - low, tone="interval", point=value),))


def _unit_note(each: Compared) -> str:
    seeds = len(each.ours.runs.keys() & each.theirs.runs.keys())
    if each.unit is ResampledUnit.REQUEST:
        return (
            "Without two seeds in common, requests were resampled: a 95 % interval that takes them as independent, "
            "which requests of one queue are not. It is narrower than the truth."
        )
    if each.result.difference.kind is IntervalKind.RANGE_OVER_SEEDS:
        return f"{seeds} seeds in pairs, means of their metrics: the range over them. A conclusion takes five seeds."
    return f"{seeds} seeds in pairs, means of their metrics: 95 % bootstrap interval, or 'no difference'."


def agreement_table(chapter: Chapter) -> Table:
    """The simulator beside the deployment that ran the same scenario."""
    rows = [_agreement(each) for each in agreements(chapter) if not math.isnan(each.ratio)]
    head = ("class", "time to first token", "live", "simulated", "live", "simulated", "ratio", f"within {GOAL:.0%}")
    return Table(title="Simulator beside deployment", head=head, rows=rows)


def _agreement(each: Agreement) -> list[ReportCell]:
    verdict = ReportCell(text="yes", tone="good") if each.is_within_goal else ReportCell(text="no", tone="bad")
    return [
        text(each.group),
        text(f"p{each.quantile * 100:g}"),
        named(each.live),
        named(each.simulated),
        number_cell(duration(each.live_s)),
        number_cell(duration(each.simulated_s)),
        number_cell(f"{each.ratio:.3f}"),
        verdict,
    ]
