"""One simulated run of a scenario, from its specification to its figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from traceback import format_tb
from typing import Protocol

import numpy as np

from cluster.clock import MonotonicClock
from cluster.seeds import Seeds
from cluster.sim.faults import CoordinatorOutage, Fault
from cluster.sim.run_table import OUTCOMES, REASONS, RunTable
from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Arrival, PlannedRequest, Traffic
from loadtests.results.analysis import analyse
from loadtests.results.metrics import ALL, METRICS, Figures, windowed
from loadtests.scenario.scenario import Scenario
from loadtests.simulation.ideal_cache import ideal_hit_fraction, prompt_cache_tokens
from loadtests.workloads.clients import AbandonedIntent, Clients
from loadtests.workloads.traces import Trace
from loadtests.workloads.workload import Workload
from policies.errors import ConfigError
from routing.config.spec import DispatcherSpec
from routing.request.effects import Outcome

INNERMOST_FRAMES = 3
"""Of a run that failed: where it was, without the way there."""


class Simulate(Protocol):
    """The simulator, or what stands in for it in a test."""

    def __call__(
        self,
        fleet: FleetSpec,
        dispatcher: DispatcherSpec,
        traffic: Traffic,
        traffic_classes: Sequence[str],
        *,
        seed: int,
        until_s: float,
        faults: Sequence[Fault],
        load_coordinator_outages: Sequence[CoordinatorOutage],
    ) -> RunTable: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is to be run.

    Args:
        scenario: The scenario.
        variant: ``policy`` or the name of a baseline.
        seed: Of all random streams.
    """

    scenario: Scenario
    variant: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run came to. Small, because it travels between processes, which its table does not.

    Args:
        run: Which.
        figures: Every metric.
        problems: Why the run is invalid, a sentence each; empty for a valid run.
        notes: What a reader has to know of the workload, such as rows of a trace that were dropped.
        reasons: How many intents ended early, by reason, over the whole run.
        num_requests: Tries that were simulated, the warm-up's included.
        wall_s: Time that it took.
    """

    run: Run
    figures: Figures
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    reasons: dict[str, int]
    num_requests: int
    wall_s: float


class RunFailed(Exception):
    """A run that came to no end; says which, why, and where."""


class KeepRun(Protocol):
    """What becomes of a run's table, in the process that made it: a table is too large to travel."""

    def __call__(self, run: Run, table: RunTable) -> None: ...


def discard(run: Run, table: RunTable) -> None:
    """Keeps nothing."""


class WatchedTraffic:
    """Counts requests that have not ended, because a run that ends too early leaves no trace of those, and keeps what
    was sent where prompts share text.

    Args:
        traffic: The clients.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self.num_open = 0
        self.sent: list[Arrival] = []
        self.has_shared_text = False

    def arrivals(self) -> Iterator[Arrival]:
        for arrival in self._traffic.arrivals():
            self.num_open += 1
            self._keep(arrival)
            yield arrival

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        following = self._traffic.on_end(request, outcome, now_s)
        self.num_open += len(following) - 1
        for arrival in following:
            self._keep(arrival)
        return following

    def ideal_hit_fraction(self, fleet: FleetSpec) -> float:
        """What one cache of the size of all of the fleet's would have found; NaN where no prompt shares text."""
        return ideal_hit_fraction(self.sent, prompt_cache_tokens(fleet)) if self.has_shared_text else nan

    def _keep(self, arrival: Arrival) -> None:
        self.has_shared_text = self.has_shared_text or bool(arrival.request.content)
        if self.has_shared_text:
            self.sent.append(arrival)


def run(what: Run, simulate: Simulate, keep: KeepRun = discard) -> RunResult:
    """Simulates and analyses; a pure function of the run but for the time it takes.

    Args:
        what: The run.
        simulate: The simulator.
        keep: Is given the table, abandoned intents included.

    Raises:
        ConfigError: The scenario's trace or profile can't be read, or the table can't be kept.
        RunFailed: Something raised in the middle, most likely a policy; one that wants to end the process included.
    """
    try:
        return _run(what, simulate, keep)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        which = f"{what.scenario.name}, {what.variant}, seed {what.seed}"
        where = "".join(format_tb(error.__traceback__)[-INNERMOST_FRAMES:])
        raise RunFailed(f"{which}: {type(error).__name__}: {error}\n{where.rstrip()}") from None


def _run(what: Run, simulate: Simulate, keep: KeepRun) -> RunResult:
    clock = MonotonicClock()
    began_s = clock.now_s()
    scenario = what.scenario
    workload = scenario.workload.build(scenario.duration_s)
    clients = Clients(workload, Seeds(what.seed), scenario.clients)
    traffic = WatchedTraffic(clients)
    fleet = scenario.fleet_spec(what.variant)
    table = simulate(
        fleet,
        scenario.dispatcher_spec(what.variant),
        traffic,
        scenario.workload.class_names,
        seed=what.seed,
        until_s=scenario.duration_s + scenario.drain_s,
        faults=scenario.all_faults(what.variant, what.seed),
        load_coordinator_outages=scenario.load_coordinator_outages,
    )
    complete = with_abandoned(table, clients.abandoned)
    keep(what, complete)
    ideal_fraction = traffic.ideal_hit_fraction(fleet)
    figures = figures_of(scenario, complete, ideal_fraction)
    return RunResult(
        run=what,
        figures=figures,
        problems=tuple(_problems(what, traffic.num_open, figures)),
        notes=tuple(trace_notes(workload, Seeds(what.seed))),
        reasons=reasons_of(complete),
        num_requests=len(table),
        wall_s=clock.now_s() - began_s,
    )


