"""A replica in virtual time: the step model of its engine, the attempts it has open, the KV it holds for others."""

import math
from collections import deque
from collections.abc import Callable

from cluster.pacing import flush_pause_s
from cluster.sim.event_queue import EventQueue, Rank
from cluster.sim.run_table import ReplicaTotals
from cluster.sim.topology import FleetSpec, PoolSpec
from cluster.sim.traffic import PlannedRequest
from engines.faults import FaultKind
from engines.model.sequences import Sequence
from engines.model.step_model import Happening, StepModel, StepOutput
from policies.decisions import Reason
from policies.views import Role
from routing.request.effects import Send
from routing.request.events import (
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    FirstTokenReceived,
    LaneLengthExceeded,
    ReplicaInfo,
)

AttemptEvent = FirstTokenReceived | LaneLengthExceeded | AttemptFinished | AttemptFailed | AttemptWithdrawn
Reply = Callable[[float, AttemptEvent], None]
"""Sends an event to the attempt's gateway; the float is when it leaves the replica."""


class SimAttempt:
    """One attempt on its way to a replica, on it, and on its way back.

    Args:
        send: What the dispatcher asked for.
        request: For which request.
        reply: Reaches its gateway.
        num_emitted: Tokens of the answer that an attempt before it has emitted; they are part of its prompt.

    Attributes:
        on_turn: Called when its turn comes, if it shares a claim.
    """

    __slots__ = (
        "attempt_id",
        "first_token_s",
        "kv_from",
        "kv_source",
        "kv_tokens",
        "lane_limits_tokens",
        "on_turn",
        "prefill_tokens",
        "reply",
        "request",
        "sequence",
        "stage",
    )

    def __init__(self, send: Send, request: PlannedRequest, reply: Reply, num_emitted: int = 0) -> None:
        is_prefill = send.stage is Role.PREFILL
        self.attempt_id = send.attempt_id
        self.stage = send.stage
        self.prefill_tokens = send.prefill_tokens
        self.kv_tokens = send.kv_tokens
        self.lane_limits_tokens = send.lane_limits_tokens
        self.request = request
        self.reply = reply
        self.first_token_s = 0.0
        self.kv_source: SimReplica | None = None
        self.kv_from = ""
        self.on_turn: Callable[[float], None] = _tell_nobody
        self.sequence = Sequence(
            send.attempt_id,
            request.prompt_tokens + num_emitted,
            1 if is_prefill else request.output_tokens - num_emitted,
            priority=request.priority.rank,
            holds_kv=is_prefill,
            pulls_kv=send.stage is Role.DECODE,
            content=request.content,
            content_unit_tokens=request.content_unit_tokens,
        )

    def pull(self, kv_source: "SimReplica", kv_from: str) -> None:
        """The prompt's KV comes from ``kv_source``, which holds it for the prefill attempt ``kv_from``."""
        self.kv_source = kv_source
        self.kv_from = kv_from


