"""A plan, simulated: at the size that it says, with one replica fewer, and with one that fails."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from cluster.sim.faults import Fault
from cluster.sim.simulator import simulate
from engines.faults import FaultKind
from loadtests.results.metrics import ALL
from loadtests.scenario.scenario import POLICY, Scenario
from loadtests.simulation.parallel import simulate_all
from loadtests.simulation.simulation import Run, RunFailed, RunResult, run
from policies.views import Role

METRICS = ("goodput_fraction", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the simulator says of a pool of some size.

    Args:
        name: Which.
        metrics: Means over the scenario's seeds, by name; NaN where a run has too few requests to say.
    """

    name: str
    metrics: dict[str, float]


def sized(scenario: Scenario, replicas: int, faults: tuple[Fault, ...] = ()) -> Scenario:
    """The scenario with so many replicas in its one pool, and nothing to compare it with."""
    (pool,) = scenario.fleet.pools
    fleet = scenario.fleet.model_copy(update={"pools": (pool.model_copy(update={"replicas": replicas}),)})
    return scenario.changed(fleet=fleet, baselines={}, checks=(), episodes=(), faults=faults)


def verified(scenario: Scenario, replicas: int, jobs: int, console: Console) -> list[Verified]:
    """Simulates a plan, with the scenario's own policies and seeds.

    Args:
        scenario: With one pool of unified replicas.
        replicas: How many the plan says.
        jobs: Processes at a time.
        console: Shows progress.

    Raises:
        RunFailed: A simulation ended in an error.
    """
    lost = Fault(kind=FaultKind.CRASH, at_s=scenario.warm_up_s, for_s=scenario.duration_s, role=Role.UNIFIED, replica=0)
    variants = {f"{replicas} replicas": sized(scenario, replicas)}
    if replicas > 1:
        variants[f"{replicas - 1} replicas"] = sized(scenario, replicas - 1)
        variants[f"{replicas}, one lost after the warm-up"] = sized(scenario, replicas, (lost,))
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
