"""Plans capacity. ``python -m loadtests.plan``."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from loadtests.plan.deployment import LIKE, deployment_document, deployment_text, write
from loadtests.plan.figures import FILE, Group, read_figures, worked_out
from loadtests.plan.fleet_search import candidates_of
from loadtests.plan.price_front import front_figure, price_front
from loadtests.plan.recommendation import Recommendation, recommended, search_all
from loadtests.plan.sizing.pools import pools_of
from loadtests.plan.sizing.prediction import MOST_REPLICAS, Pools, Prediction, Replicas
from loadtests.plan.tables import attained, cheapest_table, figure_table, front_table, size_table, verified_table
from loadtests.plan.verification import said, verified
from loadtests.scenario.scenario import Scenario, load
from loadtests.simulation.compiled.build import CompilationFailed, is_compiled, rerun
from loadtests.simulation.simulation import RunFailed
from policies.errors import ConfigError

Number = TypeVar("Number", int, float)
FOLDER = Path(".run/plan")
"""Of what is recommended."""
DOLLARS_PER_H = 3.0
"""Of a replica, where no price is given."""
WIDTH = 165
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
  python -m loadtests.plan recommend mine.yaml
      of the policies and pools of a scenario and of its baselines, the cheapest fleet in the simulator that keeps the
      SLOs, what more money would buy, and a deployment to start
  python -m loadtests.plan recommend mine.yaml --engine h100-llama3-8b=3 mine-on-l40s.yaml=0.9
      the same on two engines, with the price of a replica an hour

exit status:
  0  it is worked out; each figure is what is told of it, as far as something is; what is recommended is proven
  1  a figure is not; or the fleet that is recommended misses its SLOs on other seeds, or a smaller one keeps them
  2  a file can't be used, or no number of replicas is enough
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES`` for the exit status."""
    options = _parse(arguments)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    if not out.is_terminal:
        out = Console(highlight=False, width=WIDTH)
    try:
        if getattr(options, "compiled", False) and not is_compiled():
            given = sys.argv[1:] if arguments is None else arguments  # a file beside the sources is named by its path
            rerun("loadtests.plan", [*given, "--like", str(options.like)])
        status: int = options.command(options, out, err)
    except (ConfigError, RunFailed, CompilationFailed) as error:
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
    _add_recommend(commands.add_parser("recommend", help="finds the cheapest fleet that keeps SLOs, by simulation"))
    return parser.parse_args(arguments)


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("scenario", metavar="SCENARIO", help="a name in the library, or a .yaml file")
    command.add_argument(
        "--attained",
        type=_from_to(float, 1e-6, 1.0),
        default=0.99,
        metavar="X",
        help="part of the requests that are to be within their SLOs, up to 1 (default: 0.99)",
    )
    command.add_argument(
        "--jobs", type=_from_to(int, 1, 1024), default=os.cpu_count() or 1, metavar="N", help="processes at a time"
    )


def _add_size(size: argparse.ArgumentParser) -> None:
    _add_common(size)
    size.add_argument(
        "--replicas",
        type=_from_to(int, 1, MOST_REPLICAS),
        nargs="+",
        default=(),
        metavar="N",
        help="what becomes of so many, a number for each pool in the scenario's order (default: the fewest)",
    )
    size.add_argument(
        "--dollars-per-h", type=_from_to(float, 0.0, 1e6), default=DOLLARS_PER_H, metavar="X", help="of a replica"
    )
    size.add_argument(
        "--watts", type=_from_to(float, 0.0, 1e6), default=700.0, metavar="X", help="of a replica (default: 700)"
    )
    size.add_argument(
        "--verify",
        action="store_true",
        help="simulate it with all seeds, one replica of each role fewer, and one lost; without the scenario's faults",
    )
    size.set_defaults(command=_size)


