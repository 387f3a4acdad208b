"""Runs scenarios in virtual time and prints policy against baseline in one table.

``python -m loadtests.run_sim [scenario ...]``
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cluster.sim.simulator import simulate as simulate_for_real
from loadtests.lab.lab_scenario import LabScenario
from loadtests.lab.sweep_report import metrics_shown, print_sweep, write_sweeps
from loadtests.lab.sweeping import sweep
from loadtests.scenario.fields import axis, setting
from loadtests.scenario.policy_settings import QUESTIONS, policy_setting
from loadtests.scenario.scenario import LIBRARY, POLICY, Scenario, library, load
from loadtests.simulation.compiled.build import CompilationFailed, is_compiled, rerun
from loadtests.simulation.parallel import simulate_all
from loadtests.simulation.result_table import render
from loadtests.simulation.results_file import check_can_be_written, write_results
from loadtests.simulation.save_folder import make_folder
from loadtests.simulation.saved_simulation import save_records, save_requests
from loadtests.simulation.simulation import KeepRun, Run, RunFailed, RunResult, Simulate, discard, run
from loadtests.simulation.verdict import ScenarioReport, Verdict, overall, report
from loadtests.studies.microbench.sim_bench import run_bench
from policies.errors import ConfigError
from routing.config.combinations import losing

EXAMPLES = """\
examples:
  python -m loadtests.run_sim --list
      the scenarios in the library and the questions they answer
  python -m loadtests.run_sim
      every one of them but the long ones: is each claim still true?
  python -m loadtests.run_sim ragged my/own.yaml --seeds 10
      one from the library and one of your own, on seeds 1 to 10
  python -m loadtests.run_sim ragged --policy balancing=my_package.my_module:MyBalancer
      your policy in the place of the scenario's; baselines that don't say what balances get it too
  python -m loadtests.run_sim ragged-lanes --policy lanes.guard=backlog --policy lanes.guard.params.off_ratio=0.5
      another guard for the scenario's lanes, and one of its parameters
  python -m loadtests.run_sim ragged --policy balancing=power_of_two --json results.json
      another policy of the catalog; every metric of every seed in a file
  python -m loadtests.run_sim ragged --set fleet.num_gateways=4 --set clients.max_requests=3
      any field of the file, by its path
  python -m loadtests.run_sim ragged --sweep load=0.25:1.25:0.25 --sweep policies.balancing=power_of_two,random
      a grid, in shares of what the fleet can do; nothing is judged, and runs that were made before cost nothing
  python -m loadtests.run_sim ragged --save runs && python -m loadtests.report runs
      every request of every run in a folder, and a page with the charts

exit status:
  0  every check holds
  1  a check does not hold
  2  nothing is proved: a run is invalid, or a scenario can't be used; stderr says why
