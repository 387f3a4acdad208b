"""Tokens a second over what a replica does of tokens of the mean length."""

import math
from collections.abc import Mapping
from typing import ClassVar

from policies.contracts import Need
from policies.params import SCALING
from policies.pool_views import PoolView, ScalingView
from policies.scaling.stabilization import Stabilization
from policies.signals import Signal
from policies.views import Role


class MeanLengths:
    """How many replicas is each pool to have? What its tokens come to over what a replica does in a second.

    Rule: prefill ``ceil(prompt tokens a second / prefill_tokens_per_s)``, decode ``ceil(output tokens a second /
        decode_tokens_per_s)``, unified the sum of both before it is rounded. The rates were measured at the SLO with
        prompts and answers of the mean length; the demand is that of the next period, by the mean of ``memory_s``.
        Fewer when that was so for ``down_after_s``.
    State: tokens a second of late; what was wanted of late.
    Consumes: nothing.
    Complexity: O(pools).
    Failure mode: as its source says itself, lengths of two kinds: a mean that no request has. It forecasts by the past.
    Source: Dynamo's SLA planner, with its constant predictor.

    Args:
        prefill_tokens_per_s: Prompt tokens that a replica computes in a second, within the TTFT SLO.
        decode_tokens_per_s: Output tokens that a replica gives in a second, within the TPOT SLO.
        memory_s: Demand is the mean over so long.
        down_after_s: How long fewer must be enough.

    Raises:
        ConfigError: A number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        prefill_tokens_per_s: float,
        decode_tokens_per_s: float,
        memory_s: float = 60.0,
        down_after_s: float = 300.0,
    ) -> None:
        SCALING.check_positive("prefill_tokens_per_s", prefill_tokens_per_s)
        SCALING.check_positive("decode_tokens_per_s", decode_tokens_per_s)
        SCALING.check_positive("memory_s", memory_s)
        SCALING.check_number("down_after_s", down_after_s, 0.0)
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._decode_tokens_per_s = decode_tokens_per_s
        self._memory_s = memory_s
        self._stable = Stabilization(down_after_s)
        self._replicas: dict[str, float] = {}

    def targets(self, view: ScalingView, now_s: float) -> Mapping[str, int]:
        kept = math.exp(-view.period_s / self._memory_s)
        for name, pool in view.pools.items():
            now = self._replicas_for(pool, view.period_s)
            self._replicas[name] = kept * self._replicas.get(name, now) + (1.0 - kept) * now
        return {name: self._stable.at(name, math.ceil(self._replicas[name]), now_s) for name in view.pools}

    def _replicas_for(self, pool: PoolView, period_s: float) -> float:
        prefill = pool.demand.prompt_tokens / self._prefill_tokens_per_s / period_s
        decode = pool.demand.output_tokens / self._decode_tokens_per_s / period_s
        if pool.role is Role.UNIFIED:
            return prefill + decode
        return prefill if pool.role is Role.PREFILL else decode
