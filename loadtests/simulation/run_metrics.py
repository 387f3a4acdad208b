"""From a simulated run to its metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import nan

import numpy as np

from cluster.seeds import Seeds
from cluster.sim.run_table import NUM_BOUNDS, OUTCOMES, REASONS, RunTable
from loadtests.results.analysis import analyse
from loadtests.results.metrics import METRICS, RunMetrics, windowed
from loadtests.scenario.experiment import Experiment
from loadtests.workloads.clients import AbandonedRequest
from loadtests.workloads.traces import Trace
from loadtests.workloads.workload import Workload


def metrics_of(scenario: Experiment, table: RunTable, ideal_hit_fraction: float = nan) -> RunMetrics:
    """Every metric of a run of the scenario, in the measured time and in each of its named windows.

    Args:
        scenario: What was run.
        table: What the run left, logical requests that were never sent included.
        ideal_hit_fraction: What the best prefix cache of the fleet's size would have found; NaN: nobody knows.
    """
    measured = analyse(table, scenario.slos, scenario.window, ideal_hit_fraction)
    return {**measured, **_in_windows(table, scenario)}


def _in_windows(table: RunTable, scenario: Experiment) -> RunMetrics:
    """Metrics of the scenario's named windows; what replicas did is known for the whole run alone."""
    return {
        windowed(group, name): {
            metric: metric_value for metric, metric_value in metrics.items() if METRICS[metric].per_class
        }
        for name, window in scenario.windows.items()
        for group, metrics in analyse(table, scenario.slos, window).items()
    }


def with_abandoned(table: RunTable, abandoned: Sequence[AbandonedRequest]) -> RunTable:
    """The table with a row for each logical request that was never sent; only the clients know of those."""
    if not abandoned:
        return table
    extra = RunTable(
        traffic_classes=table.traffic_classes,
        logical_request=np.array([each.logical_request for each in abandoned], dtype=np.int64),
        session=np.array([each.session for each in abandoned], dtype=np.int64),
        is_last=np.ones(len(abandoned), dtype=np.bool_),
        retry_index=np.zeros(len(abandoned), dtype=np.int16),
        traffic_class=np.array([each.traffic_class for each in abandoned], dtype=np.int16),
        scheduled_s=np.array([each.scheduled_s for each in abandoned], dtype=np.float64),
        sent_s=np.full(len(abandoned), nan),
        first_token_s=np.full(len(abandoned), nan),
        end_s=np.array([each.abandoned_s for each in abandoned], dtype=np.float64),
        prompt_tokens=np.array([each.prompt_tokens for each in abandoned], dtype=np.int32),
        output_tokens=np.zeros(len(abandoned), dtype=np.int32),
        cached_tokens=np.zeros(len(abandoned), dtype=np.int32),
        full_output_tokens=np.zeros(len(abandoned), dtype=np.int32),
        outcome=np.full(len(abandoned), OUTCOMES.index("abandoned"), dtype=np.int8),
        reason=np.full(len(abandoned), REASONS.index(""), dtype=np.int8),
        attempts=np.zeros(len(abandoned), dtype=np.int16),
        hedges=np.zeros(len(abandoned), dtype=np.int16),
        computed_prompt_tokens=np.zeros(len(abandoned), dtype=np.int32),
        gateway=np.full(len(abandoned), -1, dtype=np.int16),
        spent_s=np.zeros((len(abandoned) if len(table.spent_s) else 0, NUM_BOUNDS), dtype=np.float32),
    )
    columns = [name for name in RunTable.__slots__ if isinstance(getattr(table, name), np.ndarray)]
    return replace(table, **{name: np.concatenate((getattr(table, name), getattr(extra, name))) for name in columns})


def trace_notes(workload: Workload, seeds: Seeds) -> Iterator[str]:
    """What became of the rows of recorded traces."""
    for index, each in enumerate(workload.classes):
        if isinstance(each, Trace):
            report = each.replay(index, seeds, workload.duration_s).report
            dropped = ", ".join(f"{count:,} dropped: {reason}" for reason, count in report.dropped.items() if count)
            cut = f"{report.clamped:,} cut to {each.max_context_tokens:,} tokens" if report.clamped else ""
            parts = [f"{report.rows_read:,} rows read", f"{report.emitted:,} replayed", dropped, cut]
            yield f"trace {each.name}: " + ", ".join(filter(None, parts))


def reasons_of(table: RunTable) -> dict[str, int]:
    """Why logical requests ended early; those that ended well have no reason."""
    counts = np.bincount(table.reason[table.is_last], minlength=len(REASONS)).tolist()
    return {reason: count for reason, count in zip(REASONS, counts, strict=True) if reason and count}
