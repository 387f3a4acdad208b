"""Decode by its tokens a second, prefill in a fixed ratio to it."""

import math
from collections.abc import Mapping
from typing import ClassVar

from policies.contracts import Need
from policies.params import SCALING
from policies.pool_views import ScalingView
from policies.scaling.stabilization import Stabilization
from policies.signals import Signal
from policies.views import Role


class Ratio:
    """How many replicas is each pool to have? Decode as many as its tokens take, prefill in a fixed ratio to it.

    Rule: ``decode = ceil(expected output tokens a second / decode_tokens_per_s)`` and ``prefill =
        ceil(prefill_per_decode * decode)``; a unified pool goes by its output tokens. Fewer when that was so for
        ``down_after_s``.
    State: what was wanted of late.
    Consumes: nothing.
    Complexity: O(pools).
    Failure mode: the ratio is that of one mix: when prompts grow and answers don't, prefill is short.
    Source: HeteroScale (ByteDance, 2025), which scales both stages by the one signal of decode throughput.

    Args:
        decode_tokens_per_s: Output tokens that a decode or unified replica is to give in a second.
        prefill_per_decode: Prefill replicas for each decode replica.
        down_after_s: How long fewer must be enough.

    Raises:
        ConfigError: A number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self, *, decode_tokens_per_s: float, prefill_per_decode: float = 1.0, down_after_s: float = 300.0
    ) -> None:
        SCALING.check_positive("decode_tokens_per_s", decode_tokens_per_s)
        SCALING.check_positive("prefill_per_decode", prefill_per_decode)
        SCALING.check_number("down_after_s", down_after_s, 0.0)
        self._decode_tokens_per_s = decode_tokens_per_s
        self._prefill_per_decode = prefill_per_decode
        self._stable = Stabilization(down_after_s)

    def targets(self, view: ScalingView, now_s: float) -> Mapping[str, int]:
        tokens = {name: pool.demand.output_tokens for name, pool in view.pools.items() if pool.role is not Role.PREFILL}
        per_replica = self._decode_tokens_per_s * view.period_s
        wanted = {name: its / per_replica for name, its in tokens.items()}
        for name, pool in view.pools.items():
            if pool.role is Role.PREFILL:
                wanted[name] = self._prefill_per_decode * sum(math.ceil(wanted[each]) for each in tokens)
        return {name: self._stable.at(name, math.ceil(its), now_s) for name, its in wanted.items()}
