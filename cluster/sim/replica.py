"""A replica in virtual time: hosts the model of its engine, and carries what that tells over the network."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from cluster.pacing import flush_pause_s
from cluster.sim.attempt import SimAttempt
from cluster.sim.event_queue import EventQueue, Handler, Rank
from cluster.sim.run_table import ReplicaTotals
from cluster.sim.topology import FleetSpec, PoolSpec
from engines.faults import FaultKind
from engines.handoff import has_room
from engines.model.engine_model import EngineModel, Messages
from engines.model.messages import (
    AskClaim,
    BeginFault,
    Begun,
    ClaimKv,
    EndFault,
    Failed,
    Finished,
    FirstToken,
    GrantClaim,
    KvClaimed,
    KvClaimEnded,
    KvGone,
    KvHolderLost,
    KvPulled,
    Message,
    Withdrawn,
)
from policies.decisions import Reason
from policies.views import Role
from routing.request.events import (
    AnswerBegun,
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    CacheChanged,
    FirstTokenReceived,
    LaneLengthExceeded,
    ReplicaInfo,
)
from routing.request.news import CacheChange


class SimReplica:
    """One replica; see the module.

    Args:
        replica_id: Its name, unique among all replicas that ever were.
        pool: Its pool.
        fleet: The delays.
        events: Where its future goes.
        die_of: Called with an attempt that it dies of.
        index: Its place among its pool's.
        asked_s: When it was asked for.
        born_s: From when on it is there.

    Attributes:
        engine: The model; for its state to be read.
        makes_no_step: Whether its engine makes none, whatever it has to do.
    """

    def __init__(
        self,
        replica_id: str,
        pool: PoolSpec,
        fleet: FleetSpec,
        events: EventQueue,
        die_of: Handler,
        *,
        index: int = 0,
        asked_s: float = 0.0,
        born_s: float = 0.0,
    ) -> None:
        self._asked_s, self._born_s, self._died_s = asked_s, born_s, math.inf
        self._warm_s, self._warm_since_s = 0.0, math.inf
        self._pool = pool
        self.replica_id = replica_id
        self.role = pool.role
        self.pool_name = pool.name
        self.place = fleet.place(pool, index)
        self._link_slowdown = partial(fleet.link_slowdown, pool)
        self.prefill_tokens = 0
        self.kv_tokens = 0
        self.is_dead = False
        self.engine = EngineModel(pool.steps, fleet.kv_lease_s)
        self._steps = self.engine.steps
        if fleet.kv_events:
            self._steps.batch.blocks.watch()
        self._context_tokens = pool.profile.context_tokens
        self._network_delay_s = fleet.network_delay_s
        self._detection_delay_s = fleet.detection_delay_s
        self._flush_interval_s = fleet.flush_interval_s
        self._events = events
        self._die_of = die_of
        self._wake_at_s = math.inf
        self.makes_no_step = False
        self._attempts: dict[str, SimAttempt] = {}
        self._pulls: dict[str, SimAttempt] = {}
        self._watched: dict[str, SimAttempt] = {}
        self._num_attempts = 0
        self._carriers = self._message_carriers()

    def _message_carriers(self) -> dict[type, Callable[[Any, float], None]]:
        """What becomes of each message of the engine."""
        return {
            FirstToken: self._begin_answer,
            Finished: self._finish,
            Failed: self._turn_away,
            Withdrawn: self._withdraw,
            ClaimKv: self._claim_kv,
            KvPulled: self._tell_pulled,
            AskClaim: self._take_turn,
            Begun: self._take_turn,
            GrantClaim: self._leave_to_caller,
            KvClaimed: self._leave_to_caller,
            KvGone: self._leave_to_caller,
        }

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV blocks in use, as it is reported."""
        return round(self._steps.batch.blocks.usage_fraction, 4)

    @property
    def adapters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Adapters that it has loaded, the last one used first, and those that are in use."""
        return self._steps.batch.adapters.names, self.engine.adapters_in_use

    @property
    def kv_block_tokens(self) -> int:
        """Tokens in a KV block."""
        return self._steps.batch.blocks.block_tokens

    @property
    def num_ongoing(self) -> int:
        """Attempts that it has."""
        return len(self._attempts)

    @property
    def is_idle(self) -> bool:
        """Whether it has no attempt, and holds KV for none elsewhere."""
        return not self._attempts and not self._steps.batch.blocks.num_used

    def link_slowdown_from(self, place: tuple[str, ...]) -> float:
        """How many times as long as by its own link KV takes to come from there."""
        return self._link_slowdown(self.place, place) if self.place else 1.0

    def sleep(self, now_s: float) -> None:
        """It takes no requests until it is woken up, and has nothing to finish."""
        self._warm_since_s = now_s
        if self._pool.profile.wake_s > 0.0:
            self.engine.sleep()

    def wake(self, now_s: float) -> None:
        """It takes requests again."""
        self._warm_s += now_s - self._warm_since_s
        self._warm_since_s = math.inf

    def retire(self, now_s: float) -> None:
        """It is not needed any more, and has nothing to finish."""
        self.is_dead = True
        self._died_s = now_s

    def info(self, pool: PoolSpec) -> ReplicaInfo:
        """What gateways are told of it once, in the pool that it serves."""
        blocks = self._steps.batch.blocks
        return ReplicaInfo(
            replica_id=self.replica_id,
            role=pool.role,
            pool=pool.name,
            max_ongoing_requests=pool.max_ongoing_requests,
            kv_capacity_tokens=blocks.num_blocks * blocks.block_tokens,
            place=self.place,
            max_adapters=pool.limits.max_adapters,
        )

    def totals(self, end_s: float) -> ReplicaTotals:
        """What it did in a run that ended at ``end_s``."""
        batch = self._steps.batch
        return ReplicaTotals(
            replica_id=self.replica_id,
            role=self.role.value,
            pool=self.pool_name,
            asked_s=self._asked_s,
            up_s=max(0.0, min(end_s, self._died_s) - self._born_s),
            held_s=max(0.0, min(end_s, self._died_s) - self._asked_s),
            warm_s=self._warm_s + max(0.0, min(end_s, self._died_s) - self._warm_since_s),
            dollars_per_h=self._pool.dollars_per_h,
            busy_s=self._steps.busy_s,
            prompt_tokens=batch.num_prompt_tokens,
            cached_tokens=batch.num_cached_tokens,
            output_tokens=batch.num_output_tokens,
            preemptions=batch.num_preemptions,
            adapter_loads=batch.adapters.num_loads,
            attempts=self._num_attempts,
        )

    def num_output_tokens_of(self, attempt: SimAttempt, now_s: float) -> int:
        """Tokens that an attempt here has generated so far, or had when the replica died."""
        own_tokens = self._steps.num_output_tokens_of(attempt.sequence, min(now_s, self._died_s))
        return own_tokens + attempt.num_from_prefill if own_tokens or attempt.awaits_kv else 0

    def answers_s(self, now_s: float) -> float:
        """When a question that reaches it now is answered, if only by the news that it is dead."""
        return max(now_s, self._died_s + self._detection_delay_s) if self.is_dead else now_s

    def tell_lane_length_exceeded(self, now_s: float) -> None:
        """Says which answers have become longer than their gateways wanted to hear of."""
        for attempt in list(self._watched.values()):
            own_tokens = self._steps.batch.num_output_tokens_of(attempt.sequence)  # at the end of the last run
            output_tokens = own_tokens + attempt.num_from_prefill
            while attempt.lane_limits_tokens and output_tokens >= attempt.lane_limits_tokens[0]:
                attempt.lane_limits_tokens = attempt.lane_limits_tokens[1:]
                attempt.reply(now_s, LaneLengthExceeded(attempt_id=attempt.attempt_id, output_tokens=output_tokens))
            if not attempt.lane_limits_tokens:
                del self._watched[attempt.attempt_id]
        if self._watched:
            self._steps.look(now_s)  # what is generated by now is told with the next report
            self._wake_later()

    def has(self, attempt: SimAttempt) -> bool:
        """Whether it is here, and not over."""
        return self._attempts.get(attempt.attempt_id) is attempt

    # -- messages from gateways and other replicas --------------------------------------------------------------------

    def receive(self, now_s: float, attempt: SimAttempt) -> None:
        """Takes an attempt in, or turns it away."""
        attempt_id = attempt.attempt_id
        attempt.came_s = attempt.kv_pulled_s = now_s
        self._attempts[attempt_id] = attempt
        self.prefill_tokens += attempt.prefill_tokens
        self.kv_tokens += attempt.kv_tokens
        request = attempt.request
        if request.prompt_tokens + request.output_tokens > self._context_tokens and not self.is_dead:
            self._turn_away(Failed(attempt_id, Reason.INVALID_REQUEST, "longer than the context"), now_s)
            return
        answers = self.engine.submit(attempt.sequence, now_s)
        if answers:
            if attempt.num_from_prefill and type(answers[0]) is ClaimKv and self._has_room_for(attempt):
                attempt.awaits_kv = True
                attempt.reply(now_s, AnswerBegun(attempt_id=attempt_id))
            self._carry_out(answers, now_s)
            if attempt_id not in self._attempts:
                return
        self._num_attempts += 1
        if attempt.lane_limits_tokens:
            self._watched[attempt_id] = attempt
        self._wake_later()

    def _has_room_for(self, attempt: SimAttempt) -> bool:
        """Whether its gateway gets the first token that came with its prompt before the KV."""
        batch = self._steps.batch
        return has_room(
            attempt.sequence.prompt_tokens,
            num_running=len(batch.running),
            max_num_seqs=self._pool.limits.max_num_seqs,
            kv_cache_usage=batch.blocks.usage_fraction,
            kv_capacity_tokens=batch.blocks.num_blocks * batch.blocks.block_tokens,
        )

    def cancel(self, now_s: float, attempt_id: str) -> None:
        """Stops an attempt; its gateway does not wait for an answer."""
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            self._close(attempt)
            self._carry_out(self.engine.abort(attempt_id, now_s), now_s)
            self._wake_later()

    def tell(self, now_s: float, message: Message) -> Messages:
        """Tells the engine something; returns its answers, of which those to other replicas are the caller's."""
        answers = self.engine.handle(message, now_s)
        if answers:
            self._carry_out(answers, now_s)
        self._wake_later()
        return answers

    # -- faults -------------------------------------------------------------------------------------------------------

    def begin_fault(self, kind: FaultKind, factor: float, now_s: float) -> None:
        """Something goes wrong."""
        self.tell(now_s, BeginFault(kind, factor))
        self.makes_no_step |= kind is FaultKind.STALL
        if kind is FaultKind.CRASH and not self.is_dead:
            self._die(now_s)

    def end_fault(self, kind: FaultKind, now_s: float) -> None:
        """It goes right again; a crashed replica stays dead."""
        self.tell(now_s, EndFault(kind))
        self.makes_no_step &= kind is not FaultKind.STALL

    def lose_kv_source(self, replica_id: str, now_s: float) -> None:
        """A replica has died that may hold KV which attempts here are pulling: their connections break at once."""
        for attempt_id, attempt in list(self._pulls.items()):
            if attempt.kv_source_id == replica_id:
                del self._pulls[attempt_id]
                self.tell(now_s, KvHolderLost(attempt_id))

    def _die(self, now_s: float) -> None:
        """Gateways notice after a while, and the replicas whose KV it was pulling at once."""
        self.is_dead = True
        self._died_s = now_s
        for attempt in self._attempts.values():
            lost = AttemptFailed(attempt_id=attempt.attempt_id, reason=Reason.REPLICA_LOST)
            attempt.reply(now_s + self._detection_delay_s, lost)
        for attempt in self._pulls.values():
            attempt.tell_kv_source(now_s, KvClaimEnded(attempt.kv_from))
        self._attempts.clear()
        self._watched.clear()
        self._pulls.clear()

    # -- the engine ---------------------------------------------------------------------------------------------------

    def _wake_later(self) -> None:
        next_s = self.engine.next_event_s
        if next_s != self._wake_at_s:
            self._wake_at_s = next_s
            if next_s < math.inf:
                self._events.push(next_s, Rank.ENGINE, self._wake)

    def _wake(self, now_s: float, _: None) -> None:
        if now_s == self._wake_at_s:
            carriers = self._carriers
            for message in self.engine.advance(now_s):
                carriers[type(message)](message, now_s)
            self._wake_later()

    def _carry_out(self, messages: Messages, now_s: float) -> None:
        for message in messages:
            self._carriers[type(message)](message, now_s)

    def _begin_answer(self, message: FirstToken, now_s: float) -> None:
        attempt = self._attempts[message.request_id]
        if attempt.request.kills_for_s:
            self._events.push(now_s, Rank.FAULT, self._die_of, attempt)
        elif attempt.stage is not Role.PREFILL:
            attempt.first_token_s = message.at_s
            self.prefill_tokens -= attempt.prefill_tokens
            attempt.prefill_tokens = 0
            attempt.reply(message.at_s, FirstTokenReceived(attempt_id=attempt.attempt_id))
            self._tell_cache(attempt, message.at_s)

    def _finish(self, message: Finished, now_s: float) -> None:
        attempt = self._attempts[message.request_id]
        if attempt.request.kills_for_s:
            return
        output_tokens = attempt.sequence.output_tokens + attempt.num_from_prefill
        end_s = message.at_s if attempt.stage is Role.PREFILL else self._flushed_s(attempt, message.at_s)
        if attempt.stage is Role.PREFILL:
            attempt.first_token_s = message.at_s
        self._close(attempt)
        attempt.reply(end_s, AttemptFinished(attempt_id=attempt.attempt_id, output_tokens=output_tokens))
        self._tell_cache(attempt, end_s)

    def _tell_cache(self, attempt: SimAttempt, at_s: float) -> None:
        """What has come into the prefix cache and gone from it goes with an answer, to that answer's gateway."""
        changes = self._steps.batch.blocks.take_changes()
        if changes:
            stored = tuple(name for name, is_there in changes.items() if is_there)
            dropped = tuple(name for name, is_there in changes.items() if not is_there)
            attempt.reply(at_s, CacheChanged(change=CacheChange(self.replica_id, stored, dropped)))

    def _flushed_s(self, attempt: SimAttempt, end_s: float) -> float:
        """When the last token leaves: with the first batch after it, where tokens gather for longer than one takes."""
        pause_s = flush_pause_s(len(self._attempts), self._flush_interval_s)
        stream_s = end_s - attempt.first_token_s
        if stream_s >= pause_s * (attempt.sequence.output_tokens - 1):
            return end_s
        return attempt.first_token_s + math.ceil(stream_s / pause_s) * pause_s

    def _turn_away(self, message: Failed, now_s: float) -> None:
        attempt = self._attempts[message.request_id]
        self._close(attempt)
        was_taken = message.reason is not Reason.REPLICA_LOST
        attempt.reply(now_s, AttemptFailed(attempt_id=attempt.attempt_id, reason=message.reason, was_taken=was_taken))

    def _withdraw(self, message: Withdrawn, now_s: float) -> None:
        attempt = self._attempts[message.request_id]
        self._close(attempt)
        attempt.reply(now_s, AttemptWithdrawn(attempt_id=attempt.attempt_id))

    def _take_turn(self, message: AskClaim | Begun, now_s: float) -> None:
        attempt = self._attempts.get(message.request_id)
        if attempt is not None:  # it may be over when another replica hears that it has begun
            attempt.on_turn(now_s)

    def _leave_to_caller(self, message: Message, now_s: float) -> None:
        """It is an answer to another replica."""

    def _claim_kv(self, message: ClaimKv, now_s: float) -> None:
        attempt = self._attempts[message.request_id]
        answers = attempt.ask_kv_source(ClaimKv(attempt.kv_from), now_s)
        if type(answers[0]) is KvClaimed:
            self._pulls[message.request_id] = attempt
            self.engine.handle(KvClaimed(message.request_id), now_s)
        else:
            self._carry_out(self.engine.handle(KvGone(message.request_id), now_s), now_s)

    def _tell_pulled(self, message: KvPulled, now_s: float) -> None:
        attempt = self._pulls.pop(message.request_id)
        attempt.kv_pulled_s = message.at_s
        pulled = KvPulled(attempt.kv_from, message.at_s)
        self._events.push(now_s + self._network_delay_s, Rank.TO_REPLICA, attempt.tell_kv_source, pulled)

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _close(self, attempt: SimAttempt) -> None:
        del self._attempts[attempt.attempt_id]
        self._watched.pop(attempt.attempt_id, None)
        self.prefill_tokens -= attempt.prefill_tokens
        self.kv_tokens -= attempt.kv_tokens
