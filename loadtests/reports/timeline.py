"""What happened in each second of a run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cluster.sim.run_table import OUTCOMES
from loadtests.reports.curves import MOST_BINS
from loadtests.reports.runs import Chapter, LoadedRun, Series
from loadtests.results.analysis import ABANDONED, Floats, Mask

REFUSED = OUTCOMES.index("refused")
BIN_LENGTHS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


@dataclass(frozen=True)
class RunTimeline:
    """What happened in a series, per bin of time, as the mean of its runs.

    Args:
        starts_s: When each bin begins.
        width_s: How long each is.
        counts: By name: ``wanted`` logical requests by when they were wanted, ``served`` ones (within the SLO) by when
            they ended, ``refused`` requests by when they were. Per bin.
        waiting: Requests without a first token, at the middle of each bin.
        gauges: What the deployment said of itself, by name: the mean of what it said in the bin; NaN where nothing.
    """

    starts_s: Floats
    width_s: float
    counts: Mapping[str, Floats]
    waiting: Floats
    gauges: Mapping[str, Floats]


def bin_width_s(chapter: Chapter) -> float:
    """Seconds in a bin of the chapter's timelines: no more than ``MOST_BINS`` of them."""
    ended_s = max((_last_s(run) for run in chapter.runs), default=0.0)
    return next((each for each in BIN_LENGTHS_S if ended_s / each <= MOST_BINS), ended_s / MOST_BINS)


def timeline(series: Series, width_s: float) -> RunTimeline:
    """What happened in a series, second by second."""
    runs = list(series.runs.values())
    num_bins = 1 + max(int(_last_s(run) / width_s) for run in runs)
    starts_s: Floats = np.arange(num_bins, dtype=np.float64) * width_s
    of_each = [_counts(run, num_bins, width_s) for run in runs]
    counts = {name: np.mean([each[name] for each in of_each], axis=0) for name in of_each[0]}
    waiting = np.mean([_waiting(run, starts_s + width_s / 2) for run in runs], axis=0)
    return RunTimeline(
        starts_s=starts_s, width_s=width_s, counts=counts, waiting=waiting, gauges=_gauges(runs, num_bins, width_s)
    )


def _last_s(run: LoadedRun) -> float:
    moments = run.record.moments
    return max(run.saved.table.duration_s, run.record.duration_s, moments[-1].at_s if moments else 0.0)


def _counts(run: LoadedRun, num_bins: int, width_s: float) -> dict[str, Floats]:
    table, rows = run.saved.table, run.rows
    refused: Mask = table.outcome == REFUSED
    which = {
        "wanted": table.scheduled_s[table.is_last],
        "served": table.end_s[table.is_last & rows.is_good],
        "refused": table.end_s[refused],
    }
    return {name: _histogram(times_s, num_bins, width_s) for name, times_s in which.items()}


def _histogram(times_s: Floats, num_bins: int, width_s: float) -> Floats:
    bins = np.clip((times_s / width_s).astype(np.int64), 0, num_bins - 1)
    return np.bincount(bins, minlength=num_bins).astype(np.float64)


def _waiting(run: LoadedRun, at_s: Floats) -> Floats:
    """Requests that are sent and have neither a first token nor an end."""
    table = run.saved.table
    sent: Mask = table.outcome != ABANDONED
    left_s = np.sort(np.where(np.isnan(table.first_token_s), table.end_s, table.first_token_s)[sent])
    came_s = np.sort(table.sent_s[sent])
    waiting = np.searchsorted(came_s, at_s, side="right") - np.searchsorted(left_s, at_s, side="right")
    return waiting.astype(np.float64)


def _gauges(runs: Sequence[LoadedRun], num_bins: int, width_s: float) -> dict[str, Floats]:
    sums: dict[str, Floats] = defaultdict(lambda: np.zeros(num_bins))
    seen: dict[str, Floats] = defaultdict(lambda: np.zeros(num_bins))
    for run in runs:
        for moment in run.record.moments:
            index = min(max(int(moment.at_s / width_s), 0), num_bins - 1)
            for name, value in moment.gauges.items():
                sums[name][index] += value
                seen[name][index] += 1
    return {
        name: np.divide(sums[name], seen[name], out=np.full(num_bins, np.nan), where=seen[name] > 0) for name in sums
    }
