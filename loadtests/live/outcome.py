"""What the runs of a study come to: metrics over rounds, checks, and whether they pass, fail or prove nothing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cluster.sim.run_table import RunTable
from loadtests.live.study import Study
from loadtests.live.study_parts import StudyCheck
from loadtests.results.checks import too_few
from loadtests.results.metrics import ALL, METRICS, MetricValue, RunMetrics
from loadtests.results.run_folder import SavedRun
from loadtests.results.run_record import MET, MISSED, NOT_JUDGED, CheckResult
from loadtests.simulation.run_metrics import metrics_of
from loadtests.simulation.verdict import Verdict

Place = tuple[str, float]
"""A variant, and a load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One run.

    Args:
        variant: What served: one of ``Study.names_of_runs``.
        load: In capacities.
        seed: Of the plan.
        saved: As its folder has it.
    """

    variant: str
    load: float
    seed: int
    saved: SavedRun

    @property
    def name(self) -> str:
        """Which it is, in words."""
        return f"{self.variant} at {self.load:g}, seed {self.seed}"


@dataclass(slots=True)
class StudyOutcome:
    """What has been measured so far.

    Args:
        study: Which study.
        capacities_rps: Requests a second, by variant, as far as they are known.
        runs: In the order in which they ran.
    """

    study: Study
    capacities_rps: dict[str, float] = field(default_factory=dict)
    runs: list[StudyRun] = field(default_factory=list)

    @property
    def places(self) -> dict[Place, list[StudyRun]]:
        """Runs that differ in nothing but the seed, load by load."""
        found: dict[Place, list[StudyRun]] = {}
        for load in self.study.loads:
            for run in self.runs:
                if run.load == load:
                    found.setdefault((run.variant, load), []).append(run)
        return found

    def metrics(self) -> dict[Place, RunMetrics]:
        """Of all rounds together: percentiles of all their requests, and means of everything else."""
        return {place: _over_rounds(self.study, runs) for place, runs in self.places.items()}

    def results(self) -> list[CheckResult]:
        """What became of the checks, one for each variant and load that it is about."""
        metrics = self.metrics()
        return [
            _result(check, place, metrics, self.places)
            for check in self.study.single_checks
            for place in _places_of(check, self.study, metrics)
        ]

    def notes(self) -> list[str]:
        """What a reader has to know: each sentence once, after the variants, or the single runs, that it is about."""
        about: dict[str, list[StudyRun]] = {}
        for run in self.runs:
            for note in run.saved.record.notes:
                about.setdefault(note, []).append(run)
        return [f"{'; '.join(self._named(runs))}: {note}" for note, runs in about.items()]

    def _named(self, runs: Sequence[StudyRun]) -> Iterator[str]:
        for variant in dict.fromkeys(run.variant for run in runs):
            mine = [run for run in runs if run.variant == variant]
            is_all = len(mine) == sum(run.variant == variant for run in self.runs)
            yield from [variant] if is_all else [run.name for run in mine]

    @property
    def verdict(self) -> Verdict:
        """Invalid where no run of a deployment is valid or no check could be judged; failed with any that is missed."""
        results = self.results()
        if all(run.saved.record.problems for run in self.runs if run.variant in self.study.variants):
            return Verdict.INVALID
        if self.study.checks and all(each.verdict == NOT_JUDGED for each in results):
            return Verdict.INVALID
        return Verdict.FAIL if any(each.verdict == MISSED for each in results) else Verdict.PASS

    def document(self) -> dict[str, Any]:
        """Everything, for other programs; what is not defined is left out."""
        return {
            "study": self.study.name,
            "capacities_rps": self.capacities_rps,
            "verdict": self.verdict.name,
            "checks": self.results(),
            "runs": [
                {
                    "variant": run.variant,
                    "load": run.load,
                    "seed": run.seed,
                    "problems": run.saved.record.problems,
                    "notes": run.saved.record.notes,
                    "metrics": run.saved.record.metrics,
                }
                for run in self.runs
            ],
        }


def _places_of(check: StudyCheck, study: Study, metrics: Mapping[Place, RunMetrics]) -> Iterator[Place]:
    """What a check is about, of what was run."""
    others = [each for each in study.variants if each != check.against]
    chosen = others if check.variant is None else [check.variant]
    for variant, load in metrics:
        has_class = check.traffic_class in (ALL, *study.classes_of(variant))
        if variant in chosen and has_class and check.load in (None, load):
            yield variant, load


def _result(
    check: StudyCheck, place: Place, metrics: Mapping[Place, RunMetrics], runs: Mapping[Place, Sequence[StudyRun]]
) -> CheckResult:
    variant, load = place
    text = f"{variant} at {load:g}: {check.text}"
    other = check.against or variant
    if (other, load) not in metrics:
        return CheckResult(text=text, value=None, verdict=NOT_JUDGED, problem=f"needs runs of {other} to compare with")
    sides = [(variant, check.group)]
    if check.compared_with is not None:
        sides.append((other, check.compared_group))
    for name, group in sides:
        if problem := _problem(check.metric, metrics[name, load], group):
            return CheckResult(text=text, value=None, verdict=NOT_JUDGED, problem=f"{name}: {problem}")
    value = _held(check, metrics[place], metrics[other, load])
    if math.isnan(value):
        return CheckResult(text=text, value=None, verdict=NOT_JUDGED, problem=f"{other} has 0: there is no ratio to it")
    rounds = [
        _held(check, *pair) for pair in zip(*(_by_seed(runs[each, load]) for each in (variant, other)), strict=False)
    ]
    if len(rounds) > 1:
        text += f" (by round: {', '.join(f'{each:.3g}' for each in rounds)})"
    return CheckResult(text=text, value=value, verdict=MET if check.holds_for(value) else MISSED)


def _by_seed(runs: Sequence[StudyRun]) -> list[RunMetrics]:
    return [run.saved.record.metrics for run in sorted(runs, key=lambda each: each.seed)]


def _held(check: StudyCheck, ours: RunMetrics, theirs: RunMetrics) -> float:
    """The metric, or its ratio or difference to another variant's or window's."""
    value = _value(ours, check.group, check.metric)
    if check.compared_with is None:
        return value
    other = _value(theirs, check.compared_group, check.metric)
    if check.difference:
        return value - other
    return value / other if other else math.nan


def _value(metrics: RunMetrics, group: str, metric: str) -> float:
    found = metrics.get(group, {}).get(metric)
    return math.nan if found is None else found.value


def _problem(metric: str, metrics: RunMetrics, group: str) -> str:
    if group not in metrics or math.isnan(_value(metrics, group, metric)):
        return "not defined, because there was nothing to take it over"
    if too_few(metrics, group, metric):
        return f"{metrics[group][metric].samples:,} samples, and it takes {METRICS[metric].min_samples:,}"
    return ""


def _over_rounds(study: Study, runs: Sequence[StudyRun]) -> RunMetrics:
    """Of several runs of the same variant at the same load."""
    of_each = [run.saved.record.metrics for run in runs]
    if len(runs) == 1:
        return of_each[0]
    pooled = metrics_of(study, _together([run.saved.table for run in runs]))
    return {
        group: {
            name: pooled[group][name] if METRICS[name].quantile is not None else _mean(name, group, of_each)
            for name in sorted({name for metrics in of_each for name in metrics.get(group, {})})
        }
        for group in of_each[0]
    }


def _mean(name: str, group: str, metrics: Sequence[RunMetrics]) -> MetricValue:
    found = [each[group][name] for each in metrics if name in each.get(group, {})]
    return MetricValue(
        value=sum(each.value for each in found) / len(found), samples=sum(each.samples for each in found)
    )


def _together(tables: Sequence[RunTable]) -> RunTable:
    """The rows of several runs; requests and conversations of each are numbered on from those of the one before."""
    shifted, first = [], 0
    for table in tables:
        session = np.where(table.session >= 0, table.session + first, -1)
        shifted.append(replace(table, logical_request=table.logical_request + first, session=session))
        first += int(table.logical_request.max(initial=-1)) + 1
    columns = [name for name in RunTable.__slots__ if isinstance(getattr(tables[0], name), np.ndarray)]
    rows = {name: np.concatenate([getattr(each, name) for each in shifted]) for name in columns}
    return replace(tables[0], **rows)
