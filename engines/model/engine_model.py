"""The model of an engine, without I/O and without a clock: its steps, and all that it means around them.

Around the steps are the requests that are open, the KV that finished prefills hold for other engines, leases and claims
on it, execution claims that two attempts share, and faults. A host tells it messages and carries out those that it gets
back, at once or on their way to another engine; it lets time pass with :meth:`EngineModel.advance`. The emulated engine
is such a host, with sockets and in real time; a simulated replica is another one, with a heap of events.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from engines.faults import FaultKind
from engines.model.cost_model import PS_PER_S
from engines.model.held_kv import HeldKv, KvHold
from engines.model.messages import (
    Abort,
    AskClaim,
    BeginFault,
    Begun,
    ClaimKv,
    EndFault,
    Failed,
    Finished,
    FirstToken,
    GrantClaim,
    Happening,
    KvClaimed,
    KvClaimEnded,
    KvGone,
    KvHolderLost,
    KvPulled,
    Meet,
    Message,
    StepOutput,
    Submit,
    Withdrawn,
)
from engines.model.sequences import ExecutionClaim, Sequence, SequenceStage
from engines.model.step_model import NEVER_PS, StepModel, StepModelSpec
from policies.decisions import Reason
from policies.errors import InvariantViolation

REMEMBERED = 4096
"""Attempts: as many as come in the time that two engines' messages about one may take, and far more."""
Messages = tuple[Message, ...] | list[Message]
NOTHING: Messages = ()


