"""Replicas so full."""

import math
from collections.abc import Mapping
from typing import ClassVar

from policies.contracts import Need
from policies.params import SCALING
from policies.pool_views import PoolView, ScalingView
from policies.scaling.stabilization import Stabilization
from policies.signals import Signal


class TargetUtilization:
    """How many replicas is each pool to have? As many as make them as full as they are to be.

    Rule: ``ceil(ready * full / target_fraction)``, where ``full`` is the larger of the requests that they have as a
        part of those that they take and the KV tokens as a part of those that they hold, unless that is within
        ``tolerance_fraction`` of the target; what waits counts as ongoing. One where none is ready and something was
        asked of the pool or its first one starts. Fewer when that was so for ``down_after_s``.
    State: what was wanted of late.
    Consumes: nothing.
    Complexity: O(pools).
    Failure mode: an engine that computes prompts is not full of anything: a prefill pool looks idle until many wait.
    Source: Kubernetes' horizontal pod autoscaler, its tolerance too; AIBrix and llm-d scale by KV cache usage with it.

    Args:
        target_fraction: How full they are to be.
        tolerance_fraction: How far from that is near enough.
        down_after_s: How long fewer must be enough.

    Raises:
        ConfigError: A number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self, *, target_fraction: float = 0.6, tolerance_fraction: float = 0.1, down_after_s: float = 300.0
    ) -> None:
        SCALING.check_positive("target_fraction", target_fraction)
        SCALING.check_number("tolerance_fraction", tolerance_fraction, 0.0, 1.0)
        SCALING.check_number("down_after_s", down_after_s, 0.0)
        self._target_fraction = target_fraction
        self._tolerance_fraction = tolerance_fraction
        self._stable = Stabilization(down_after_s)

    def targets(self, view: ScalingView, now_s: float) -> Mapping[str, int]:
        return {name: self._stable.at(name, self._wanted(pool), now_s) for name, pool in view.pools.items()}

    def _wanted(self, pool: PoolView) -> int:
        ready = max(1, pool.num_ready)
        requests = (pool.num_ongoing + pool.num_waiting) / (ready * pool.max_ongoing_requests)
        full = max(requests, pool.kv_tokens / (ready * pool.kv_capacity_tokens))
        ratio = full / self._target_fraction
        wanted = pool.num_replicas if abs(ratio - 1.0) <= self._tolerance_fraction else math.ceil(ready * ratio)
        return max(int(pool.is_missed), wanted)