def _add_recommend(recommend: argparse.ArgumentParser) -> None:
    _add_common(recommend)
    recommend.add_argument(
        "--variant", nargs="+", metavar="NAME", help="of the scenario's policies and baselines (default: all)"
    )
    recommend.add_argument(
        "--engine",
        type=_engine,
        nargs="+",
        default=(),
        metavar="PROFILE=DOLLARS",
        help=f"engines, and a replica's price an hour (default: the scenario's profile, {DOLLARS_PER_H:g})",
    )
    recommend.add_argument(
        "--like", type=Path, default=LIKE, metavar="FILE", help="the deployment whose model, engines and ports it has"
    )
    recommend.add_argument(
        "--output", type=Path, metavar="FILE", help=f"of the deployment to start (default: {FOLDER}/SCENARIO.yaml)"
    )
    recommend.add_argument(
        "--figure", type=Path, metavar="FILE", help=f"of goodput over price (default: {FOLDER}/SCENARIO.html)"
    )
    recommend.add_argument(
        "--compiled",
        action="store_true",
        help="compile the simulator first, if need be; same results in a third of the time",
    )
    recommend.set_defaults(command=_recommend)


def _engine(text: str) -> tuple[str, float]:
    profile, _, dollars = text.rpartition("=")
    if not profile:
        raise argparse.ArgumentTypeError(f"{text}; allowed: a profile and a price, as in h100-llama3-8b=3")
    return profile, _from_to(float, 0.0, 1e6)(dollars)


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
        out.print(figure_table(group, figures))
    differing = [each.figure.name for _, figures in worked for each in figures if not each.is_as_said]
    num_figures = sum(len(figures) for _, figures in worked)
    out.print(f"{num_figures} figures; not as told: {', '.join(differing) or 'none'}", markup=False)
    return 1 if differing else 0


def _size(options: argparse.Namespace, out: Console, err: Console) -> int:
    scenario = load(options.scenario)
    pools = pools_of(scenario, dollars_per_h=options.dollars_per_h, watts=options.watts)
    wanted = _wanted(scenario, options.replicas)
    found = pools.at(wanted) if wanted else pools.fewest(options.attained)
    heading = Group(
        name=f"{scenario.name}: {said(found.replicas)}; {attained(found)}",
        about=f"{scenario.profile}; seed {scenario.seeds[0]} of the workload. What is within SLOs has margins.",
        inputs=pools.inputs,
        figures=(),
    )
    out.print(str(found.binds), markup=False)
    out.print(figure_table(heading, found.figures))
    out.print(size_table(list(_neighbours(pools, found.replicas))))
    if options.verify:
        title = f"simulated, with the scenario's policies, {len(scenario.seeds)} seeds"
        proof = verified(scenario, found.replicas, options.attained, options.jobs, err)
        out.print(verified_table(title, proof))
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


def _recommend(options: argparse.Namespace, out: Console, err: Console) -> int:
    scenario = load(options.scenario)
    engines = dict(options.engine) or {scenario.profile: DOLLARS_PER_H}
    candidates = candidates_of(scenario, options.variant or list(scenario.variants), engines)
    for each in candidates:
        deployment_document(each, each.replicas((1,) * len(each.scenario.fleet.pools)), options.like)
    found = search_all(candidates, options.attained, options.jobs, err)
    out.print(cheapest_table(found, options.attained))
    best = recommended(found, options.attained, options.jobs, err)
    trials = [trial for each in found for trial in each.trials]
    out.print(front_table(price_front(trials)))
    out.print(verified_table("the cheapest of all, on seeds that the search did not see", best.verified))
    figure = options.figure or FOLDER / f"{scenario.name}.html"
    output = options.output or FOLDER / f"{scenario.name}.yaml"
    about = _about(scenario, best)
    document = deployment_document(best.candidate, best.trial.replicas, options.like)
    write(output, deployment_text(document, f"{about}."))
    write(figure, front_figure(trials, options.attained, best.trial).to_html())
    out.print(f"recommended: {about}", markup=False)
    out.print(f"its deployment: {output}; goodput over price: {figure}", markup=False)
    return 0 if best.is_proven else 1


def _about(scenario: Scenario, best: Recommendation) -> str:
    trial, candidate = best.trial, best.candidate
    what = f"{said(trial.replicas)} replicas on {candidate.scenario.profile} for the users of {scenario.name}"
    return (
        f"{candidate.name}, {what}: {trial.goodput_fraction:.2%} within SLOs, {trial.dollars_per_h:g} dollars an hour"
    )


if __name__ == "__main__":
    sys.exit(main())
