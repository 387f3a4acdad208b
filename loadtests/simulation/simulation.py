"""One simulated run of a scenario, from its specification to its metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan
from traceback import format_tb
from typing import Protocol

from cluster.clock import MonotonicClock
from cluster.seeds import Seeds
from cluster.sim.faults import AnyFault
from cluster.sim.run_table import RunTable
from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Arrival, PlannedRequest, Traffic
from loadtests.results.metrics import ALL, RunMetrics
from loadtests.scenario.scenario import Scenario
from loadtests.simulation.ideal_cache import ideal_hit_fraction, prompt_cache_tokens
from loadtests.simulation.run_metrics import metrics_of, reasons_of, trace_notes, with_abandoned
from loadtests.workloads.clients import Clients
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
        faults: Sequence[AnyFault],
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
        metrics: Every metric.
        problems: Why the run is invalid, a sentence each; empty for a valid run.
        notes: What a reader has to know of the workload, such as rows of a trace that were dropped.
        reasons: How many logical requests ended early, by reason, over the whole run.
        num_requests: Requests that were simulated, the warm-up's included.
        wall_s: Time that it took.
    """

    run: Run
    metrics: RunMetrics
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


class _WatchedTraffic:
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
        keep: Is given the table, abandoned logical requests included.

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
    traffic = _WatchedTraffic(clients)
    fleet = scenario.fleet_spec(what.variant)
    table = simulate(
        fleet,
        scenario.dispatcher_spec(what.variant),
        traffic,
        scenario.workload.class_names,
        seed=what.seed,
        until_s=scenario.duration_s + scenario.drain_s,
        faults=(*scenario.all_faults(what.variant, what.seed), *scenario.load_coordinator_outages),
    )
    complete = with_abandoned(table, clients.abandoned)
    keep(what, complete)
    ideal_fraction = traffic.ideal_hit_fraction(fleet)
    metrics = metrics_of(scenario, complete, ideal_fraction)
    return RunResult(
        run=what,
        metrics=metrics,
        problems=tuple(_problems(what, traffic.num_open, metrics)),
        notes=tuple(trace_notes(workload, Seeds(what.seed))),
        reasons=reasons_of(complete),
        num_requests=len(table),
        wall_s=clock.now_s() - began_s,
    )


def _problems(what: Run, num_open: int, metrics: RunMetrics) -> list[str]:
    scenario, which = what.scenario, f"{what.variant}, seed {what.seed}"
    problems = []
    if metrics[ALL]["offered_requests"].value == 0:
        window = scenario.window
        problems.append(f"{which}: nothing was wanted from {window.from_s:g} s to {window.until_s:g} s")
    if num_open:
        problems.append(f"{which}: {num_open:,} requests had no answer {scenario.drain_s:g} s after duration_s")
    return problems