"""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def run_scenarios(
    scenarios: Sequence[Scenario], simulate: Simulate, jobs: int, console: Console, keep: KeepRun = discard
) -> list[ScenarioReport]:
    """Runs policy and baselines of every scenario on its seeds, and judges them.

    Args:
        scenarios: Which, with names that differ.
        simulate: The simulator.
        jobs: Processes at a time.
        console: Shows progress.
        keep: Is given each run's table, in the process that made it.
    """
    runs = [
        Run(scenario=scenario, variant=variant, seed=seed)
        for scenario in scenarios
        for variant in scenario.variants
        for seed in scenario.seeds
    ]
    results: dict[str, list[RunResult]] = {scenario.name: [] for scenario in scenarios}
    make = partial(run, simulate=simulate, keep=keep)
    for result in simulate_all(runs, make, jobs, console, part_of=lambda each: each.scenario.name):
        results[result.run.scenario.name].append(result)
    return [report(scenario, results[scenario.name]) for scenario in scenarios]


def main(arguments: Sequence[str] | None = None, simulate: Simulate = simulate_for_real) -> int:
    """Command line: prints the table; see ``EXAMPLES`` for the exit status.

    Args:
        arguments: Instead of the command line's.
        simulate: The simulator.
    """
    options = _parse(arguments)
    out = Console(soft_wrap=True, highlight=False)
    err = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        return _carry_out(options, sys.argv[1:] if arguments is None else arguments, simulate, (out, err))
    except (ConfigError, RunFailed, CompilationFailed) as error:
        err.print(Text(f"run_sim: {error}", style="bold red"))
    except BrokenProcessPool:
        err.print(Text("run_sim: a run's process died; --jobs 1 shows more of why", style="bold red"))
    except KeyboardInterrupt:
        err.print("run_sim: interrupted; no results")
        return INTERRUPTED
    except Exception:  # a bug, which must not look like a check that fails
        err.print_exception()
    return Verdict.INVALID


def _carry_out(
    options: argparse.Namespace, arguments: Sequence[str], simulate: Simulate, consoles: tuple[Console, Console]
) -> int:
    out, _ = consoles
    if options.compiled and not is_compiled():
        rerun("loadtests.run_sim", arguments)
    if options.list:
        return _list(out)
    if options.bench:
        return run_bench(out)
    if options.sweep:
        return _sweep(options, consoles)
    return _run_and_print(_chosen(options), options, arguments, simulate, consoles)


def _sweep(options: argparse.Namespace, consoles: tuple[Console, Console]) -> int:
    """Every scenario over the grid; the status says whether all runs are valid."""
    out, err = consoles
    if options.json is not None:
        check_can_be_written(options.json)
    if options.save is not None:
        raise ConfigError("--save", str(options.save), "nothing beside --sweep")
    axes, metrics = dict(map(axis, options.sweep)), metrics_shown(options.metric)
    if len(axes) < len(options.sweep):
        raise ConfigError("--sweep", options.sweep, "every path once")
    status, swept = Verdict.PASS, {}
    for name in options.scenarios or [path.stem for path in library()]:
        varied = LabScenario(name=name, settings=_settings(options))
        found = sweep(varied, axes, seeds=options.seeds or (), jobs=options.jobs)
        print_sweep(name, found, metrics, out)
        swept[name] = found
        if not found.problems.empty:
            status = Verdict.INVALID
            for problem in found.problems["problem"].unique():
                err.print(Text(f"run_sim: {name}: {problem}", style="bold yellow"))
    if options.json is not None:
        write_sweeps(options.json, swept)
    return status


def _run_and_print(
    scenarios: Sequence[Scenario],
    options: argparse.Namespace,
    arguments: Sequence[str],
    simulate: Simulate,
    consoles: tuple[Console, Console],
) -> int:
    out, err = consoles
    if options.json is not None:
        check_can_be_written(options.json)
    keep: KeepRun = discard
    if options.save is not None:
        make_folder(options.save)
        keep = partial(save_requests, options.save)
    reports = run_scenarios(scenarios, simulate, options.jobs, err, keep)
    if options.save is not None:
        save_records(options.save, reports)
    _print(reports, out, err)
    for option, settings in (("--policy", options.policy), ("--set", options.set)):
        if settings:
            out.print(f"changed by {option}: {', '.join(settings)}", markup=False)
    if options.json is not None:
        write_results(options.json, reports, arguments)
    return overall(reports)


def _print(reports: Sequence[ScenarioReport], out: Console, err: Console) -> None:
    for line in render(reports):
        out.print(line)
    for each in reports:
        for problem in each.problems:
            err.print(Text(f"run_sim: {each.scenario.name} is INVALID: {problem}", style="bold yellow"))
        for warning in losing(each.scenario.dispatcher_spec(POLICY)):
            err.print(Text(f"run_sim: {each.scenario.name}: {warning}", style="yellow"))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.run_sim",
        description=__doc__.partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help="a name in the library, or a .yaml file (default: the library)"
    )
    parser.add_argument("--list", action="store_true", help="print the library and stop")
    parser.add_argument("--bench", action="store_true", help="measure how fast the simulator is, and stop (minutes)")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="compile the simulator first, if need be; same results in a third of the time",
    )
    parser.add_argument("--seeds", type=_at_least_1, metavar="N", help="use seeds 1 to N instead of the scenarios' own")
    parser.add_argument("--duration", type=float, metavar="S", help="virtual seconds, instead of the scenarios' own")
    _add_changes(parser)
    parser.add_argument(
        "--jobs",
        type=_at_least_1,
        default=cores,
        metavar="N",
        help=f"processes at a time (default: {cores}, the cores)",
    )
    _add_outputs(parser)
    return parser.parse_args(arguments)


def _add_changes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the policies under test: QUESTION=NAME or QUESTION.params.PARAMETER=VALUE; may be repeated; "
        f"QUESTION is one of {', '.join(QUESTIONS)}",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change any field of the files, with its value as in YAML; load=0.8 sets all rates to that share of what "
        "the fleet can do, rate=2 multiplies them; may be repeated",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="PATH=VALUES",
        help="run at each of some values, VALUE,VALUE or FROM:TO:STEP; repeated, at each point of the grid",
    )
    parser.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="what a sweep's tables show; may be repeated"
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every metric, comparison and check to a file")
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FOLDER",
        help="keep every request of each run in FOLDER/SCENARIO/VARIANT-SEED, for python -m loadtests.report",
    )


def _at_least_1(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}; allowed: 1 or more")
    return number


def _chosen(options: argparse.Namespace) -> list[Scenario]:
    files = options.scenarios or [str(path) for path in library()]
    if not files:
        raise ConfigError("SCENARIO", None, f"a .yaml file; there is no library in {LIBRARY}")
    scenarios = [_changed(each, options) for each in dict.fromkeys(files)]
    if not options.scenarios:
        scenarios = [each for each in scenarios if not each.is_long]
    names = [scenario.name for scenario in scenarios]
    if len(set(names)) != len(names):
        raise ConfigError("SCENARIO", names, "every name once")
    return scenarios


def _changed(name: str, options: argparse.Namespace) -> Scenario:
    """A scenario as the command line wants it."""
    changed = LabScenario(name=name, settings=_settings(options)).scenario
    return changed if options.seeds is None else changed.changed(seeds=tuple(range(1, options.seeds + 1)))


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What ``--policy``, ``--set`` and ``--duration`` change, by path."""
    settings = dict([*map(policy_setting, options.policy), *map(setting, options.set)])
    return settings if options.duration is None else {**settings, "duration_s": options.duration}


def _list(out: Console) -> int:
    scenarios = [load(str(path)) for path in library()]
    width = max((len(scenario.name) for scenario in scenarios), default=0)
    for scenario in scenarios:
        named = " (long: only by name)" if scenario.is_long else ""
        out.print(f"{scenario.name:{width}}  {' '.join(scenario.description.split())}{named}", markup=False)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, with all its processes
    sys.exit(main())
