"""What a study came to, for a terminal: one table, and a line for each check."""

import math
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.live.outcome import StudyOutcome
from loadtests.live.replica_table import replica_tables
from loadtests.results.checks import too_few
from loadtests.results.metrics import METRICS, RunMetrics
from loadtests.results.run_record import MISSED, NOT_JUDGED, CheckResult
from loadtests.simulation.result_table import STYLES, TOO_FEW, number

STYLE_OF = {MISSED: "bold red", NOT_JUDGED: "yellow"}


def show(outcome: StudyOutcome, console: Console) -> None:
    """Prints it.

    Args:
        outcome: What was measured.
        console: Where.
    """
    console.print(table_of(outcome))
    for table in replica_tables(outcome):
        console.print(table)
    for result in outcome.results():
        console.print(Text(line_of(result), style=STYLE_OF.get(result.verdict, "")))
    for line in _about_runs(outcome):
        console.print(line)
    console.print(Text(f"{outcome.study.name}: {outcome.verdict.name}", style=STYLES[outcome.verdict.name]))


def table_of(outcome: StudyOutcome) -> Table:
    """A row for each load and metric, a column for each variant."""
    metrics = outcome.metrics()
    variants = list(dict.fromkeys(variant for variant, _ in metrics))
    rounds = max((len(runs) for runs in outcome.places.values()), default=0)
    title = f"{outcome.study.name}: capacity {_capacity(outcome)} requests/s, {rounds} rounds"
    table = Table(title=Text(title), title_justify="left")
    for heading in ("load", "class", "metric", *variants):
        is_number = heading in (*variants, "load")
        table.add_column(Text(heading), justify="right" if is_number else "left", no_wrap=heading == "metric")
    for load in dict.fromkeys(load for _, load in metrics):
        rows = [(group, name) for group, names in outcome.study.table_metrics.items() for name in names]
        for index, (group, name) in enumerate(rows):
            cells = [_cell(metrics.get((variant, load), {}), group, name) for variant in variants]
            table.add_row(f"{load:g}", Text(group), name, *cells, end_section=index == len(rows) - 1)
    return table


def line_of(result: CheckResult) -> str:
    """A check with what was held against it."""
    if result.value is None:
        return f"{result.text}: {result.verdict}: {result.problem}"
    return f"{result.text}: {result.verdict}, it was {number(result.value)}"


def _capacity(outcome: StudyOutcome) -> str:
    found = outcome.capacities_rps
    if len(set(found.values())) == 1:
        return f"{next(iter(found.values())):.1f}"
    return ", ".join(f"{name} {each:.1f}" for name, each in found.items())


def _cell(metrics: RunMetrics, group: str, name: str) -> str:
    found = metrics.get(group, {}).get(name)
    if found is None or math.isnan(found.value):
        return "-"
    if METRICS[name].quantile is not None and too_few(metrics, group, name):
        return TOO_FEW
    return f"{1e3 * found.value:,.1f} ms" if name.endswith("_s") and "per_s" not in name else number(found.value)


def _about_runs(outcome: StudyOutcome) -> Iterator[Text]:
    for run in outcome.runs:
        yield from (Text(f"{run.name}: INVALID: {each}", style=STYLES["INVALID"]) for each in run.saved.record.problems)
    yield from map(Text, outcome.notes())
