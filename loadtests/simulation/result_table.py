"""The comparison table: one aligned table over all scenarios, readable in a terminal, in a log and in a pipe.

Columns are as wide as what is in them and nothing is cut off, so a line may be longer than a narrow terminal.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from engines.model.profile import EngineProfile, load_profile
from loadtests.results.checks import Check, Judgement, too_few, values
from loadtests.results.comparison import MIN_SEEDS, Change, Comparison, IntervalKind, SeedEstimate
from loadtests.results.lost_time import binding
from loadtests.results.metrics import ALL, METRICS
from loadtests.scenario.scenario import POLICY, Scenario
from loadtests.simulation.verdict import ScenarioReport, Verdict

HEADLINES = ("goodput_fraction", "ttft_p99_s")
"""Shown for all classes together even where no check asks for them."""
AMPLIFICATION = ("sends_per_request", "attempts_per_request", "wasted_prefill_fraction", "cancel_mean_s")
"""Shown for every variant, all classes together."""
TOO_FEW = "too few"
"""Stands for a percentile of too few samples."""
GAP = "  "
STYLES = {
    Verdict.PASS.name: "green",
    Verdict.FAIL.name: "bold red",
    Verdict.INVALID.name: "bold yellow",
    Change.WORSE.value: "red",
    Change.BETTER.value: "green",
}


class ResultRow(NamedTuple):
    """One line under a scenario's name; empty where a column does not apply."""

    traffic_class: str
    metric: str
    policy: str
    against: str
    baseline: str
    ratio: str
    change: str
    check: str
    result: str


HEADER = ResultRow(
    "class", "metric", "policy", "against", "baseline", "ratio (+/-: difference)", "change", "check", "result"
)
RIGHT_ALIGNED = {"policy", "baseline"}


def render(reports: Sequence[ScenarioReport]) -> Iterator[Text]:
    """The table's lines, then a line for each scenario and what a reader has to know."""
    tables = [(each, list(rows(each))) for each in reports]
    everything = [HEADER, *(row for _, found in tables for row in found)]
    widths = [max(len(row[column]) for row in everything) for column in range(len(HEADER))]
    yield _line(HEADER, widths)
    for each, found in tables:
        yield Text(each.scenario.name, style="bold")
        yield from (_line(row, widths) for row in found)
    yield Text()
    for each in reports:
        yield Text(_summary(each))
        yield from (Text(f"  {variant}: {_amplification(each, variant)}") for variant in each.results)
        yield from (Text(f"  {variant}: {binds}") for variant in each.results if (binds := _binding(each, variant)))
        yield from (Text(f"  {note}") for note in each.notes)
    yield from (Text(note) for note in _notes(everything))


def rows(report: ScenarioReport) -> Iterator[ResultRow]:
    """A scenario's checks, then what it has of the headlines beside them."""
    shown = set()
    for judgement in report.judgements:
        check = judgement.check
        shown.add((check.group, check.metric, check.compared_with))
        yield _row(report, check, judgement)
    for against in report.scenario.baselines or (None,):
        for metric in HEADLINES:
            if (ALL, metric, against) not in shown:
                yield _row(report, Check(metric=metric, against=against), None)


