"""Runs studies of deployments: starts each variant, drives it, and holds what it measured against the study's checks.

``python -m loadtests.run_live STUDY [STUDY ...]``
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from loadtests.live.outcome import StudyOutcome
from loadtests.live.runner import Options, num_steps, run_study
from loadtests.live.study import Study, library, load
from loadtests.live.table import show
from loadtests.machine.systems import ROOT
from loadtests.machine.told_steps import told_steps
from loadtests.schema.ranges import require
from loadtests.simulation.save_folder import make_folder
from loadtests.simulation.verdict import Verdict
from policies.errors import ConfigError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
STUDY_FILE = "study.json"
EXAMPLES = """\
examples:
  python -m loadtests.run_live --list
      the studies that come along, and the questions they answer
  python -m loadtests.run_live overload
      one of them: is each claim still true?
  python -m loadtests.run_live my/own.yaml --seconds 5 --rounds 1
      one of your own, in short: does it run?
  python -m loadtests.run_live overload --only deadline --loads 10 --seconds 20
      one variant, at ten times the capacity
  python -m loadtests.run_live overload && python -m loadtests.report .run/live/overload
      and a page with the charts of every run

A study needs the machine to itself. The folder gets a folder for each run, study.json with everything, logs and
configurations.

exit status:
  0    every check is met
  1    a check is missed
  2    nothing is proved: a deployment did not start, no run is valid, or no check could be judged; it says which
  130  interrupted; nothing that was started is left
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES`` for the exit status."""
    options = _parse(arguments)
    out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    err = Console(stderr=True, soft_wrap=True, highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, with all that was started
    try:
        if options.list:
            return _list(out)
        studies = [_chosen(name, options) for name in options.studies]
        return max(_run(study, options, out, err) for study in studies)
    except ConfigError as error:
        err.print(Text(f"run_live: {error}", style="bold red"))
    except KeyboardInterrupt:
        err.print("run_live: interrupted")
        return INTERRUPTED
    except Exception:  # a bug, which must not look like a check that is missed
        err.print_exception()
    return Verdict.INVALID


def _list(out: Console) -> int:
    for path in library():
        study = load(str(path))
        out.print(Text(study.name, style="bold"))
        out.print(f"  {' '.join(study.description.split())}")
        out.print(f"  variants: {', '.join(study.variants)}")
    return Verdict.PASS


def _chosen(name: str, options: argparse.Namespace) -> Study:
    """The study as the command line wants it.

    Raises:
        ConfigError: There is none, or it can't be run so.
    """
    study = load(name)
    for variant in options.only:
        require(variant in study.variants, "--only", variant, f"one of {list(study.variants)}")
    if options.rounds is not None:
        require(1 <= options.rounds <= 20, "--rounds", options.rounds, "1 to 20")
        study = study.changed(seeds=tuple(range(1, options.rounds + 1)))
    if options.loads:
        require(all(0 < each <= 20 for each in options.loads), "--loads", options.loads, "above 0, at most 20")
        study = study.changed(loads=tuple(options.loads))
    return study if options.seconds is None else study.measured_for(options.seconds)


def _run(study: Study, options: argparse.Namespace, out: Console, err: Console) -> int:
    folder = options.save or ROOT / ".run" / "live" / study.name
    make_folder(folder)
    outcome = StudyOutcome(study)
    try:
        with told_steps(err, num_steps(study, options.only)) as tell:
            run_study(study, Options(only=options.only, port=options.port, folder=folder, tell=tell), outcome)
    except (RuntimeError, OSError) as error:
        err.print(Text(f"run_live: {study.name}: {error}", style="bold red"))
        return Verdict.INVALID
    finally:
        if outcome.runs:
            show(outcome, out)
            (folder / STUDY_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(outcome.document())) + b"\n")
            out.print(f"runs, logs and {STUDY_FILE}: {folder}")
    return outcome.verdict


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.run_live",
        description=(__doc__ or "").partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="a name in loadtests/studies, or a .yaml file")
    parser.add_argument("--list", action="store_true", help="list the studies that come along")
    parser.add_argument("--only", action="append", default=[], metavar="VARIANT", help="this variant; may come again")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long a run is measured, after its warm-up")
    parser.add_argument("--rounds", type=int, metavar="N", help="plans, seeds 1 to N, in place of the study's own")
    parser.add_argument("--loads", type=float, nargs="+", metavar="F", help="in capacities, in place of the study's")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="where to (default: .run/live/STUDY)")
    parser.add_argument("--port", type=int, default=8350, help="where deployments answer (default: 8350)")
    options = parser.parse_args(arguments)
    if not options.studies and not options.list:
        parser.error("STUDY is missing; --list names those that come along")
    if options.save is not None and len(options.studies) > 1:
        parser.error("--save takes one STUDY")
    return options


if __name__ == "__main__":
    sys.exit(main())
