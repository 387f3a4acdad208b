"""Two slots in two queues for one prompt, which is computed once."""

import math
from typing import ClassVar

from policies.attempt_views import AttemptView
from policies.candidates import Candidates
from policies.contracts import Need
from policies.hedging.limits import prompts_first
from policies.params import HEDGING
from policies.signals import Signal
from policies.views import FleetView, ReplicaView, RequestView


class Tied:
    """How long to wait before a second attempt is sent? Not at all, if there is somebody to wait for.

    Rule: an attempt whose replica has ``min_ahead_tokens`` or more to compute before it is sent a second time at once,
        to the replica with the fewest prompt tokens to compute. The two are tied: whoever's turn comes first computes
        the prompt, and the other one leaves its queue. So it needs no budget and no gate of its own.
    State: none.
    Consumes: nothing.
    Complexity: O(1); a look at every replica for each pair.
    Failure mode: it is no help against a replica that is slow with what it has begun; ``slowdown`` is. Until a pair is
        decided both replicas count its work, so the more pairs there are the less the counts tell replicas apart. The
        longer messages between replicas take, the longer engines wait for execution claims.
    Source: tied requests in Dean and Barroso, The Tail at Scale (CACM 2013).

    Args:
        min_ahead_tokens: Prompt tokens; with fewer before it an attempt is as good as begun.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.CLAIMS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, min_ahead_tokens: int = 1) -> None:
        HEDGING.check_number("min_ahead_tokens", min_ahead_tokens, 0)
        self._min_ahead_tokens = min_ahead_tokens

    def delay_s(self, request: RequestView, attempt: AttemptView, fleet: FleetView, now_s: float) -> float:
        ahead_tokens = attempt.replica.prefill_tokens - attempt.prefill_tokens
        return 0.0 if ahead_tokens >= self._min_ahead_tokens else math.inf

    def target(
        self, request: RequestView, attempt: AttemptView, candidates: Candidates, now_s: float
    ) -> ReplicaView | None:
        return min(candidates, key=prompts_first)
