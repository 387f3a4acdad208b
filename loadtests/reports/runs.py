"""What a report is about: folders of runs, put together into series that differ in nothing but the seed."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from loadtests.results.analysis import Floats, Mask, Rows, derive
from loadtests.results.metrics import ALL, METRICS, MetricValue, Window
from loadtests.results.run_folder import RUN_FILE, SIMULATOR, SavedRun, read
from loadtests.results.run_record import RequestDetails, RunRecord
from loadtests.scenario.scenario import POLICY
from loadtests.simulation.verdict import Verdict
from policies.errors import ConfigError

SHORTEST_S = 1e-6
"""A run that ended in its warm-up has measured so little."""


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run that was read.

    Args:
        folder: Where it is.
        saved: What the folder holds.
        rows: What follows from each of its requests, in the table's order.
    """

    folder: Path
    saved: SavedRun
    rows: Rows

    @property
    def record(self) -> RunRecord:
        """What was run, and what it came to."""
        return self.saved.record

    @property
    def details(self) -> Sequence[RequestDetails]:
        """What else is known of each request."""
        return self.saved.details

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Lanes that its requests were in, by name; empty where nobody says."""
        return tuple(sorted({each.lane for each in self.details} - {""}))

    @cached_property
    def longest_gaps_s(self) -> Floats:
        """The longest time between two events of each request; NaN where nobody knows."""
        return np.array([each.longest_gap_s for each in self.details], dtype=np.float64)

    @cached_property
    def is_in_lane(self) -> Mapping[str, Mask]:
        """By lane: which requests were in it."""
        of_each = np.array([each.lane for each in self.details], dtype=np.str_)
        return {lane: of_each == lane for lane in self.lanes}

    def latencies_s(self, latency: str, group: str) -> Floats:
        """A latency of the measured logical requests, in order of size.

        Args:
            latency: ``ttft``, ``tpot``, ``e2e`` or ``longest_gap``.
            group: A traffic class, a lane, or ``ALL``.
        """
        values_s = self.longest_gaps_s if latency == "longest_gap" else getattr(self.rows, f"{latency}_s")
        found: Floats = values_s[self.rows.are_logical_requests & self.members(group)]
        return np.sort(found[~np.isnan(found)])

    def members(self, group: str) -> Mask:
        """Which requests belong to a traffic class, a lane, or ``ALL``."""
        if group == ALL:
            return np.ones(len(self.rows.logical_request), dtype=np.bool_)
        if group in self.record.traffic_classes:
            is_member: Mask = self.rows.traffic_class == self.record.traffic_classes.index(group)
            return is_member
        return self.is_in_lane.get(group, np.zeros(len(self.rows.logical_request), dtype=np.bool_))


@dataclass(frozen=True, eq=False)
class Series:
    """Runs that differ in nothing but the seed; in every chart of a chapter it has the same colour.

    Args:
        number: Its place in the chapter, from 0.
        label: What tells it from the others of the chapter.
        runs: By seed.
    """

    number: int
    label: str
    runs: Mapping[int, LoadedRun]

    @property
    def record(self) -> RunRecord:
        """The first run's, for what all have in common."""
        return next(iter(self.runs.values())).record

    @property
    def verdict(self) -> Verdict:
        """The worst of its runs."""
        return max(Verdict[run.record.verdict] for run in self.runs.values())

    def latencies_s(self, latency: str, group: str) -> Floats:
        """A latency of all its runs' measured logical requests, in order of size."""
        return np.sort(np.concatenate([run.latencies_s(latency, group) for run in self.runs.values()]))

    def metrics(self, group: str, metric: str) -> list[MetricValue]:
        """A metric in each run, in order of the seeds, as the run's record has it; a run without it is left out."""
        found = (run.record.metrics.get(group, {}).get(metric) for run in self.runs.values())
        return [
            metric_value
            for metric_value in found
            if metric_value is not None and metric_value.samples >= METRICS[metric].min_samples
        ]

    def mean(self, group: str, metric: str) -> float:
        """A metric's mean over the runs; NaN unless each of them has it, over enough samples."""
        found = self.metrics(group, metric)
        return sum(each.value for each in found) / len(found) if len(found) == len(self.runs) else float("nan")


