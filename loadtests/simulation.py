"""One simulated run of a scenario, from its specification to its figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Protocol

import numpy as np

from cluster.clock import MonotonicClock
from cluster.faults import Fault
from cluster.run_table import OUTCOMES, REASONS, RunTable
from cluster.seeds import Seeds
from cluster.topology import FleetSpec
from cluster.traffic import Arrival, PlannedRequest, Traffic
from loadtests.analysis import analyse
from loadtests.clients import AbandonedIntent, Clients
from loadtests.metrics import ALL, Figures
from loadtests.scenario import Scenario
from routing.assembly import DispatcherSpec
from routing.effects import Outcome


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
        num_requests: Tries that were simulated, the warm-up's included.
        wall_s: Time that it took.
    """

    run: Run
    figures: Figures
    problems: tuple[str, ...]
    num_requests: int
    wall_s: float


class CountedTraffic:
    """Counts how many requests have been sent and not ended: a run that ends too early leaves no trace of those.

    Args:
        traffic: The clients.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self.num_open = 0

    def arrivals(self) -> Iterator[Arrival]:
        for arrival in self._traffic.arrivals():
            self.num_open += 1
            yield arrival

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        following = self._traffic.on_end(request, outcome, now_s)
        self.num_open += len(following) - 1
        return following


def run(what: Run, simulate: Simulate) -> RunResult:
    """Simulates and analyses; a pure function of the run but for the time it takes.

    Raises:
        ConfigError: The scenario's trace or profile can't be read.
    """
    clock = MonotonicClock()
    began_s = clock.now_s()
    scenario = what.scenario
    clients = Clients(scenario.workload.build(scenario.duration_s), Seeds(what.seed), scenario.clients)
    traffic = CountedTraffic(clients)
    table = simulate(
        scenario.fleet_spec(),
        scenario.dispatcher_spec(what.variant),
        traffic,
        scenario.workload.class_names,
        seed=what.seed,
        until_s=scenario.duration_s + scenario.drain_s,
        faults=scenario.faults,
    )
    complete = with_abandoned(table, clients.abandoned)
    figures = analyse(complete, scenario.slos, scenario.window)
    return RunResult(
        run=what,
        figures=figures,
        problems=tuple(_problems(what, traffic.num_open, figures)),
        num_requests=len(table),
        wall_s=clock.now_s() - began_s,
    )


def with_abandoned(table: RunTable, abandoned: Sequence[AbandonedIntent]) -> RunTable:
    """The table with a row for each intent that was never sent; only the clients know of those."""
    if not abandoned:
        return table
    extra = RunTable(
        traffic_classes=table.traffic_classes,
        intent=np.array([each.intent for each in abandoned], dtype=np.int64),
        is_last=np.ones(len(abandoned), dtype=np.bool_),
        try_index=np.zeros(len(abandoned), dtype=np.int16),
        traffic_class=np.array([each.traffic_class for each in abandoned], dtype=np.int16),
        scheduled_s=np.array([each.scheduled_s for each in abandoned], dtype=np.float64),
        sent_s=np.full(len(abandoned), nan),
        first_token_s=np.full(len(abandoned), nan),
        end_s=np.array([each.abandoned_s for each in abandoned], dtype=np.float64),
        prompt_tokens=np.array([each.prompt_tokens for each in abandoned], dtype=np.int32),
        output_tokens=np.zeros(len(abandoned), dtype=np.int32),
        outcome=np.full(len(abandoned), OUTCOMES.index("abandoned"), dtype=np.int8),
        reason=np.full(len(abandoned), REASONS.index(""), dtype=np.int8),
        attempts=np.zeros(len(abandoned), dtype=np.int16),
    )
    columns = [name for name in RunTable.__slots__ if isinstance(getattr(table, name), np.ndarray)]
    return replace(table, **{name: np.concatenate((getattr(table, name), getattr(extra, name))) for name in columns})


def _problems(what: Run, num_open: int, figures: Figures) -> list[str]:
    scenario, which = what.scenario, f"{what.variant}, seed {what.seed}"
    problems = []
    if figures[ALL]["offered_intents"].value == 0:
        window = scenario.window
        problems.append(f"{which}: nothing was wanted from {window.from_s:g} s to {window.until_s:g} s")
    if num_open:
        problems.append(f"{which}: {num_open:,} requests had no answer {scenario.drain_s:g} s after duration_s")
    return problems
