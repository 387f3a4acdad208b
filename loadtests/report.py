"""Writes a report of runs: one HTML file with verdicts, charts and tables, and a Markdown summary beside it.

``python -m loadtests.report RUN [RUN ...]``
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track
from rich.text import Text

from loadtests.reports.page import ChapterView, page, summary, view
from loadtests.reports.runs import chapters, find, load
from loadtests.simulation.result_table import STYLES
from loadtests.simulation.verdict import Verdict
from policies.errors import ConfigError

Item = TypeVar("Item")
DESCRIPTION = "Lays runs side by side in one HTML file that needs no network and no script."
EXAMPLES = """\
RUN is the folder of a run, or one above such folders. Drivers write them with --save FOLDER.
Runs of one scenario make a chapter; runs that differ in nothing but the seed make a series.

examples:
  python -m loadtests.run_sim ragged --save runs && python -m loadtests.report runs
      a scenario in the simulator, its policy beside its baselines
  python -m loadtests.report runs/before runs/after --output change.html --title "With and without lanes"
      two runs of one scenario, and how sure their difference is

exit status:
  0  every run has passed
  1  a run has failed a check
  2  a run is invalid, or there is nothing to report; stderr says why
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES`` for the exit status.

    Args:
        arguments: Without the program's name; the process's own when ``None``.
    """
    options = _parse(arguments)
    out, err = Console(), Console(stderr=True)
    try:
        return _carry_out(options, out, err)
    except ConfigError as error:
        err.print(Text(f"report: {error}", style="bold red"))
        return Verdict.INVALID


def write_report(paths: Sequence[Path], output: Path, title: str, err: Console) -> tuple[Verdict, list[ChapterView]]:
    """Reads the runs, and writes the report and its summary.

    Args:
        paths: Folders of runs, or folders above them.
        output: The HTML file; ``summary.md`` stands beside it.
        title: Of the page; empty for the scenarios' names.
        err: Shows progress when it is a terminal.

    Returns:
        The worst verdict of a run, and what the report is made of.

    Raises:
        ConfigError: There is no run, one can't be read, or the report can't be written.
    """
    found = chapters([load(folder) for folder in _watched(find(paths), "reading", err)])
    overall = max(chapter.verdict for chapter in found)
    views = [view(chapter, number) for number, chapter in _watched(list(enumerate(found, 1)), "drawing", err)]
    named = title or ", ".join(chapter.scenario for chapter in found)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page(named, views, overall), encoding="utf-8")
        output.with_name("summary.md").write_text(summary(named, views, overall), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--output", str(output), f"a file that can be written ({error.strerror})") from error
    return overall, views


def _carry_out(options: argparse.Namespace, out: Console, err: Console) -> int:
    overall, views = write_report(options.runs, options.output, options.title, err)
    for each in views:
        verdict = each.chapter.verdict.name
        line = Text.assemble(each.chapter.scenario, ": ", (verdict, STYLES[verdict]), f"; checks: {each.checks_text}")
        out.print(line)
    for each in views:
        for problem in each.problems:
            err.print(Text(f"report: {each.chapter.scenario} is INVALID: {problem}", style="bold yellow"))
    size_kb = options.output.stat().st_size / 1000
    out.print(f"{options.output} ({size_kb:,.0f} kB), {options.output.with_name('summary.md')}", markup=False)
    return overall


def _watched(items: Sequence[Item], doing: str, err: Console) -> Iterable[Item]:
    return track(items, description=doing, console=err, transient=True, disable=not err.is_terminal)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.report",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, or one above such folders")
    parser.add_argument(
        "--output", type=Path, default=Path("report.html"), metavar="FILE", help="where to (default: report.html)"
    )
    parser.add_argument("--title", default="", help="of the page (default: the scenarios' names)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