class _HeldKv:
    """A finished prefill's KV, and how many decodes are pulling it."""

    __slots__ = ("num_pulls", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.num_pulls = 0


class SimReplica:
    """One replica; see the module.

    Args:
        replica_id: Its name, unique among all replicas that ever were.
        pool: Its pool.
        fleet: The delays.
        events: Where its future goes.
        born_s: From when on it is there.
    """

    def __init__(
        self, replica_id: str, pool: PoolSpec, fleet: FleetSpec, events: EventQueue, born_s: float = 0.0
    ) -> None:
        self._born_s = born_s
        self._died_s = math.inf
        self.replica_id = replica_id
        self.role = pool.role
        self.pool_name = pool.name
        self.prefill_tokens = 0
        self.kv_tokens = 0
        self.is_dead = False
        self._context_tokens = pool.profile.context_tokens
        self._network_delay_s = fleet.network_delay_s
        self._detection_delay_s = fleet.detection_delay_s
        self._kv_lease_s = fleet.kv_lease_s
        self._flush_interval_s = fleet.flush_interval_s
        self._events = events
        self._model = StepModel(pool.profile.step_model(pool.limits, kv_capacity_tokens=pool.kv_capacity_tokens))
        self._wake_at_s = math.inf
        self._open: dict[str, SimAttempt] = {}
        self._pulls: dict[str, SimAttempt] = {}
        self._watched: dict[str, SimAttempt] = {}
        self._held: dict[str, _HeldKv] = {}
        self._leases: deque[tuple[float, str]] = deque()
        self._faults: set[FaultKind] = set()
        self._num_attempts = 0

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV blocks in use, as it is reported."""
        return round(self._model.batch.blocks.usage_fraction, 4)

    def info(self, pool: PoolSpec) -> ReplicaInfo:
        """What gateways are told of it once."""
        blocks = self._model.batch.blocks
        return ReplicaInfo(
            replica_id=self.replica_id,
            role=self.role,
            pool=self.pool_name,
            max_ongoing_requests=pool.max_ongoing_requests,
            kv_capacity_tokens=blocks.num_blocks * blocks.block_tokens,
        )

    def totals(self, end_s: float) -> ReplicaTotals:
        """What it did in a run that ended at ``end_s``."""
        batch = self._model.batch
        return ReplicaTotals(
            replica_id=self.replica_id,
            role=self.role.value,
            up_s=max(0.0, min(end_s, self._died_s) - self._born_s),
            busy_s=self._model.busy_s,
            prompt_tokens=batch.num_prompt_tokens,
            cached_tokens=batch.num_cached_tokens,
            output_tokens=batch.num_output_tokens,
            preemptions=batch.num_preemptions,
            attempts=self._num_attempts,
        )

    def num_output_tokens_of(self, attempt: SimAttempt, now_s: float) -> int:
        """Tokens that an attempt here has generated so far, or had when the replica died."""
        return self._model.num_output_tokens_of(attempt.sequence, min(now_s, self._died_s))

    def tell_lane_length_exceeded(self, now_s: float) -> None:
        """Says which answers have become longer than their gateways wanted to hear of."""
        for attempt in list(self._watched.values()):
            output_tokens = self._model.batch.num_output_tokens_of(attempt.sequence)  # at the end of the last run
            while attempt.lane_limits_tokens and output_tokens >= attempt.lane_limits_tokens[0]:
                attempt.lane_limits_tokens = attempt.lane_limits_tokens[1:]
                attempt.reply(now_s, LaneLengthExceeded(attempt_id=attempt.attempt_id, output_tokens=output_tokens))
            if not attempt.lane_limits_tokens:
                del self._watched[attempt.attempt_id]
        if self._watched:
            self._model.look(now_s)  # what is generated by now is told with the next report
            self._wake_later()

    # -- messages from gateways and other replicas --------------------------------------------------------------------

    def receive(self, now_s: float, attempt: SimAttempt) -> None:
        """Takes an attempt in, or turns it away."""
        if self.is_dead or FaultKind.REFUSE in self._faults:
            self._turn_away(attempt, Reason.REPLICA_LOST, now_s)
        elif FaultKind.FAIL in self._faults:
            self._turn_away(attempt, Reason.ENGINE_ERROR, now_s)
        elif not self._fits(attempt):
            self._turn_away(attempt, Reason.INVALID_REQUEST, now_s)
        elif attempt.kv_source is not None and not attempt.kv_source.claim(attempt.kv_from):
            self._turn_away(attempt, Reason.KV_TRANSFER_FAILED, now_s)
        else:
            if attempt.kv_source is not None:
                self._pulls[attempt.attempt_id] = attempt
            self._open[attempt.attempt_id] = attempt
            if attempt.lane_limits_tokens:
                self._watched[attempt.attempt_id] = attempt
            self._num_attempts += 1
            self.prefill_tokens += attempt.prefill_tokens
            self.kv_tokens += attempt.kv_tokens
            self._model.submit(attempt.sequence, now_s)
            self._wake_later()

    def cancel(self, now_s: float, attempt_id: str) -> None:
        """Stops an attempt; its gateway does not wait for an answer."""
        attempt = self._open.get(attempt_id)
        if attempt is not None:
            self._close(attempt)
            self._model.abort(attempt.sequence, now_s)
            self._wake_later()

    def claim(self, attempt_id: str) -> bool:
        """Whether a prefill's KV is held here; if so it is kept until :meth:`release` or :meth:`give_up`."""
        held = self._held.get(attempt_id)
        if held is None or FaultKind.DROP_KV in self._faults:
            return False
        held.num_pulls += 1
        return True

    def release(self, now_s: float, attempt_id: str) -> None:
        """A prefill's KV was pulled."""
        held = self._held.get(attempt_id)
        if held is not None:
            held.num_pulls -= 1
            if held.num_pulls <= 0:
                self._free(attempt_id, now_s)

    def give_up(self, now_s: float, attempt_id: str) -> None:
        """Whoever was pulling a prefill's KV has died; somebody else may pull it within the lease."""
        held = self._held.get(attempt_id)
        if held is not None:
            held.num_pulls -= 1
            self._lease(attempt_id, now_s)

    # -- claims that two attempts share -------------------------------------------------------------------------------

    def share(self, attempt: SimAttempt, on_turn: Callable[[float], None]) -> bool:
        """Whether an attempt is here and has not begun; if so ``on_turn`` is called when it does."""
        if attempt.attempt_id not in self._open or attempt.sequence.has_begun:
            return False
        attempt.on_turn = on_turn
        self._model.share(attempt.sequence)
        return True

    def has_begun(self, attempt: SimAttempt) -> bool:
        """Whether an attempt's prompt is computed here; nothing is where the replica is dead."""
        return attempt.sequence.has_begun and not self.is_dead

    def withdraw(self, now_s: float, attempt: SimAttempt) -> None:
        """Another replica computes an attempt's prompt: it leaves the queue, unless it is gone or has begun."""
        if attempt.attempt_id in self._open and not attempt.sequence.has_begun:
            self.cancel(now_s, attempt.attempt_id)
            attempt.reply(now_s, AttemptWithdrawn(attempt_id=attempt.attempt_id))

    def grant(self, now_s: float, attempt: SimAttempt) -> None:
        """An attempt that has asked for its claim may begin."""
        if attempt.attempt_id in self._open:
            self._model.grant(attempt.sequence, now_s)
            self._wake_later()

    def answers_s(self, now_s: float) -> float:
        """When whoever asks something of it now has an answer, if only that it is dead."""
        return max(now_s, self._died_s + self._detection_delay_s) if self.is_dead else now_s

    # -- faults -------------------------------------------------------------------------------------------------------

    def begin_fault(self, kind: FaultKind, factor: float, now_s: float) -> None:
        """Something goes wrong."""
        self._faults.add(kind)
        if kind is FaultKind.CRASH:
            self._die(now_s)
        elif kind is FaultKind.SLOW:
            self._model.slow_down(factor, now_s)
        elif kind is FaultKind.STALL:
            self._model.stall(now_s)
        self._wake_later()

    def end_fault(self, kind: FaultKind, now_s: float) -> None:
        """It goes right again; a crashed replica stays dead."""
        self._faults.discard(kind)
        if kind is FaultKind.SLOW:
            self._model.slow_down(1.0, now_s)
        elif kind is FaultKind.STALL:
            self._model.resume(now_s)
        self._wake_later()

    def _die(self, now_s: float) -> None:
        self.is_dead = True
        self._died_s = now_s
        self._model.stall(now_s)
        lost = AttemptFailed
        for attempt in self._open.values():
            attempt.reply(
                now_s + self._detection_delay_s, lost(attempt_id=attempt.attempt_id, reason=Reason.REPLICA_LOST)
            )
        for attempt in self._pulls.values():
            if attempt.kv_source is not None:
                attempt.kv_source.give_up(now_s, attempt.kv_from)
        self._open.clear()
        self._watched.clear()
        self._pulls.clear()
        self._held.clear()

    # -- the engine ---------------------------------------------------------------------------------------------------

    def _wake_later(self) -> None:
        next_s = math.inf if self.is_dead else self._model.next_event_s
        if next_s != self._wake_at_s:
            self._wake_at_s = next_s
            if next_s < math.inf:
                self._events.push(next_s, Rank.ENGINE, self._wake)

    def _wake(self, now_s: float, _: None) -> None:
        if now_s == self._wake_at_s:
            for output in self._model.advance(now_s):
                self._take_in(output, now_s)
            self._wake_later()

    def _take_in(self, output: StepOutput, now_s: float) -> None:
        attempt_id = output.sequence.request_id
        if output.happening is Happening.KV_PULLED:
            self._tell_pulled(self._pulls.pop(attempt_id), now_s)
            return
        attempt = self._open.get(attempt_id)
        if attempt is None:  # cancelled meanwhile
            return
        if output.happening is Happening.TURN:
            attempt.on_turn(now_s)
        elif output.happening is Happening.FINISHED:
            self._finish(attempt, output, now_s)
        elif attempt.stage is not Role.PREFILL:
            attempt.first_token_s = output.at_s
            self.prefill_tokens -= attempt.prefill_tokens
            attempt.prefill_tokens = 0
            attempt.reply(output.at_s, FirstTokenReceived(attempt_id=attempt_id))

    def _finish(self, attempt: SimAttempt, output: StepOutput, now_s: float) -> None:
        end_s = output.at_s
        if attempt.stage is Role.PREFILL:
            self._held[attempt.attempt_id] = _HeldKv(output.sequence)
            self._lease(attempt.attempt_id, now_s)
        else:
            end_s = self._flushed_s(attempt, end_s)
        self._close(attempt)
        attempt.reply(
            end_s, AttemptFinished(attempt_id=attempt.attempt_id, output_tokens=output.sequence.output_tokens)
        )

    def _flushed_s(self, attempt: SimAttempt, end_s: float) -> float:
        """When the last token leaves: with the first batch after it, where tokens gather for longer than one takes."""
        pause_s = flush_pause_s(len(self._open), self._flush_interval_s)
        stream_s = end_s - attempt.first_token_s
        if stream_s >= pause_s * (attempt.sequence.output_tokens - 1):
            return end_s
        return attempt.first_token_s + math.ceil(stream_s / pause_s) * pause_s

    def _tell_pulled(self, attempt: SimAttempt, now_s: float) -> None:
        if attempt.kv_source is not None:
            self._events.push(
                now_s + self._network_delay_s, Rank.TO_REPLICA, attempt.kv_source.release, attempt.kv_from
            )

    # -- attempts and what they leave ---------------------------------------------------------------------------------

    def _fits(self, attempt: SimAttempt) -> bool:
        request = attempt.request
        is_short_enough = request.prompt_tokens + request.output_tokens <= self._context_tokens
        sequence = attempt.sequence
        return is_short_enough and self._model.fits(sequence.prompt_tokens, sequence.output_tokens)

    def _turn_away(self, attempt: SimAttempt, reason: Reason, now_s: float) -> None:
        attempt.reply(now_s, AttemptFailed(attempt_id=attempt.attempt_id, reason=reason))

    def _close(self, attempt: SimAttempt) -> None:
        del self._open[attempt.attempt_id]
        self._watched.pop(attempt.attempt_id, None)
        self.prefill_tokens -= attempt.prefill_tokens
        self.kv_tokens -= attempt.kv_tokens

    def _lease(self, attempt_id: str, now_s: float) -> None:
        self._leases.append((now_s + self._kv_lease_s, attempt_id))
        if len(self._leases) == 1:
            self._events.push(self._leases[0][0], Rank.TO_REPLICA, self._end_leases)

    def _end_leases(self, now_s: float, _: None) -> None:
        """Frees what nobody came for; one event is enough for all leases, because all are equally long."""
        leases = self._leases
        while leases and (leases[0][0] <= now_s or leases[0][1] not in self._held):
            held = self._held.get(leases.popleft()[1])
            if held is not None and held.num_pulls <= 0:
                self._free(held.sequence.request_id, now_s)
        if leases:
            self._events.push(leases[0][0], Rank.TO_REPLICA, self._end_leases)

    def _free(self, attempt_id: str, now_s: float) -> None:
        self._model.release_held(self._held.pop(attempt_id).sequence, now_s)
        self._wake_later()


def _tell_nobody(now_s: float) -> None:
    """Its claim is its own."""
