"""How many replicas pools had in the runs of a study, over time, and side by side with the simulator's."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from loadtests.live.outcome import StudyOutcome, StudyRun
from loadtests.results.replica_counts import mean_ready

NUM_ROWS = 20


def replica_tables(outcome: StudyOutcome) -> list[Table]:
    """A table for each load and seed; none where no pool's size may change."""
    documents = [outcome.study.document(variant) for variant in outcome.study.variants]
    pools = [pool for each in documents for pool in each["applications"][0]["args"]["pools"]]
    scaled = list(dict.fromkeys(str(pool["name"]) for pool in pools if "autoscaling" in pool))
    together: dict[tuple[float, int], list[StudyRun]] = {}
    for run in outcome.runs:
        together.setdefault((run.load, run.seed), []).append(run)
    return [_table(runs, scaled, outcome.study.duration_s) for runs in together.values()] if scaled else []


def _table(runs: Sequence[StudyRun], pools: Sequence[str], duration_s: float) -> Table:
    """A row for each twentieth of the time: what came, and the replicas that were ready, in the mean."""
    first = runs[0]
    title = f"ready replicas at load {first.load:g}, seed {first.seed}"
    table = Table(title=Text(title), title_justify="left")
    for heading in ("from, s", "requests/s", *(f"{pool}: {run.variant}" for pool in pools for run in runs)):
        table.add_column(Text(heading), justify="right")
    width_s, sent_s = duration_s / NUM_ROWS, first.saved.table.scheduled_s[first.saved.table.is_last]
    for number in range(NUM_ROWS):
        from_s, until_s = number * width_s, (number + 1) * width_s
        rate = np.count_nonzero((from_s <= sent_s) & (sent_s < until_s)) / width_s
        ready = [mean_ready(run.saved.record.moments, from_s, until_s) for run in runs]
        table.add_row(f"{from_s:g}", f"{rate:.1f}", *(_cell(each, pool) for pool in pools for each in ready))
    return table


def _cell(ready: Mapping[str, float], pool: str) -> str:
    return f"{ready[pool]:.1f}" if pool in ready else "-"
