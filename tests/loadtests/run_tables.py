"""Tables of runs whose metrics can be worked out by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from cluster.sim.run_table import NUM_BOUNDS, OUTCOMES, REASONS, ReplicaTotals, RunTable
from loadtests.results.metrics import MetricValue, RunMetrics
from policies.capacity.bounds import Bound


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """One row, in the words of a user: what went by without trouble has a default."""

    logical_request: int
    at_s: float = 0.0
    ttft_s: float = nan
    e2e_s: float = nan
    prompt_tokens: int = 100
    output_tokens: int = 0
    cached_tokens: int = 0
    full_output_tokens: int = 0
    outcome: str = "completed"
    traffic_class: int = 0
    is_last: bool = True
    retry_index: int = 0
    attempts: int = 1
    hedges: int = 0
    computed_prompt_tokens: int = 0
    session: int = -1
    gateway: int = -1
    reason: str = ""
    spent_s: Mapping[Bound, float] | None = None


def served(
    logical_request: int, at_s: float, ttft_s: float, e2e_s: float, output_tokens: int, *, traffic_class: int = 0
) -> RequestRow:
    return RequestRow(
        logical_request=logical_request,
        at_s=at_s,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        output_tokens=output_tokens,
        traffic_class=traffic_class,
    )


def run_table(
    *requests: RequestRow,
    classes: Sequence[str] = ("chat",),
    replicas: Sequence[ReplicaTotals] = (),
    duration_s: float = 100.0,
) -> RunTable:
    scheduled_s = np.array([each.at_s for each in requests], dtype=np.float64)
    return RunTable(
        traffic_classes=classes,
        logical_request=np.array([each.logical_request for each in requests], dtype=np.int64),
        session=np.array([each.session for each in requests], dtype=np.int64),
        is_last=np.array([each.is_last for each in requests], dtype=np.bool_),
        retry_index=np.array([each.retry_index for each in requests], dtype=np.int16),
        traffic_class=np.array([each.traffic_class for each in requests], dtype=np.int16),
        scheduled_s=scheduled_s,
        sent_s=scheduled_s,
        first_token_s=scheduled_s + np.array([each.ttft_s for each in requests], dtype=np.float64),
        end_s=scheduled_s + np.array([each.e2e_s for each in requests], dtype=np.float64),
        prompt_tokens=np.array([each.prompt_tokens for each in requests], dtype=np.int32),
        output_tokens=np.array([each.output_tokens for each in requests], dtype=np.int32),
        cached_tokens=np.array([each.cached_tokens for each in requests], dtype=np.int32),
        full_output_tokens=np.array(
            [max(each.full_output_tokens, each.output_tokens) for each in requests], dtype=np.int32
        ),
        outcome=np.array([OUTCOMES.index(each.outcome) for each in requests], dtype=np.int8),
        reason=np.array([REASONS.index(each.reason) for each in requests], dtype=np.int8),
        attempts=np.array([each.attempts for each in requests], dtype=np.int16),
        hedges=np.array([each.hedges for each in requests], dtype=np.int16),
        computed_prompt_tokens=np.array([each.computed_prompt_tokens for each in requests], dtype=np.int32),
        gateway=np.array([each.gateway for each in requests], dtype=np.int16),
        spent_s=np.array(
            [[each.spent_s.get(bound, 0.0) for bound in Bound] for each in requests if each.spent_s is not None],
            dtype=np.float32,
        ).reshape(-1, NUM_BOUNDS),
        replicas=replicas,
        duration_s=duration_s,
    )


def metrics(value: float, *, metric: str = "ttft_p99_s", samples: int = 10_000, of_class: str = "all") -> RunMetrics:
    """Metrics of a run that has one metric."""
    return {of_class: {metric: MetricValue(value=value, samples=samples)}}