@dataclass(frozen=True, eq=False)
class Chapter:
    """Everything that was run of one scenario.

    Args:
        scenario: Its name.
        series: In the order of the charts: the simulator first, and policies before baselines.
    """

    scenario: str
    series: Sequence[Series]

    @property
    def description(self) -> str:
        """The question that the scenario answers."""
        return self.series[0].record.description

    @property
    def runs(self) -> Iterator[LoadedRun]:
        """All runs."""
        return (run for series in self.series for run in series.runs.values())

    @cached_property
    def by_lane(self) -> bool:
        """Whether requests are told apart by lane, which takes runs that all know lanes; otherwise by traffic class."""
        return all(run.lanes for run in self.runs)

    @property
    def groups(self) -> tuple[str, ...]:
        """Lanes or traffic classes, whichever the chapter goes by, in order of name."""
        names = (run.lanes if self.by_lane else run.record.traffic_classes for run in self.runs)
        return tuple(sorted({name for of_run in names for name in of_run}))

    @property
    def verdict(self) -> Verdict:
        """The worst of its runs."""
        return max(series.verdict for series in self.series)


def find(paths: Sequence[Path]) -> list[Path]:
    """Folders of runs: those given, and those below the ones given.

    Raises:
        ConfigError: One of the paths leads to none.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        below = sorted(each.parent for each in path.rglob(RUN_FILE))
        if not below:
            allowed = f"a folder with {RUN_FILE}, or one above such folders; a run writes one with --save FOLDER"
            raise ConfigError("RUN", str(path), allowed)
        found |= {each.resolve(): each for each in below}
    return list(found.values())


def load(folder: Path) -> LoadedRun:
    """Reads a run and works out what follows from its rows.

    Raises:
        ConfigError: It can't be read, has no verdict, or its traffic classes have no SLO.
    """
    saved = read(folder)
    record = saved.record
    if record.verdict not in Verdict.__members__:
        raise ConfigError(str(folder / RUN_FILE), record.verdict, f"a verdict: one of {list(Verdict.__members__)}")
    until_s = max(record.duration_s, record.warm_up_s + SHORTEST_S)
    missing = sorted(set(record.traffic_classes) - set(record.slos))
    if missing:
        raise ConfigError(
            str(folder / RUN_FILE), sorted(record.slos), f"an SLO for each traffic class; none: {missing}"
        )
    rows = derive(saved.table, record.slos, Window(from_s=record.warm_up_s, until_s=until_s))
    return LoadedRun(folder=folder, saved=saved, rows=rows)


def chapters(runs: Sequence[LoadedRun]) -> list[Chapter]:
    """Puts runs together by scenario, in order of name, and within by everything but the seed."""
    by_scenario: dict[str, list[LoadedRun]] = defaultdict(list)
    for run in runs:
        by_scenario[run.record.scenario].append(run)
    return [
        Chapter(scenario=scenario, series=_labelled(_together(of_scenario)))
        for scenario, of_scenario in sorted(by_scenario.items())
    ]


def _together(runs: Sequence[LoadedRun]) -> list[dict[int, LoadedRun]]:
    """Runs by seed; a seed that comes again, such as before and after a change, begins another series."""
    found: dict[tuple[object, ...], list[dict[int, LoadedRun]]] = defaultdict(list)
    for run in runs:
        of_key = found[_key(run.record)]
        free = next((each for each in of_key if run.record.seed not in each), None)
        if free is None:
            free = {}
            of_key.append(free)
        free[run.record.seed] = run
    ordered = sorted(found, key=lambda key: (key[0] != SIMULATOR, key[0], key[1] != POLICY, *key[1:]))
    return [dict(sorted(each.items())) for key in ordered for each in found[key]]


def _key(record: RunRecord) -> tuple[str, str, float, str]:
    return record.driver, record.variant, record.rate_fraction, record.target


PARTS: Sequence[Callable[[LoadedRun], str]] = (
    lambda run: run.record.variant,
    lambda run: run.record.driver,
    lambda run: f"{run.record.rate_fraction:.3g} x rate",
    lambda run: run.record.target,
    lambda run: run.folder.parent.name,
    lambda run: str(run.folder),
)
"""What a label is made of, in order."""


def _labelled(found: Sequence[Mapping[int, LoadedRun]]) -> list[Series]:
    """Gives each series as short a label as tells it from the others: the variant, and what differs among its like."""
    firsts = [next(iter(each.values())) for each in found]
    labels = [PARTS[0](first) for first in firsts]
    for part in PARTS[1:]:
        texts = [part(first) for first in firsts]
        told: dict[str, set[str]] = defaultdict(set)
        for label, text in zip(labels, texts, strict=True):
            told[label].add(text)
        labels = [
            f"{label}, {text}" if len(told[label]) > 1 else label for label, text in zip(labels, texts, strict=True)
        ]
    return [
        Series(number=number, label=label, runs=runs)
        for number, (label, runs) in enumerate(zip(labels, found, strict=True))
    ]
