"""Unified or prefill/decode for each request: whichever makes it and its neighbours wait less."""

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from policies.candidates import Candidates, load_of
from policies.contracts import Need
from policies.errors import ConfigError
from policies.views import ReplicaView, RequestView, Role
from routing.request.stages import DISAGGREGATED, UNIFIED, Plan
from routing.sizing.geometry import ServiceRates


class StageView(Protocol):
    """The fleet as the requests of one lane meet it."""

    def live(self, stage: Role, now_s: float) -> Sequence[ReplicaView]:
        """Replicas that serve a stage and are worth waiting for, in order of replica id."""
        ...

    def with_room(self, stage: Role, now_s: float) -> Candidates:
        """Replicas that would take the stage now, in order of replica id; none when all are full."""
        ...


class _Place(NamedTuple):
    """The replica that least work left would choose for a stage, and whether it is too full for one more."""

    replica: ReplicaView
    is_pressed: bool


class Conditional:
    """Which stages does this request go through? Those that make it and its neighbours wait the least.

    Rule: estimate the time to the first token of both plans on the replicas with the least work left: behind the
        prompts that wait there, with the decode steps in between, and with the handoff and one more decode step for
        prefill/decode, whose client may have a token before those: the gap after it counts as if it came before. To
        the unified plan add what its prefill does to the answers under way on its replica: the
        compute time of the uncached prompt, once for each, times ``interference_weight``. The cheaper plan wins; when
        they are equal, the unified one. Before that, a plan is vetoed whose replicas have no room, or would hold more
        KV than ``kv_limit_fraction`` of what they can, unless the other's would, too; and while a stage has no live
        replica, no request is planned through it.
    State: none; where the plans are about equal it does not matter which is taken, so nothing damps a change of mind.
    Consumes: nothing. Needs an engine profile, because it reckons in seconds.
    Complexity: O(log n) for n replicas of a stage; O(n) when all of them are full.
    Failure mode: with G gateways each sees a G-th of the answers under way, and thinks less of the harm by as much.
        Rates of another engine than the one that runs shift the border between the plans. A request that waits is not
        planned again when the load has changed meanwhile.
    Source: conditional disaggregation by effective prompt length and prefill load in NVIDIA Dynamo, by the uncached
        suffix in llm-d-router; here lengths are turned into seconds, so that no length has to be tuned.

    Args:
        rates: How fast the engines are.
        interference_weight: How many seconds' delay of a first token a second's delay of one answer under way is worth.
            Far less than 1, because an answer has all its tokens to make the delay good in.
        kv_limit_fraction: Share of a replica's KV cache, as expected at the longest, from which on it is spared.

    Raises:
        ConfigError: A parameter out of range.
    """

    roles: ClassVar[frozenset[Role]] = frozenset(Role)
    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.GEOMETRY, Need.SERVICE_RATES})

    def __init__(self, rates: ServiceRates, interference_weight: float = 0.04, kv_limit_fraction: float = 0.9) -> None:
        if not 0.0 <= interference_weight < math.inf:
            raise ConfigError("policies.planning.params.interference_weight", interference_weight, "0 or more")
        if not 0.0 < kv_limit_fraction <= 1.0:
            raise ConfigError("policies.planning.params.kv_limit_fraction", kv_limit_fraction, "more than 0, at most 1")
        self._rates = rates
        self._interference_weight = interference_weight
        self._kv_limit_fraction = kv_limit_fraction

    def plan(self, request: RequestView, fleet: StageView, now_s: float) -> Plan:
        prefill, decode = (self._place(request, fleet, stage, now_s) for stage in DISAGGREGATED)
        if prefill is None or decode is None:
            return UNIFIED
        whole = self._place(request, fleet, Role.UNIFIED, now_s)
        if whole is None:
            return DISAGGREGATED
        if whole.is_pressed is not (prefill.is_pressed or decode.is_pressed):
            return DISAGGREGATED if whole.is_pressed else UNIFIED
        unified_s = self._unified_s(request, whole.replica)
        return (
            UNIFIED if unified_s <= self._disaggregated_s(request, prefill.replica, decode.replica) else DISAGGREGATED
        )

    def _place(self, request: RequestView, fleet: StageView, stage: Role, now_s: float) -> _Place | None:
        candidates = fleet.with_room(stage, now_s)
        if not candidates:
            live = fleet.live(stage, now_s)
            return _Place(min(live, key=load_of), is_pressed=True) if live else None
        replica = candidates.least_work_left()
        kv_tokens = request.prompt_tokens if stage is Role.PREFILL else request.kv_tokens
        limit_tokens = self._kv_limit_fraction * replica.kv_capacity_tokens
        return _Place(replica, is_pressed=replica.kv_tokens + kv_tokens > limit_tokens)

    def _unified_s(self, request: RequestView, whole: ReplicaView) -> float:
        """Time to the first token, and the harm to the answers that are under way."""
        own_s = self._rates.compute_s(request.prompt_tokens, request.geometry.uncached_tokens)
        num_answers = whole.num_ongoing_requests
        waiting_tokens = whole.prefill_tokens + request.geometry.uncached_tokens
        steps = 0.5 + math.ceil(waiting_tokens / self._rates.step_tokens)  # half of one is left when the request comes
        first_token_s = whole.prefill_tokens * self._rates.new_token_s + own_s + steps * self._decode_step_s(whole)
        return first_token_s + self._interference_weight * num_answers * own_s

    def _disaggregated_s(self, request: RequestView, prefill: ReplicaView, decode: ReplicaView) -> float:
        """Time to the first token that is the decode's own."""
        prefill_s = self._rates.queue_s(prefill.prefill_tokens) + request.geometry.prefill_s
        handoff_s = self._rates.handoff_s + request.prompt_tokens * self._rates.handoff_token_s
        return prefill_s + handoff_s + 1.5 * self._decode_step_s(decode) + self._rates.queue_s(decode.prefill_tokens)

    def _decode_step_s(self, replica: ReplicaView) -> float:
        return self._rates.decode_step_s(replica.num_ongoing_requests, replica.kv_tokens)
