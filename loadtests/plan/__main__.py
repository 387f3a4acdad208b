"""Plans capacity. ``python -m loadtests.plan``."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from engines.model.profile import load_profile
from loadtests.plan.demand import demand_of
from loadtests.plan.engine import Engine
from loadtests.plan.figures import FILE, WorkedFigure, read_figures, worked_out
from loadtests.plan.figures import Group as FigureGroup
from loadtests.plan.prediction import MOST_REPLICAS, Pools, Prediction, Replicas, values_of
from loadtests.plan.prefill_decode_pools import PrefillDecodePools
from loadtests.plan.unified_pool import UnifiedPool
from loadtests.plan.verification import METRICS, Verified, said, verified
from loadtests.scenario.scenario import Scenario, load
from loadtests.simulation.simulation import RunFailed
from policies.errors import ConfigError
from policies.views import Role

Number = TypeVar("Number", int, float)
WIDTH = 150
"""Of a terminal that has none."""
EXAMPLES = """\
examples:
  python -m loadtests.plan figures
      the figures that capacity plans are made of, each with its formula, beside what is told
  python -m loadtests.plan figures mine.yaml
      your own, in a file like loadtests/plan/figures.yaml
  python -m loadtests.plan size ragged --verify
      how many replicas a scenario's users need, and the simulator on that, one fewer, and one lost
  python -m loadtests.plan size mine.yaml --attained 0.999 --dollars-per-h 2.5

