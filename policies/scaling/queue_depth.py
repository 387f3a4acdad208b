"""So many requests for each replica."""

import math
from collections.abc import Mapping
from typing import ClassVar

from policies.contracts import Need
from policies.params import SCALING
from policies.pool_views import PoolView, ScalingView
from policies.scaling.stabilization import Stabilization
from policies.signals import Signal


class QueueDepth:
    """How many replicas is each pool to have? One for so many requests that it has and that wait for it.

    Rule: ``ceil((ongoing + waiting) / target_requests)``, and one where none is ready and something was asked of the
        pool or its first one starts; fewer when that was so for ``down_after_s``.
    State: what was wanted of late.
    Consumes: nothing.
    Complexity: O(pools).
    Failure mode: a request counts as one, whatever it costs: ten long prompts look like ten short ones. It asks for
        replicas when requests wait already, and they are there when a start time has passed.
    Source: Ray Serve, ``target_ongoing_requests``; KEDA on queue lengths.

    Args:
        target_requests: Requests for each replica.
        down_after_s: How long fewer must be enough.

    Raises:
        ConfigError: A number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, target_requests: float = 16.0, down_after_s: float = 300.0) -> None:
        SCALING.check_positive("target_requests", target_requests)
        SCALING.check_number("down_after_s", down_after_s, 0.0)
        self._target_requests = target_requests
        self._stable = Stabilization(down_after_s)

    def targets(self, view: ScalingView, now_s: float) -> Mapping[str, int]:
        return {name: self._stable.at(name, self._wanted(pool), now_s) for name, pool in view.pools.items()}

    def _wanted(self, pool: PoolView) -> int:
        return max(int(pool.is_missed), math.ceil((pool.num_ongoing + pool.num_waiting) / self._target_requests))
