"""How long a dispatcher takes for a request that arrives, for every balancer of the catalog.

``python -m loadtests.studies.microbench.decision_bench [BALANCER ...] [--rounds N]``

Every round is one ``Dispatcher.handle(Arrived)`` between two looks at the clock, on a dispatcher that is busy
(:mod:`loadtests.studies.microbench.busy_dispatcher`); the table has medians. Cases take turns, a few hundred rounds
each, so that a busy machine slows all of them down alike, and the lowest median of a case is shown: other work only
adds to it.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from itertools import product

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cluster.clock import Clock, MonotonicClock
from loadtests.studies.microbench.busy_dispatcher import BusyDispatcher, DecisionCase
from policies.catalog import CATALOG

REPLICAS = (8, 64, 512)
LANES = (1, 2)
GOAL_REPLICAS = 64
ROUNDS = 400
TURNS = 5

Medians = dict[DecisionCase, float]
"""Microseconds."""


def goal_us(case: DecisionCase) -> float:
    """What an arrival may take with 64 replicas."""
    return 150.0 if case.needs_prefixes else 50.0


def measure(
    cases: Sequence[DecisionCase], clock: Clock, rounds: int, on_turn: Callable[[], object] = lambda: None
) -> Medians:
    """The lowest of a few medians for each case, in microseconds."""
    busy = {case: BusyDispatcher(case) for case in cases}
    medians_us: Medians = {}
    for _, case in product(range(TURNS), cases):
        median_us = 1e6 * _median_s(busy[case], clock, rounds)
        medians_us[case] = min(median_us, medians_us.get(case, median_us))
        on_turn()
    return medians_us


def _median_s(busy: BusyDispatcher, clock: Clock, rounds: int) -> float:
    took_s = []
    for _ in range(rounds):
        arrival, now_s = busy.next_arrival()
        began_s = clock.now_s()
        busy.handle(arrival, now_s)
        took_s.append(clock.now_s() - began_s)
    return statistics.median(took_s)


def table_of(medians_us: Medians) -> Table:
    """One balancer and one number of lanes a line."""
    table = Table(title="microseconds for an arrival, median", box=None)
    table.add_column("balancer")
    table.add_column("lanes", justify="right")
    for replicas in REPLICAS:
        table.add_column(f"{replicas} replicas", justify="right")
    table.add_column(f"goal at {GOAL_REPLICAS}", justify="right")
    table.add_column("")
    for balancer, lanes in dict.fromkeys((case.balancer, case.lanes) for case in medians_us):
        row = [medians_us[DecisionCase(balancer, replicas, lanes)] for replicas in REPLICAS]
        at_goal = DecisionCase(balancer, GOAL_REPLICAS, lanes)
        verdict = "met" if medians_us[at_goal] <= goal_us(at_goal) else "missed"
        cells = [f"{each:.1f}" for each in row]
        table.add_row(balancer, "none" if lanes == 1 else str(lanes), *cells, f"<= {goal_us(at_goal):g}", verdict)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints; the exit status is 0 whatever the machine was doing."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.microbench.decision_bench", description=__doc__.partition("\n")[0]
    )
    known = sorted(CATALOG["balancing"])
    parser.add_argument("balancers", nargs="*", metavar="BALANCER", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="arrivals in a turn (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.balancers) - set(known))
    if unknown or chosen.rounds < 1:
        parser.error(f"no balancer of the catalog: {unknown}" if unknown else "--rounds: at least 1")
    balancers = chosen.balancers or known
    cases = [DecisionCase(*case) for case in product(balancers, REPLICAS, LANES)]
    shown = Console(stderr=True)
    with Progress(console=shown, disable=not shown.is_terminal, transient=True) as progress:
        task = progress.add_task("measuring", total=TURNS * len(cases))
        medians_us = measure(cases, MonotonicClock(), chosen.rounds, lambda: progress.advance(task))
    Console(width=100).print(table_of(medians_us))


if __name__ == "__main__":
    main()