class _RecentIds:
    """The ids of the last few thousand requests that something has happened to."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._in_order: deque[str] = deque()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def add(self, request_id: str) -> None:
        """It has happened to this one, for the first time; the one that has been here for the longest is forgotten."""
        if request_id not in self._ids:
            self._ids.add(request_id)
            self._in_order.append(request_id)
            if len(self._in_order) > REMEMBERED:
                self._ids.discard(self._in_order.popleft())


class EngineModel:
    """One engine; see the module. Times that go in never go back.

    What is due comes before what is told: a host advances to ``now_s`` first, but for what reaches the engine at the
    very boundary of a step, which it may tell before.

    Args:
        spec: Its steps.
        kv_lease_s: How long the KV of a finished prefill is held that no engine has claimed.

    Attributes:
        steps: Its batch, KV blocks and step times; for a host to read.
        is_dead: It takes nothing in, and nothing happens in it any more.
        prompt_tokens: Prompt tokens taken in.
        kv_tokens_received: Prompt tokens whose KV came from other engines.
        kv_transfer_failures: Claims on other engines' KV that came to nothing.
    """

    def __init__(self, spec: StepModelSpec, kv_lease_s: float) -> None:
        self.steps = StepModel(spec)
        self.is_dead = False
        self.prompt_tokens = 0
        self.kv_tokens_received = 0
        self.kv_transfer_failures = 0
        self._held = HeldKv(kv_lease_s)
        self._open: dict[str, Sequence] = {}
        self._claiming: dict[str, Sequence] = {}
        self._pulling: dict[str, Sequence] = {}
        self._faults: set[FaultKind] = set()
        self._met = _RecentIds()
        self._begun = _RecentIds()
        self._given_away = _RecentIds()
        self._handlers: dict[type, Callable[[Any, float], Messages]] = {
            Submit: self._submit,
            Abort: self._abort,
            BeginFault: self._begin_fault,
            EndFault: self._end_fault,
            ClaimKv: self._claim_kv,
            KvPulled: self._end_claim,
            KvClaimEnded: self._end_claim,
            KvClaimed: self._kv_claimed,
            KvGone: self._kv_gone,
            KvHolderLost: self._kv_holder_lost,
            Meet: self._meet,
            AskClaim: self._ask_claim,
            Begun: self._withdraw,
            GrantClaim: self._grant_claim,
        }

    # -- what a host reads --------------------------------------------------------------------------------------------

    @property
    def next_event_s(self) -> float:
        """When :meth:`advance` has something to do; infinite while nothing is to come."""
        if self.is_dead:
            return math.inf
        next_ps, lease_s = self.steps.next_ps, self._held.next_end_s
        step_s = math.inf if next_ps == NEVER_PS else next_ps / PS_PER_S
        if lease_s < step_s:
            return lease_s
        return step_s

    @property
    def open_requests(self) -> Mapping[str, Sequence]:
        """Requests that were taken in and are not over."""
        return self._open

    @property
    def adapters_in_use(self) -> tuple[str, ...]:
        """Adapters of requests that are open, whether or not they take part in steps yet."""
        return tuple(dict.fromkeys(each.adapter for each in self._open.values() if each.adapter))

    @property
    def num_unfinished(self) -> int:
        """Those, and those that are stopped when their KV has come."""
        return len(self._open.keys() | self._claiming.keys() | self._pulling.keys())

    @property
    def held(self) -> Mapping[str, KvHold]:
        """KV that is held for other engines, by the prefill's request id."""
        return self._held.holds

    @property
    def faults(self) -> frozenset[FaultKind]:
        """What goes wrong."""
        return frozenset(self._faults)

    def sleep(self) -> None:
        """Gives its KV cache up, with all that is in it.

        Raises:
            InvariantViolation: There are requests, or KV that is held for other engines.
        """
        if self.num_unfinished or self._held.holds:
            raise InvariantViolation("an engine with requests was put to sleep")
        self.steps.batch.blocks.drop_idle()

    # -- time and messages --------------------------------------------------------------------------------------------

    def handle(self, message: Message, now_s: float) -> Messages:
        """Takes a message in; returns what follows of it at once."""
        return self._handlers[type(message)](message, now_s)

    def advance(self, now_s: float) -> Messages:
        """Lets happen what is due; returns what follows of it, in order of time.

        Args:
            now_s: As a rule ``next_event_s``. The lease of a prefill that has finished begins then.
        """
        if self.is_dead:
            return NOTHING
        if now_s >= self._held.next_end_s:
            for freed in self._held.end_leases(now_s):
                self.steps.release_held(freed, now_s)
        outputs = self.steps.advance(now_s)
        if not outputs:
            return NOTHING
        messages: list[Message] = []
        for output in outputs:
            self._take_in(output, now_s, messages)
        return messages

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence, now_s: float) -> Messages:
        """:class:`Submit` without the message."""
        request_id = sequence.request_id
        if self._faults or self._has(request_id) or request_id in self._given_away:
            refused = self._refusal(request_id)
            if refused is not None:
                return (refused,)
        if sequence.adapter and not self.steps.batch.adapters.num_slots:
            why = f"the engine takes no adapters such as {sequence.adapter}"
            return (Failed(request_id, Reason.INVALID_REQUEST, why),)
        if not self.steps.fits(sequence.prompt_tokens, sequence.output_tokens):
            return (Failed(request_id, Reason.INVALID_REQUEST, f"the KV cache has no room for {request_id}"),)
        self._open[request_id] = sequence
        if sequence.pulls_kv:
            self._claiming[request_id] = sequence
            return (ClaimKv(request_id),)
        if sequence.claim is ExecutionClaim.NONE and request_id in self._met:
            sequence.claim = ExecutionClaim.HELD
        self.prompt_tokens += sequence.prompt_tokens
        self.steps.submit(sequence, now_s)
        return NOTHING

    def abort(self, request_id: str, now_s: float) -> Messages:
        """:class:`Abort` without the message."""
        sequence = self._open.get(request_id)
        if sequence is not None:
            return self._stop(sequence, now_s)
        freed = self._held.discard(request_id)
        if freed is not None:
            self.steps.release_held(freed, now_s)
        return NOTHING

    def _submit(self, message: Submit, now_s: float) -> Messages:
        return self.submit(message.sequence, now_s)

    def _abort(self, message: Abort, now_s: float) -> Messages:
        return self.abort(message.request_id, now_s)

    def _has(self, request_id: str) -> bool:
        return (
            request_id in self._open
            or request_id in self._held.holds
            or request_id in self._claiming
            or request_id in self._pulling
        )

    def _refusal(self, request_id: str) -> Failed | Withdrawn | None:
        if self.is_dead or FaultKind.REFUSE in self._faults:
            return Failed(request_id, Reason.REPLICA_LOST, "the engine takes no requests")
        if FaultKind.FAIL in self._faults:
            return Failed(request_id, Reason.ENGINE_ERROR, "the engine fails every request")
        if self._has(request_id):
            return Failed(request_id, Reason.ENGINE_ERROR, f"a request {request_id} is open already")
        return Withdrawn(request_id) if request_id in self._given_away else None

    def _stop(self, sequence: Sequence, now_s: float) -> Messages:
        """An open request leaves at the next boundary; one whose KV is on its way does when that has come."""
        request_id = sequence.request_id
        del self._open[request_id]
        if request_id in self._claiming:
            return NOTHING  # the steps do not know it, and the claim's answer is still to come
        if sequence.has_begun:
            self._begun.add(request_id)
        self.steps.abort(sequence, now_s)
        if request_id in self._pulling and sequence.stage is not SequenceStage.PULLING:
            del self._pulling[request_id]
            return (KvPulled(request_id, now_s),)
        return NOTHING

    # -- what happens in steps ----------------------------------------------------------------------------------------

    def _take_in(self, output: StepOutput, now_s: float, messages: list[Message]) -> None:
        sequence = output.sequence
        request_id = sequence.request_id
        happening = output.happening
        if happening is Happening.KV_PULLED:
            if self._pulling.get(request_id) is sequence:
                del self._pulling[request_id]
                self.kv_tokens_received += sequence.prompt_tokens - sequence.cached_tokens
                messages.append(KvPulled(request_id, output.at_s))
        elif self._open.get(request_id) is not sequence:
            return  # it was stopped meanwhile
        elif happening is Happening.FIRST_TOKEN:
            messages.append(FirstToken(request_id, output.at_s))
        elif happening is Happening.FINISHED:
            del self._open[request_id]
            self._begun.add(request_id)
            if sequence.holds_kv:
                self._held.hold(sequence, now_s)
            messages.append(Finished(request_id, output.at_s))
        elif sequence.claim is ExecutionClaim.ASKED:
            messages.append(AskClaim(request_id))
        else:
            messages.append(Begun(request_id))

    # -- faults -------------------------------------------------------------------------------------------------------

    def _begin_fault(self, message: BeginFault, now_s: float) -> Messages:
        if self.is_dead:
            return NOTHING
        self._faults.add(message.kind)
        if message.kind is FaultKind.SLOW:
            self.steps.slow_down(message.factor, now_s)
        elif message.kind is FaultKind.STALL:
            self.steps.stall(now_s)
        elif message.kind is FaultKind.CRASH:
            self._die(now_s)
        return NOTHING

    def _end_fault(self, message: EndFault, now_s: float) -> Messages:
        if self.is_dead or message.kind not in self._faults:
            return NOTHING
        self._faults.discard(message.kind)
        if message.kind is FaultKind.SLOW:
            self.steps.slow_down(1.0, now_s)
        elif message.kind is FaultKind.STALL:
            self.steps.resume(now_s)
        return NOTHING

    def _die(self, now_s: float) -> None:
        self.is_dead = True
        self.steps.stall(now_s)
        self._open.clear()
        self._claiming.clear()
        self._pulling.clear()
        self._held.clear()

    # -- KV that is held here -----------------------------------------------------------------------------------------

    def _claim_kv(self, message: ClaimKv, now_s: float) -> Messages:
        request_id = message.request_id
        if FaultKind.DROP_KV in self._faults or not self._held.claim(request_id):
            return (KvGone(request_id),)
        return (KvClaimed(request_id),)

    def _end_claim(self, message: KvPulled | KvClaimEnded, now_s: float) -> Messages:
        freed = self._held.end_claim(message.request_id, now_s, is_pulled=type(message) is KvPulled)
        if freed is not None:
            self.steps.release_held(freed, now_s)
        return NOTHING

    # -- KV that another engine holds ---------------------------------------------------------------------------------

    def _kv_claimed(self, message: KvClaimed, now_s: float) -> Messages:
        request_id = message.request_id
        sequence = self._claiming.pop(request_id, None)
        if self.is_dead:
            return (KvClaimEnded(request_id),)
        if sequence is None or self._open.get(request_id) is not sequence:
            return (KvPulled(request_id, now_s),)
        self._pulling[request_id] = sequence
        self.prompt_tokens += sequence.prompt_tokens
        self.steps.submit(sequence, now_s)
        return NOTHING

    def _kv_gone(self, message: KvGone, now_s: float) -> Messages:
        sequence = self._claiming.pop(message.request_id, None)
        if sequence is None:
            return NOTHING
        self.kv_transfer_failures += 1
        if self._open.pop(message.request_id, None) is None:
            return NOTHING
        return (Failed(message.request_id, Reason.KV_TRANSFER_FAILED, message.why),)

    def _kv_holder_lost(self, message: KvHolderLost, now_s: float) -> Messages:
        request_id = message.request_id
        sequence = self._pulling.pop(request_id, None)
        if sequence is None:
            return NOTHING
        self.kv_transfer_failures += 1
        if self._open.get(request_id) is not sequence:
            return NOTHING
        self._stop(sequence, now_s)
        return (Failed(request_id, Reason.KV_TRANSFER_FAILED, f"the prefill engine of {request_id} died"),)

    # -- execution claims that are kept here --------------------------------------------------------------------------

    def _meet(self, message: Meet, now_s: float) -> Messages:
        request_id = message.request_id
        sequence = self._open.get(request_id)
        if self._has_begun(request_id, sequence):
            return (Begun(request_id),)
        if sequence is None:
            self._met.add(request_id)
        elif sequence.claim is ExecutionClaim.NONE:
            self.steps.share(sequence)
        return NOTHING

    def _ask_claim(self, message: AskClaim, now_s: float) -> Messages:
        """Where the attempt is not here, it may be on its way and is withdrawn when it comes."""
        request_id = message.request_id
        sequence = self._open.get(request_id)
        if self.is_dead:
            return NOTHING
        if self._has_begun(request_id, sequence):
            return (Begun(request_id),)
        if sequence is None:
            self._given_away.add(request_id)
            return (GrantClaim(request_id),)
        self._stop(sequence, now_s)
        return (Withdrawn(request_id), GrantClaim(request_id))

    def _has_begun(self, request_id: str, sequence: Sequence | None) -> bool:
        if self.is_dead:
            return False
        return sequence.has_begun if sequence is not None else request_id in self._begun

    # -- execution claims that another engine keeps -------------------------------------------------------------------

    def _grant_claim(self, message: GrantClaim, now_s: float) -> Messages:
        sequence = self._open.get(message.request_id)
        if sequence is not None:
            self.steps.grant(sequence, now_s)
        return NOTHING

    def _withdraw(self, message: Begun, now_s: float) -> Messages:
        sequence = self._open.get(message.request_id)
        if sequence is None or sequence.has_begun:
            return NOTHING
        self._stop(sequence, now_s)
        return (Withdrawn(message.request_id),)
