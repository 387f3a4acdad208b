"""A plan, simulated: at the size that it says, with one replica fewer, and with one that fails."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from cluster.sim.faults import Fault
from cluster.sim.simulator import simulate
from engines.faults import FaultKind
from loadtests.plan.prediction import Replicas
from loadtests.results.metrics import ALL
from loadtests.scenario.scenario import POLICY, Scenario
from loadtests.simulation.parallel import simulate_all
from loadtests.simulation.simulation import Run, RunFailed, RunResult, run

METRICS = ("goodput_fraction", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the simulator says of a fleet.

    Args:
        name: Which.
        metrics: Means over the scenario's seeds, by name; NaN where a run has too few requests to say.
    """

    name: str
    metrics: dict[str, float]


def sized(scenario: Scenario, replicas: Replicas, faults: tuple[Fault, ...] = ()) -> Scenario:
    """The scenario with so many replicas in its pools, one of each role, and nothing to compare it with."""
    pools = tuple(each.model_copy(update={"replicas": replicas[each.role]}) for each in scenario.fleet.pools)
    fleet = scenario.fleet.model_copy(update={"pools": pools})
    return scenario.changed(fleet=fleet, baselines={}, checks=(), episodes=(), faults=faults)


def said(replicas: Replicas) -> str:
    """A size in words: ``3 prefill, 2 decode``."""
    return ", ".join(f"{number} {role}" for role, number in replicas.items())


def verified(scenario: Scenario, replicas: Replicas, jobs: int, console: Console) -> list[Verified]:
    """Simulates a plan, with the scenario's own policies and seeds.

    Args:
        scenario: Whose pools have a role each.
        replicas: How many the plan says.
        jobs: Processes at a time.
        console: Shows progress.

    Raises:
        RunFailed: A simulation ended in an error.
    """
    variants = {said(replicas): sized(scenario, replicas)}
    for role, number in replicas.items():
        if number > 1:
            fewer = {**replicas, role: number - 1}
            lost = Fault(kind=FaultKind.CRASH, at_s=scenario.warm_up_s, for_s=scenario.duration_s, role=role, replica=0)
            variants[said(fewer)] = sized(scenario, fewer)
            variants[f"{said(replicas)}; one {role} lost after the warm-up"] = sized(scenario, replicas, (lost,))
    runs = [Run(scenario=each, variant=POLICY, seed=seed) for each in variants.values() for seed in scenario.seeds]
    results = simulate_all(runs, _simulated, jobs, console)
    per_variant = len(scenario.seeds)
    return [
        Verified(name=name, metrics=_means(results[index * per_variant : (index + 1) * per_variant]))
        for index, name in enumerate(variants)
    ]


def _simulated(which: Run) -> RunResult:
    result = run(which, simulate)
    if result.problems:
        raise RunFailed("; ".join(result.problems))
    return result


def _means(results: Sequence[RunResult]) -> dict[str, float]:
    of_all = [each.metrics[ALL] for each in results]
    return {name: sum(each[name].value for each in of_all) / len(of_all) for name in METRICS}