def figures_of(scenario: Scenario, table: RunTable, ideal_hit_fraction: float = nan) -> Figures:
    """Every metric of a run of the scenario, in the measured time and in each of its named windows.

    Args:
        scenario: What was run.
        table: What the run left, intents that were never sent included.
        ideal_hit_fraction: What the best prefix cache of the fleet's size would have found; NaN: nobody knows.
    """
    measured = analyse(table, scenario.slos, scenario.window, ideal_hit_fraction)
    return {**measured, **_in_windows(table, scenario)}


def _in_windows(table: RunTable, scenario: Scenario) -> Figures:
    """Figures of the scenario's named windows; what replicas did is known for the whole run alone."""
    return {
        windowed(group, name): {metric: figure for metric, figure in figures.items() if METRICS[metric].per_class}
        for name, window in scenario.windows.items()
        for group, figures in analyse(table, scenario.slos, window).items()
    }


def with_abandoned(table: RunTable, abandoned: Sequence[AbandonedIntent]) -> RunTable:
    """The table with a row for each intent that was never sent; only the clients know of those."""
    if not abandoned:
        return table
    extra = RunTable(
        traffic_classes=table.traffic_classes,
        intent=np.array([each.intent for each in abandoned], dtype=np.int64),
        session=np.array([each.session for each in abandoned], dtype=np.int64),
        is_last=np.ones(len(abandoned), dtype=np.bool_),
        try_index=np.zeros(len(abandoned), dtype=np.int16),
        traffic_class=np.array([each.traffic_class for each in abandoned], dtype=np.int16),
        scheduled_s=np.array([each.scheduled_s for each in abandoned], dtype=np.float64),
        sent_s=np.full(len(abandoned), nan),
        first_token_s=np.full(len(abandoned), nan),
        end_s=np.array([each.abandoned_s for each in abandoned], dtype=np.float64),
        prompt_tokens=np.array([each.prompt_tokens for each in abandoned], dtype=np.int32),
        output_tokens=np.zeros(len(abandoned), dtype=np.int32),
        cached_tokens=np.zeros(len(abandoned), dtype=np.int32),
        full_output_tokens=np.zeros(len(abandoned), dtype=np.int32),
        outcome=np.full(len(abandoned), OUTCOMES.index("abandoned"), dtype=np.int8),
        reason=np.full(len(abandoned), REASONS.index(""), dtype=np.int8),
        attempts=np.zeros(len(abandoned), dtype=np.int16),
        hedges=np.zeros(len(abandoned), dtype=np.int16),
        computed_prompt_tokens=np.zeros(len(abandoned), dtype=np.int32),
        gateway=np.full(len(abandoned), -1, dtype=np.int16),
    )
    columns = [name for name in RunTable.__slots__ if isinstance(getattr(table, name), np.ndarray)]
    return replace(table, **{name: np.concatenate((getattr(table, name), getattr(extra, name))) for name in columns})


def trace_notes(workload: Workload, seeds: Seeds) -> Iterator[str]:
    """What became of the rows of recorded traces."""
    for index, each in enumerate(workload.classes):
        if isinstance(each, Trace):
            report = each.replay(index, seeds, workload.duration_s).report
            dropped = ", ".join(f"{count:,} dropped: {reason}" for reason, count in report.dropped.items() if count)
            cut = f"{report.clamped:,} cut to {each.max_context_tokens:,} tokens" if report.clamped else ""
            parts = [f"{report.rows_read:,} rows read", f"{report.emitted:,} replayed", dropped, cut]
            yield f"trace {each.name}: " + ", ".join(filter(None, parts))


def reasons_of(table: RunTable) -> dict[str, int]:
    """Why intents ended early; those that ended well have no reason."""
    counts = np.bincount(table.reason[table.is_last], minlength=len(REASONS)).tolist()
    return {reason: count for reason, count in zip(REASONS, counts, strict=True) if reason and count}


def _problems(what: Run, num_open: int, figures: Figures) -> list[str]:
    scenario, which = what.scenario, f"{what.variant}, seed {what.seed}"
    problems = []
    if figures[ALL]["offered_intents"].value == 0:
        window = scenario.window
        problems.append(f"{which}: nothing was wanted from {window.from_s:g} s to {window.until_s:g} s")
    if num_open:
        problems.append(f"{which}: {num_open:,} requests had no answer {scenario.drain_s:g} s after duration_s")
    return problems