def number(value: float) -> str:
    """Four significant digits, thousands with commas."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _row(report: ScenarioReport, check: Check, judgement: Judgement | None) -> ResultRow:
    comparison = report.compared_by(check)
    sides = [(POLICY, check.group), (check.against or POLICY, check.compared_group)]
    is_quotable = not any(_is_too_few(report, check.metric, *side) for side in sides)
    return ResultRow(
        traffic_class=check.group,
        metric=check.metric,
        policy=_mean(report, check.metric, *sides[0]),
        against=check.compared_with or "",
        baseline=_mean(report, check.metric, *sides[1]) if check.compared_with else "",
        ratio=_ratio(check, comparison) if comparison and is_quotable else "",
        change=comparison.change.value if comparison and is_quotable else "",
        check=check.limit(),
        result=_result(judgement),
    )


def _is_too_few(report: ScenarioReport, metric: str, variant: str, group: str) -> bool:
    of_each_seed = report.metrics(variant).values()
    return any(too_few(metrics, group, metric) for metrics in of_each_seed)


def _mean(report: ScenarioReport, metric: str, variant: str, group: str) -> str:
    if METRICS[metric].quantile is not None and _is_too_few(report, metric, variant, group):
        return TOO_FEW
    of_each_seed = values(report.metrics(variant), group, metric)
    return number(sum(of_each_seed) / len(of_each_seed))


def _ratio(check: Check, comparison: Comparison) -> str:
    return _estimate(comparison.difference, "+.3g") if check.difference else _estimate(comparison.ratio, ".3g")


def _estimate(estimate: SeedEstimate, form: str) -> str:
    if math.isnan(estimate.value):
        return "-"
    value, low, high = (format(each, form) for each in (estimate.value, estimate.low, estimate.high))
    match estimate.kind:
        case IntervalKind.BOOTSTRAP_95:
            return f"{value} [{low}, {high}]"
        case IntervalKind.RANGE_OVER_SEEDS:
            return f"{value} ({low} to {high})"
        case _:
            return value


def _result(judgement: Judgement | None) -> str:
    if judgement is None:
        return ""
    if judgement.has_passed is None:
        return Verdict.INVALID.name
    return Verdict.PASS.name if judgement.has_passed else Verdict.FAIL.name


def _line(row: ResultRow, widths: Sequence[int]) -> Text:
    line = Text(GAP)
    for name, cell, width in zip(ResultRow._fields, row, widths, strict=True):
        padded = cell.rjust(width) if name in RIGHT_ALIGNED else cell.ljust(width)
        line.append(padded + GAP, style=STYLES.get(cell))
    line.rstrip()
    return line


def _summary(report: ScenarioReport) -> str:
    scenario = report.scenario
    seeds = f"{len(scenario.seeds)} seed{'s' if len(scenario.seeds) > 1 else ''}"
    num_runs = sum(map(len, report.results.values()))
    amount = f"{report.num_requests:,} requests in {num_runs} runs of {report.run_s / num_runs:.1f} s, {seeds}"
    return f"{scenario.name}: {report.verdict.name}; {amount}; {provenance(profile_of(scenario))}"


def _amplification(report: ScenarioReport, variant: str) -> str:
    """How much more is done than users want."""
    return ", ".join(f"{name} {_mean(report, name, variant, ALL)}" for name in AMPLIFICATION)


def _binding(report: ScenarioReport, variant: str) -> str:
    """What most time is lost to, and what helps."""
    return binding(report.metrics(variant).values(), (ALL, *report.scenario.workload.class_names))


def profile_of(scenario: Scenario) -> EngineProfile:
    """The profile of the scenario's engines."""
    return load_profile(scenario.profile)


def provenance(profile: EngineProfile) -> str:
    """Where a profile's numbers come from, in words that can't be taken for a measurement when there was none."""
    source = profile.provenance
    if source.kind == "analytic":
        return f"{profile.name} is analytic, not measured"
    return f"{profile.name} was measured on {source.machine}, {source.date}"


def _notes(everything: Iterable[ResultRow]) -> Iterator[str]:
    cells = [cell for row in everything for cell in row]
    if any("[" in cell for cell in cells):
        yield "[low, high]: 95 % bootstrap interval over paired seeds; 'no difference' when it leaves that open"
    if Change.TOO_FEW_SEEDS.value in cells:
        yield f"(low to high): range over seeds; an interval, and a conclusion, take {MIN_SEEDS} seeds"
    if TOO_FEW in cells:
        yield f"{TOO_FEW}: a percentile takes ten samples beyond it in each run, 1,000 for a p99"
