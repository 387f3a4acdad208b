"""What a study came to, for a terminal: a table, replicas over time, and a line for each check."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.live.outcome import StudyOutcome, StudyRun
from loadtests.results.checks import too_few
from loadtests.results.metrics import METRICS, RunMetrics
from loadtests.results.replica_counts import mean_ready
from loadtests.results.run_record import MISSED, NOT_JUDGED, CheckResult
from loadtests.simulation.result_table import STYLES, TOO_FEW, number

NUM_TIMES = 20
"""Rows of a table of replicas over time."""
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


def replica_tables(outcome: StudyOutcome) -> list[Table]:
    """A table for each load and seed; none where no pool's size may change."""
    documents = [outcome.study.document(variant) for variant in outcome.study.variants]
    pools = [pool for each in documents for pool in each["applications"][0]["args"]["pools"]]
    scaled = list(dict.fromkeys(str(pool["name"]) for pool in pools if "autoscaling" in pool))
    together: dict[tuple[float, int], list[StudyRun]] = {}
    for run in outcome.runs:
        together.setdefault((run.load, run.seed), []).append(run)
    return [_replica_table(runs, scaled, outcome.study.duration_s) for runs in together.values()] if scaled else []


def _replica_table(runs: Sequence[StudyRun], pools: Sequence[str], duration_s: float) -> Table:
    """A row for each twentieth of the time: what came, and the replicas that were ready, in the mean."""
    first = runs[0]
    title = f"ready replicas at load {first.load:g}, seed {first.seed}"
    table = Table(title=Text(title), title_justify="left")
    for heading in ("from, s", "requests/s", *(f"{pool}: {run.variant}" for pool in pools for run in runs)):
        table.add_column(Text(heading), justify="right")
    width_s, sent_s = duration_s / NUM_TIMES, first.saved.table.scheduled_s[first.saved.table.is_last]
    for index in range(NUM_TIMES):
        from_s, until_s = index * width_s, (index + 1) * width_s
        rate = np.count_nonzero((from_s <= sent_s) & (sent_s < until_s)) / width_s
        ready = [mean_ready(run.saved.record.moments, from_s, until_s) for run in runs]
        table.add_row(f"{from_s:g}", f"{rate:.1f}", *(_ready_cell(each, pool) for pool in pools for each in ready))
    return table


def _ready_cell(ready: Mapping[str, float], pool: str) -> str:
    return f"{ready[pool]:.1f}" if pool in ready else "-"


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
