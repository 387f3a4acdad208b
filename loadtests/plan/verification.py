"""A plan, simulated: at the size that it says, with one replica fewer, and with one that fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from rich.console import Console

from cluster.sim.faults import Fault
from cluster.sim.simulator import simulate
from engines.faults import FaultKind
from loadtests.plan.sizing.prediction import Replicas
from loadtests.results.comparison import compare
from loadtests.results.metrics import ALL, Better
from loadtests.scenario.scenario import POLICY, Scenario
from loadtests.simulation.parallel import simulate_all
from loadtests.simulation.simulation import Run, RunFailed, RunResult, run

METRICS = (
    "goodput_fraction",
    "refused_fraction",
    "goodput_tokens_per_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p99_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the simulator says of a fleet.

    Args:
        name: Which.
        is_smaller: Whether it is the plan with a replica fewer.
        keeps: Whether its SLOs are kept; :func:`keeps_slos`.
        metrics: Means over the scenario's seeds, by name; NaN where a run has too few requests to say.
    """

    name: str
    is_smaller: bool
    keeps: bool
    metrics: dict[str, float]


def sized(scenario: Scenario, replicas: Replicas, faults: tuple[Fault, ...] = ()) -> Scenario:
    """The scenario with so many replicas in its pools, one of each role, and nothing to compare it with."""
    pools = tuple(each.model_copy(update={"replicas": replicas[each.role]}) for each in scenario.fleet.pools)
    fleet = scenario.fleet.model_copy(update={"pools": pools})
    return scenario.changed(fleet=fleet, baselines={}, checks=(), episodes=(), faults=faults)


def said(replicas: Replicas) -> str:
    """A size in words: ``3 prefill, 2 decode``."""
    return ", ".join(f"{number} {role}" for role, number in replicas.items())


def verified(
    scenario: Scenario, replicas: Replicas, attained_fraction: float, jobs: int, console: Console
) -> list[Verified]:
    """Simulates a plan, with the scenario's own policies and seeds.

    Args:
        scenario: Whose pools have a role each.
        replicas: How many the plan says.
        attained_fraction: Of the requests, that are to be within their SLOs.
        jobs: Processes at a time.
        console: Shows progress.

    Returns:
        The plan, then for each role one replica fewer and one lost, where there are several.

    Raises:
        RunFailed: A simulation ended in an error.
    """
    variants = {said(replicas): sized(scenario, replicas)}
    smaller = set()
    for role, number in replicas.items():
        if number > 1:
            fewer = {**replicas, role: number - 1}
            lost = Fault(kind=FaultKind.CRASH, at_s=scenario.warm_up_s, for_s=scenario.duration_s, role=role, replica=0)
            variants[said(fewer)] = sized(scenario, fewer)
            variants[f"{said(replicas)}; one {role} lost after the warm-up"] = sized(scenario, replicas, (lost,))
            smaller.add(said(fewer))
    runs = [Run(scenario=each, variant=POLICY, seed=seed) for each in variants.values() for seed in scenario.seeds]
    results = iter(simulate_all(runs, simulated, jobs, console))
    of_each = {name: list(islice(results, len(scenario.seeds))) for name in variants}
    return [
        Verified(name=name, is_smaller=name in smaller, keeps=keeps_slos(its, attained_fraction), metrics=means(its))
        for name, its in of_each.items()
    ]


def keeps_slos(results: Sequence[RunResult], attained_fraction: float) -> bool:
    """Whether a fleet keeps its SLOs: the 95% interval of ``goodput_fraction`` over seeds begins at the part of the
    requests that is to be within them, or above; with fewer than five seeds, each of them is.
    """
    goodput = [each.metrics[ALL]["goodput_fraction"].value for each in results]
    return compare(goodput, [attained_fraction] * len(goodput), Better.HIGHER).difference.low >= 0.0


def simulated(which: Run) -> RunResult:
    """A run in virtual time.

    Raises:
        RunFailed: It ended in an error, or is invalid.
    """
    result = run(which, simulate)
    if result.problems:
        raise RunFailed("; ".join(result.problems))
    return result


def means(results: Sequence[RunResult]) -> dict[str, float]:
    """``METRICS`` over runs; NaN where a run has too few requests to say."""
    of_all = [each.metrics[ALL] for each in results]
    return {name: sum(each[name].value for each in of_all) / len(of_all) for name in METRICS}