exit status:
  0  it is worked out; each figure is what is told of it, as far as something is
  1  a figure is not
  2  a file can't be used, or no number of replicas is enough
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES`` for the exit status."""
    options = _parse(arguments)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=WIDTH)
    try:
        status: int = options.command(options, out, err)
    except (ConfigError, RunFailed) as error:
        err.print(f"plan: {error}", markup=False)
        return 2
    return status


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.plan",
        description="Says how many replicas a traffic needs, with the formulas that say so.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    figures = commands.add_parser("figures", help="works out figures and holds them against what is told")
    figures.add_argument("file", nargs="?", type=Path, default=FILE, help="of figures (default: those that come along)")
    figures.set_defaults(command=_figures)
    _add_size(commands.add_parser("size", help="says how many replicas a scenario's users need"))
    return parser.parse_args(arguments)


def _add_size(size: argparse.ArgumentParser) -> None:
    size.add_argument("scenario", metavar="SCENARIO", help="a name in the library, or a .yaml file")
    size.add_argument(
        "--replicas",
        type=_from_to(int, 1, MOST_REPLICAS),
        nargs="+",
        default=(),
        metavar="N",
        help="what becomes of so many, a number for each pool in the scenario's order (default: the fewest)",
    )
    size.add_argument(
        "--attained",
        type=_from_to(float, 1e-6, 1.0),
        default=0.99,
        metavar="X",
        help="part of the requests that are to be within their SLOs, up to 1 (default: 0.99)",
    )
    size.add_argument(
        "--dollars-per-h", type=_from_to(float, 0.0, 1e6), default=3.0, metavar="X", help="of a replica (default: 3)"
    )
    size.add_argument(
        "--watts", type=_from_to(float, 0.0, 1e6), default=700.0, metavar="X", help="of a replica (default: 700)"
    )
    size.add_argument(
        "--verify",
        action="store_true",
        help="simulate it with all seeds, one replica of each role fewer, and one lost; without the scenario's faults",
    )
    size.add_argument(
        "--jobs", type=_from_to(int, 1, 1024), default=os.cpu_count() or 1, metavar="N", help="processes at a time"
    )
    size.set_defaults(command=_size)


def _from_to(kind: Callable[[str], Number], least: Number, most: Number) -> Callable[[str], Number]:
    def number(text: str) -> Number:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}; allowed: {least:g} to {most:g}")
        return value

    return number


def _figures(options: argparse.Namespace, out: Console, _: Console) -> int:
    worked = [(group, list(worked_out(group))) for group in read_figures(options.file)]
    for group, figures in worked:
        out.print(_figure_table(group, figures))
    differing = [each.figure.name for _, figures in worked for each in figures if not each.is_as_said]
    num_figures = sum(len(figures) for _, figures in worked)
    out.print(f"{num_figures} figures; not as told: {', '.join(differing) or 'none'}", markup=False)
    return 1 if differing else 0


def _size(options: argparse.Namespace, out: Console, err: Console) -> int:
    scenario = load(options.scenario)
    pools = _pools_of(scenario, options)
    wanted = _wanted(scenario, options.replicas)
    found = pools.at(wanted) if wanted else pools.fewest(options.attained)
    heading = FigureGroup(
        name=f"{scenario.name}: {said(found.replicas)}; {_attained(found)}",
        about=f"{scenario.profile}; seed {scenario.seeds[0]} of the workload. What is within SLOs has margins.",
        inputs=pools.inputs,
        figures=(),
    )
    out.print(_figure_table(heading, found.figures))
    out.print(_size_table(list(_neighbours(pools, found.replicas))))
    if options.verify:
        out.print(_verified_table(scenario, verified(scenario, found.replicas, options.jobs, err)))
    return 0


def _wanted(scenario: Scenario, numbers: Sequence[int]) -> Replicas:
    roles = [each.role for each in scenario.fleet.pools]
    if numbers and len(numbers) != len(roles):
        raise ConfigError("replicas", list(numbers), f"a number for each of {', '.join(roles)}")
    return dict(zip(roles, numbers, strict=False))


def _neighbours(pools: Pools, replicas: Replicas) -> Iterator[Prediction]:
    """The same size, and of each role one fewer, one more and two more, as far as they are enough for the work."""
    yield pools.at(replicas)
    for role, number in replicas.items():
        for other in (number - 1, number + 1, number + 2):
            try:
                yield pools.at({**replicas, role: other})
            except ConfigError:  # too few for the work
                continue


def _pools_of(scenario: Scenario, options: argparse.Namespace) -> Pools:
    kinds: dict[tuple[Role, ...], type[UnifiedPool] | type[PrefillDecodePools]] = {
        (Role.UNIFIED,): UnifiedPool,
        (Role.PREFILL, Role.DECODE): PrefillDecodePools,
    }
    roles = tuple(each.role for each in scenario.fleet.pools)
    if roles not in kinds:
        allowed = "a unified pool, or a prefill and a decode pool, in this order"
        raise ConfigError("fleet.pools", list(map(str, roles)), allowed)
    fleet, profile = scenario.fleet_spec(), load_profile(scenario.profile)
    engine = Engine(
        rates=fleet.rates,
        request_s=profile.overheads.request_s,
        token_s=profile.overheads.token_s,
        kv_capacity_tokens=fleet.pools[-1].kv_capacity_tokens or profile.kv.capacity_tokens,
        max_num_seqs=fleet.pools[-1].limits.max_num_seqs,
        dollars_per_h=options.dollars_per_h,
        watts=options.watts,
    )
    return kinds[roles](demand_of(scenario, scenario.seeds[0]), engine)


def _figure_table(group: FigureGroup, figures: Iterable[WorkedFigure]) -> Group:
    inputs = ", ".join(f"{name} {_number(value)}" for name, value in group.inputs.items())
    table = _table("figure", "value", "told", "formula", "assumes")
    for each in figures:
        figure, instead = each.figure, each.figure.instead
        cells = Text(figure.name), Text(_number(each.value)), _told(each), Text(figure.formula), Text(figure.assumes)
        table.add_row(*cells)
        if instead is not None:
            name, value = f"  {instead.name or 'instead'}", _number(each.instead_value)
            table.add_row(Text(name), Text(value), "", Text(instead.formula), Text(instead.why), style="dim")
    return Group(Text(group.name, "bold"), Text(group.about), Text(inputs, "dim"), table)


def _told(worked: WorkedFigure) -> Text:
    said = worked.figure.said
    if said is None:
        return Text("")
    return Text(f"{said:,f}: equal") if worked.is_as_said else Text(f"{said:,f}: differs", "bold red")


def _attained(found: Prediction) -> str:
    return f"{found.attained_fraction:.2%} within SLOs" if found.fits else "more than engines hold"


def _size_table(predictions: Sequence[Prediction]) -> Group:
    names = ("utilisation", "kv_residency", "sequence_fraction", "tpot_s", "ttft_p50_s", "ttft_p99_s", "e2e_p99_s")
    table = _table("replicas", "predicted", *names, "dollars per million")
    for each in predictions:
        values = values_of(each.figures)
        cells = [_number(values[name]) for name in (*names, "dollars_per_million_tokens")]
        table.add_row(said(each.replicas), _attained(each), *cells)
    return Group(Text("that size and its neighbours, predicted", "bold"), table)


def _verified_table(scenario: Scenario, found: Sequence[Verified]) -> Group:
    table = _table("simulated", *METRICS)
    for each in found:
        table.add_row(each.name, *(_number(each.metrics[name]) for name in METRICS))
    return Group(Text(f"simulated, with the scenario's policies, {len(scenario.seeds)} seeds", "bold"), table)


def _table(first: str, *others: str) -> Table:
    prose = {"formula": 3, "assumes": 2}
    table = Table(box=box.SIMPLE_HEAD, expand="formula" in others, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(
            name, ratio=prose.get(name), no_wrap=name not in prose, justify="left" if name in prose else "right"
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
