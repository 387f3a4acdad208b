"""Drives a deployment with a scenario from one process, open loop, and judges what it measured.

``python -m loadtests.run_http SCENARIO --host URL``
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from loadtests.drivers.completions import Endpoint, authorization
from loadtests.drivers.live_run import MAX_IN_FLIGHT, discover_model, judged, plan_of
from loadtests.drivers.live_table import show
from loadtests.drivers.one_process import OneProcess
from loadtests.results.run_folder import SavedRun
from loadtests.simulation.save_folder import fill_folder, make_folder
from loadtests.simulation.verdict import Verdict
from policies.errors import ConfigError

EXAMPLES = """\
examples:
  python -m loadtests.run_http ragged --host http://127.0.0.1:8000 --rate-fraction 0.1
      one in ten of the scenario's requests, at the times that the simulator has them
  python -m loadtests.run_http my/own.yaml --host http://127.0.0.1:8000 --duration 60 --save .run/own
      a scenario of your own for a minute; run.json, requests.jsonl.gz and junit.xml in the folder
  python -m loadtests.run_http ragged --host http://127.0.0.1:8000 --rate-fraction 0.1 --tags short
      the requests of one traffic class alone

exit status:
  0  the run is valid, and no check is missed
  1  a check is missed
  2  nothing is proved: the client was too slow, the run was interrupted, or it can't be run so
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: prints the table; see ``EXAMPLES`` for the exit status."""
    options = _parse(arguments)
    out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 160)
    err = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        saved = _run(options, err)
        is_saved = options.save is None or _is_saved(options.save, saved, err)
        show(saved, out)
    except ConfigError as error:
        err.print(Text(f"run_http: {error}", style="bold red"))
        return Verdict.INVALID
    except Exception:  # a bug, which must not look like a check that is missed
        err.print_exception()
        return Verdict.INVALID
    return Verdict[saved.record.verdict] if is_saved else Verdict.INVALID


def _is_saved(folder: Path, saved: SavedRun, err: Console) -> bool:
    try:
        fill_folder(folder, saved)
    except OSError as error:
        err.print(Text(f"run_http: --save: {error}", style="bold red"))
        return False
    return True


def _run(options: argparse.Namespace, err: Console) -> SavedRun:
    plan = plan_of(
        options.scenario,
        seed=options.seed,
        rate_fraction=options.rate_fraction,
        salt=uuid4().hex,
        duration_s=options.duration,
        classes=options.tags,
    )
    base_url = options.host.rstrip("/")
    if options.save is not None:
        make_folder(options.save)
    endpoint = Endpoint(
        base_url=base_url,
        model=options.model or discover_model(base_url),
        asks_token_ids=not options.no_token_ids,
        asks_latency_budget=True,
        authorization=authorization(),
    )
    columns = (TextColumn("sending"), BarColumn(), TextColumn("{task.fields[ended]} ended"), TimeElapsedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=plan.scenario.duration_s, ended=0)
        live = OneProcess(
            plan,
            endpoint,
            max_in_flight=options.max_in_flight,
            on_progress=lambda at_s, ended: progress.update(task, completed=at_s, ended=ended),
        )
        return judged(plan, live.run())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.run_http",
        description="Drives a deployment with a scenario from one process, open loop, and judges what it measured.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="a name in the simulator's library, or a .yaml file")
    parser.add_argument("--host", required=True, metavar="URL", help="base URL of the deployment, without /v1")
    parser.add_argument("--model", help="the model's name there (default: the first that it serves)")
    parser.add_argument(
        "--rate-fraction",
        type=float,
        default=1.0,
        metavar="F",
        help="share of the scenario's requests that are sent, above 0 and at most 1 (default: 1)",
    )
    parser.add_argument("--duration", type=float, metavar="S", help="seconds, instead of the scenario's own")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the plan (default: 1)")
    parser.add_argument("--tags", nargs="+", default=[], metavar="CLASS", help="send these traffic classes only")
    parser.add_argument(
        "--max-in-flight",
        type=int,
        default=MAX_IN_FLIGHT,
        metavar="N",
        help=f"what is due beyond that is dropped, and the run invalid (default: {MAX_IN_FLIGHT:,})",
    )
    parser.add_argument("--no-token-ids", action="store_true", help="for servers that don't know return_token_ids")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write run.json, requests.jsonl.gz and junit.xml")
    options = parser.parse_args(arguments)
    if options.max_in_flight < 1:
        parser.error(f"--max-in-flight: got {options.max_in_flight}; allowed: 1 or more")
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C, with what there is
    sys.exit(main())
