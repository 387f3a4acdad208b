"""Random faults of every kind in virtual time, and whether all that must hold does.

``python -m loadtests.simulate_faults``

A seed draws a small fleet, its policies, its traffic and what goes wrong: crashes, engines that fail, refuse, stand
still or are slow, KV that is dropped, gateways that die or stand still, partitions and slow networks between gateways
and replicas, a load coordinator that dies, reloads, requests that kill their replicas, and gateways whose clocks differ
and drift. A run that breaks an invariant is made again from its seed, and shrunk to the shortest script that still
breaks one.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from loadtests.fault_simulation.fault_run import FaultRun, run
from loadtests.fault_simulation.fault_script import CLOCKS, KINDS, FaultScript, draw
from loadtests.fault_simulation.planted_bugs import PLANTED
from loadtests.fault_simulation.shrinking import shrink
from loadtests.simulation.parallel import simulate_all

REQUESTS_OF_A_SEED = 300
MOST_SEEDS = 100
"""A planted bug that takes more is not found."""
WIDTH = 110
"""Of a table that nobody sees in a terminal."""
MOST_SHOWN = 3
"""Of broken seeds the first ones are shrunk."""
EXAMPLES = """\
examples:
  python -m loadtests.simulate_faults --requests 1000000
      a million requests, and whether three bugs that are put in on purpose are found
  python -m loadtests.simulate_faults --seed 1234
      one seed, as a run has named it: what it breaks, and the shortest script that breaks it
  python -m loadtests.simulate_faults --first-seed 100001 --requests 50000
      other seeds than before

exit status:
  0  everything holds, and every planted bug is found
  1  something does not hold, or a planted bug is not found
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Says what it did; returns the exit status."""
    given = _parser().parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)
    if given.seed is not None:
        found = run(draw(given.seed, REQUESTS_OF_A_SEED))
        return _show_broken(console, [found]) if found.violations else _show_held(console, [found])
    missed = [name for name in PLANTED if not _finds(console, name)]
    number = -(-given.requests // REQUESTS_OF_A_SEED)
    scripts = [draw(seed, REQUESTS_OF_A_SEED) for seed in range(given.first_seed, given.first_seed + number)]
    runs = simulate_all(scripts, run, given.jobs, console)
    _show_coverage(console, runs)
    broken = [each for each in runs if each.violations]
    status = _show_broken(console, broken) if broken else _show_held(console, runs)
    return status or int(bool(missed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.simulate_faults",
        description="Random faults of every kind in virtual time: does everything hold that must?",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--requests", type=_at_least_one, default=100_000, metavar="N", help="so many at least (default: 100,000)")
    add("--first-seed", type=_at_least_one, default=1, metavar="SEED", help="seeds count from here (default: 1)")
    add("--seed", type=_at_least_one, metavar="SEED", help="this one alone, shrunk if it breaks anything")
    cores = os.cpu_count() or 1
    add(
        "--jobs",
        type=_at_least_one,
        default=cores,
        metavar="N",
        help=f"processes at a time (default: {cores}, the cores)",
    )
    return parser


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: 1 or more")
    return value


def _finds(console: Console, name: str) -> bool:
    """Whether a planted bug breaks an invariant; prints the seed and the shortest script."""
    with PLANTED[name]():
        for seed in range(1, MOST_SEEDS + 1):
            script = draw(seed, REQUESTS_OF_A_SEED)
            if run(script).violations:
                shortest = shrink(script, _is_broken)
                console.print(f"planted: {name}: found with seed {seed}: {run(shortest).violations[0]}")
                _show_script(console, shortest)
                return True
    console.print(f"planted: {name}: NOT FOUND with seeds 1 to {MOST_SEEDS}")
    return False


def _is_broken(script: FaultScript) -> bool:
    return bool(run(script).violations)


def _show_broken(console: Console, broken: Sequence[FaultRun]) -> int:
    for each in broken[:MOST_SHOWN]:
        console.print(f"seed {each.script.seed} breaks:", *each.violations, sep="\n  ")
        shortest = shrink(each.script, _is_broken)
        console.print("the shortest script that breaks anything:", *run(shortest).violations, sep="\n  ")
        _show_script(console, shortest)
    seeds = ", ".join(str(each.script.seed) for each in broken)
    console.print(
        f"FAIL: {len(broken):,} seeds break something: {seeds}; python -m loadtests.simulate_faults --seed SEED"
    )
    return 1


def _show_held(console: Console, runs: Sequence[FaultRun]) -> int:
    number = sum(each.num_requests for each in runs)
    console.print(f"PASS: {number:,} requests in {len(runs):,} runs, 0 violations")
    return 0


def _show_script(console: Console, script: FaultScript) -> None:
    console.print(msgspec.yaml.encode(script).decode().rstrip())


def _show_coverage(console: Console, runs: Sequence[FaultRun]) -> None:
    """How often each kind of fault was there, and what followed."""
    hit: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for each in runs:
        hit += each.hit
        outcomes += each.outcomes
        seen += each.seen
    table = Table(box=None, pad_edge=False)
    for title in ("fault", "outcome of a request", "told or decided"):
        table.add_column(title, no_wrap=True)
        table.add_column("times", justify="right")
    columns = [
        [(kind, hit[kind]) for kind in (*KINDS, CLOCKS)],
        sorted(outcomes.items(), key=lambda each: -each[1]),
        sorted(seen.items(), key=lambda each: -each[1]),
    ]
    for row in range(max(map(len, columns))):
        cells = [column[row] if row < len(column) else ("", 0) for column in columns]
        table.add_row(*(text for name, number in cells for text in (str(name), f"{number:,}" if name else "")))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
