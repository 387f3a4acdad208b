"""How fast the simulator is: simulated requests per second of wall clock, with the full dispatcher.

``python -m loadtests.run_sim --bench`` runs it. Every run is a process of its own, so that its peak memory is its own;
fleets of different sizes take turns, so that a busy machine slows all of them down alike.
"""

import resource
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cluster.clock import MonotonicClock
from cluster.seeds import Seeds
from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec, PoolSpec
from engines.model.profile import load_profile
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.clients import Clients
from loadtests.workloads.lengths import EMPIRICAL
from loadtests.workloads.workload import TrafficClass, Workload
from policies.catalog import PolicyChoice
from policies.views import Role
from routing.config.spec import DispatcherSpec

PROFILE = "h100-llama3-8b"
REQUESTS_PER_S_AND_PAIR = 10.0
"""For each prefill and decode replica: about three quarters of what the pair can do."""
GOALS_REQUESTS_PER_S = {8: 20_000, 256: 12_000}
"""Of a compiled simulator, by replicas a pool; judged by the slowest run."""
FLOOR_REQUESTS_PER_S = 5_000
"""Of any simulator, by the median."""


@dataclass(frozen=True, slots=True)
class SimBenchCase:
    """One fleet and how many requests it gets.

    Args:
        replicas: In each of the two pools.
        num_requests: About how many; arrivals are random.
    """

    replicas: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class SimBenchTimes:
    """What one run took.

    Args:
        num_requests: Requests that it simulated.
        wall_s: Real time.
        virtual_s: Simulated time.
        peak_bytes: Most memory that its process had.
        start_bytes: Memory that the process had before the run: the interpreter and the libraries.
    """

    num_requests: int
    wall_s: float
    virtual_s: float
    peak_bytes: int
    start_bytes: int


CASES = (SimBenchCase(8, 40_000), SimBenchCase(64, 80_000), SimBenchCase(256, 160_000))
BIG = SimBenchCase(8, 1_000_000)


def measure(case: SimBenchCase) -> SimBenchTimes:
    """Simulates one case; a process of its own calls it once."""
    profile = load_profile(PROFILE)
    pools = tuple(
        PoolSpec(role=role, replicas=case.replicas, profile=profile, limits=profile.limits())
        for role in (Role.PREFILL, Role.DECODE)
    )
    fleet = FleetSpec(pools=pools)
    rate_per_s = REQUESTS_PER_S_AND_PAIR * case.replicas
    traffic_class = TrafficClass(
        name="chat",
        arrivals=Poisson(rate_per_s=rate_per_s),
        prompt_tokens=EMPIRICAL["azure-conv-prompt"],
        output_tokens=EMPIRICAL["azure-conv-output"],
        max_output_tokens=EMPIRICAL["azure-conv-output"],
        timeout_s=600.0,
    )
    workload = Workload(classes=(traffic_class,), duration_s=case.num_requests / rate_per_s)
    dispatcher = DispatcherSpec(planner=PolicyChoice(name="always_disaggregated"), pools=fleet.roles_by_pool)
    clock, start_bytes = MonotonicClock(), _peak_bytes()
    began_s = clock.now_s()
    table = simulate(fleet, dispatcher, Clients(workload, Seeds(1)), workload.class_names, seed=1)
    return SimBenchTimes(len(table), clock.now_s() - began_s, table.duration_s, _peak_bytes(), start_bytes)


def run_bench(console: Console, rounds: int = 3) -> int:
    """Measures all cases in turn and prints a table; the exit status says whether the floor is kept."""
    measured: dict[SimBenchCase, list[SimBenchTimes]] = {case: [] for case in (*CASES, BIG)}
    order = [*CASES] * rounds + [BIG]
    progress_console = Console(stderr=True)
    with Progress(console=progress_console, disable=not progress_console.is_terminal, transient=True) as progress:
        for case in progress.track(order, description="simulating"):
            measured[case].append(_in_a_process(case))
    wide = console if console.is_terminal else Console(width=120)
    wide.print(_table(measured))
    medians = [statistics.median(_rates(measured[case])) for case in CASES]
    console.print(_verdict({case.replicas: min(_rates(measured[case])) for case in CASES}, medians))
    return int(min(medians) < FLOOR_REQUESTS_PER_S)


def _in_a_process(case: SimBenchCase) -> SimBenchTimes:
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, case).result()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _table(measured: dict[SimBenchCase, list[SimBenchTimes]]) -> Table:
    table = Table(title=f"{PROFILE}, least_work_left, always_disaggregated, one gateway, one core", box=None)
    for name in (
        "prefill + decode",
        "requests",
        "requests/s (range)",
        "us/request",
        "x real time",
        "peak MiB",
        "of the run",
    ):
        table.add_column(name, justify="right")
    for case, runs in measured.items():
        rates = _rates(runs)
        last = runs[-1]
        table.add_row(
            f"{case.replicas} + {case.replicas}",
            f"{last.num_requests:,}",
            f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
            f"{1e6 / statistics.median(rates):.1f}",
            f"{statistics.median(each.virtual_s / each.wall_s for each in runs):,.0f}",
            f"{last.peak_bytes / 2**20:.0f}",
            f"{(last.peak_bytes - last.start_bytes) / 2**20:.0f}",
        )
    return table


def _verdict(slowest: Mapping[int, float], medians: Sequence[float]) -> str:
    """In requests per second: the slowest runs by replicas a pool, and medians, the smallest fleet's first."""
    judged = (
        f"goal of {goal:,} requests/s at {replicas} + {replicas} {'met' if slowest[replicas] >= goal else 'missed'}"
        for replicas, goal in GOALS_REQUESTS_PER_S.items()
    )
    ratio = medians[-1] / medians[0]
    floor = "kept" if min(medians) >= FLOOR_REQUESTS_PER_S else "BROKEN"
    return (
        f"{', '.join(judged)}; floor of {FLOOR_REQUESTS_PER_S:,} {floor}; "
        f"{CASES[-1].replicas} replicas a pool run at {ratio:.2f} of the speed of {CASES[0].replicas}"
    )


def _rates(runs: Sequence[SimBenchTimes]) -> list[float]:
    return [each.num_requests / each.wall_s for each in runs]
