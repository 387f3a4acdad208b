"""One attempt in flight on Ray Serve: what comes of a call to a replica, up to exactly one terminal event."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from deployments.gateway.open_request import ServeOpenRequest
from deployments.telemetry.work.work_meter import AttemptWork
from deployments.wire import inner_hop
from deployments.wire.attempt_call import NO_CALL, AttemptCall, AttemptListener, AttemptOrder, NamedTiedRequest
from engines.contract import Chunk, EngineTimes, KvHandle
from policies.decisions import Reason
from policies.views import Role
from routing.request.effects import Send
from routing.request.events import (
    AnswerBegun,
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    CacheChanged,
    Event,
    FirstTokenReceived,
    LaneLengthExceeded,
)
from routing.request.news import CacheChange

AttemptEnd = AttemptFinished | AttemptFailed | AttemptWithdrawn
"""The terminal event of an attempt."""


Order = Callable[[AttemptOrder, AttemptListener], AttemptCall]
"""Has a replica run an attempt."""
FindTied = Callable[[], Awaitable[NamedTiedRequest | None]]
"""Finds out which attempt this one shares an execution claim with, and where that one's replica answers for it."""


class AttemptHost(Protocol):
    """Who hears what happens to attempts."""

    tasks: set[asyncio.Task[None]]
    """Those that attempts wait in."""

    def now_s(self) -> float:
        """The gateway's clock."""
        ...

    def handle(self, event: Event) -> None:
        """Something happened."""
        ...

    def ended(self, attempt_id: str, event: AttemptEnd) -> None:
        """Called once by each attempt, last of all."""
        ...


class RunningAttempt:
    """One attempt in flight: what its call gives becomes the dispatcher's events and the client's tokens.

    Args:
        host: Hears of it.
        send: What it is to do.
        opened: Its request.
        order: Has its replica run it.

    Attributes:
        opened: Its request.
        output_tokens: Tokens that have come of it.
        replica_id: Where it is: where it was sent, or the replica that took it.
        is_accepted: Whether a replica has taken it.
        has_ended: Whether its terminal event is out.
    """

    def __init__(self, host: AttemptHost, send: Send, opened: ServeOpenRequest, order: Order) -> None:
        self._host = host
        self.send = send
        self.opened = opened
        self._order = order
        self._call: AttemptCall = NO_CALL
        self._waiting: asyncio.Task[None] | None = None
        self._stopped_for: Reason | None = None
        self._is_truncated = False
        self._has_all = False
        self._awaits_first_token = True
        self.has_ended = False
        self.output_tokens = 0
        self._prompt_tokens = opened.view.prompt_tokens + len(opened.emitted)
        self._computed_tokens = send.prefill_tokens
        self._num_emitted = 0
        self._lane_limits_tokens = send.lane_limits_tokens
        self.replica_id = send.replica_id
        self.is_accepted = False
        self._is_placed = asyncio.Event()

    def start(self) -> None:
        """Makes the call."""
        self.opened.budget.sent(self.send.attempt_id, self.replica_id, self.send.kv_from)
        self._begin(None)

    def start_tied(self, find_tied: FindTied) -> None:
        """Makes the call once it is known which attempt this one shares an execution claim with."""
        self.opened.budget.sent(self.send.attempt_id, self.replica_id, self.send.kv_from)

        async def wait_and_begin() -> None:
            self._begin(await find_tied())

        self._waiting = asyncio.get_running_loop().create_task(wait_and_begin())
        self._host.tasks.add(self._waiting)
        self._waiting.add_done_callback(self._host.tasks.discard)

    def place(self) -> None:
        """It goes to the replica that it was sent to and to no other, which does not say when it has it."""
        self.is_accepted = True
        self.opened.budget.placed(self.send.attempt_id)
        self._is_placed.set()

    def accept(self, replica_id: str) -> None:
        """A replica has taken it, perhaps another than the one that it was sent to."""
        self.is_accepted = True
        self.replica_id = replica_id
        self.opened.budget.accepted(self.send.attempt_id, replica_id)
        self._is_placed.set()

    @property
    def work(self) -> AttemptWork:
        """What it has given its replica to do; until the engine has said what was cached, that is a guess."""
        return AttemptWork(
            stage=self.send.stage,
            prompt_tokens=self._prompt_tokens,
            computed_tokens=self._computed_tokens,
            output_tokens=self.output_tokens,
        )

    @property
    def _expected_cached_tokens(self) -> int:
        """Prompt tokens that need no computing where it was sent, as far as its gateway knew."""
        return self._prompt_tokens - self.send.prefill_tokens

    async def placed(self) -> None:
        """Returns when a replica has taken it, or when it is over."""
        await self._is_placed.wait()

    def stop(self, reason: Reason, *, is_truncated: bool = False) -> None:
        """Stops the attempt, or ends its answer where it is; the terminal event follows in the next turn."""
        if self._stopped_for is not None or self.has_ended:
            return
        self._stopped_for, self._is_truncated = reason, is_truncated
        if self._waiting is not None:
            self._waiting.cancel()
        self._call.cancel()
        asyncio.get_running_loop().call_soon(self._end_stopped)

    def _begin(self, tied_to: NamedTiedRequest | None) -> None:
        send, opened = self.send, self.opened
        order = AttemptOrder(
            attempt_id=send.attempt_id,
            stage=send.stage,
            request=opened.payload,
            handle=b"" if send.kv_from is None else opened.handles[send.kv_from],
            work=(send.prefill_tokens, send.kv_tokens),
            priority=send.engine_priority,
            tied_to=tied_to,
            patience_s=max(0.0, opened.view.deadline_s - self._host.now_s()),
            kept_as="" if send.stage is Role.PREFILL else opened.keeping.name,
            kept_for_s=opened.keeping.for_s,
        )
        self._call = self._order(order, self)

    # -- what comes of the call ---------------------------------------------------------------------------------------

    def receive(self, item: inner_hop.Item) -> None:
        """One item of its replica's; what comes after it was stopped is for nobody."""
        if self.has_ended or self._stopped_for is not None:
            return
        if isinstance(item, inner_hop.WithCacheChange):
            change = CacheChange(self.replica_id, item.stored, item.dropped)
            self._host.handle(CacheChanged(change=change))
            item = item.item
        if self.send.stage is Role.PREFILL:
            self._take_handle(item)
        elif isinstance(item, Chunk) and item.finish_reason != "abort":
            self._take_chunk(item)
        else:
            self._fail_with(item)

    def fail(self, reason: Reason, *, was_taken: bool = True) -> None:
        """The way to its replica is broken."""
        if self._stopped_for is None:
            self._end_failed(reason, was_taken=was_taken and self.is_accepted)

    def _take_handle(self, item: inner_hop.Item) -> None:
        if not isinstance(item, KvHandle):
            self._fail_with(item)
            return
        self.opened.budget.took(self.send.attempt_id, EngineTimes(prefill_s=item.prefill_s))
        self.opened.handles[self.send.attempt_id] = inner_hop.encode(item)
        self._hear_cached(item.cached_tokens)
        self.opened.expected_cached_tokens = self._expected_cached_tokens
        self._end_finished(output_tokens=1)

    def _take_chunk(self, chunk: Chunk) -> None:
        if self._awaits_first_token:
            self._take_first_of(chunk)
        self.output_tokens += len(chunk.token_ids)
        if self._lane_limits_tokens:
            self._tell_lane_length_exceeded()
        if self.opened.committed == self.send.attempt_id:
            if not self.opened.emitted and self.send.stage is Role.UNIFIED:
                self.opened.expected_cached_tokens = self._expected_cached_tokens
            self._num_emitted += len(chunk.token_ids)
            self._has_all = chunk.finish_reason is not None
            self.opened.emit(chunk, self._call.consumed)
        else:
            self._call.consumed()
        if chunk.finish_reason is not None:
            self._end_finished(self.output_tokens)

    def _take_first_of(self, chunk: Chunk) -> None:
        """The first chunk of its own tokens, or the token before them that came with the prompt."""
        if chunk.times is not None:
            self.opened.budget.took(self.send.attempt_id, chunk.times)
        if chunk.is_from_prefill:
            self._host.handle(AnswerBegun(attempt_id=self.send.attempt_id))
            return
        self._awaits_first_token = False
        self._hear_cached(chunk.cached_tokens)
        self._host.handle(FirstTokenReceived(attempt_id=self.send.attempt_id))

    def _hear_cached(self, cached_tokens: int | None) -> None:
        """What the engine says of its prompt; a decode's was computed elsewhere."""
        if cached_tokens is not None and self.send.stage is not Role.DECODE:
            self._computed_tokens = max(0, self._prompt_tokens - cached_tokens)

    def _tell_lane_length_exceeded(self) -> None:
        while self._lane_limits_tokens and self.output_tokens >= self._lane_limits_tokens[0]:
            self._lane_limits_tokens = self._lane_limits_tokens[1:]
            self._host.handle(LaneLengthExceeded(attempt_id=self.send.attempt_id, output_tokens=self.output_tokens))

    def _fail_with(self, item: inner_hop.Item) -> None:
        if isinstance(item, inner_hop.Failure):
            self.opened.failure = item
            self._end_failed(item.reason, was_taken=item.was_taken)
        elif isinstance(item, inner_hop.Withdrawn):
            self._end(AttemptWithdrawn(attempt_id=self.send.attempt_id))
        else:
            self._end_failed(Reason.ENGINE_ERROR)

    def _end_stopped(self) -> None:
        """To end the answer where it is, or because its place or its answer is not wanted."""
        if self._is_truncated and not (self.has_ended or self._has_all):
            self.opened.stream.put(Chunk("", (), "length"))
        if self._is_truncated or self._has_all:
            self._end_finished(self.output_tokens)
        else:
            self._end_failed(self._stopped_for or Reason.REPLICA_LOST, was_taken=self.is_accepted)

    def _end_finished(self, output_tokens: int) -> None:
        if self.send.stage is not Role.PREFILL and not self.has_ended:
            self.opened.output_tokens = len(self.opened.emitted)
        self._end(AttemptFinished(attempt_id=self.send.attempt_id, output_tokens=output_tokens))

    def _end_failed(self, reason: Reason, *, was_taken: bool = True) -> None:
        failed = AttemptFailed(
            attempt_id=self.send.attempt_id, reason=reason, output_tokens=self._num_emitted, was_taken=was_taken
        )
        self._end(failed)

    def _end(self, event: AttemptEnd) -> None:
        """What is said first counts."""
        if not self.has_ended:
            self.has_ended = True
            self._is_placed.set()
            self.opened.budget.ended(self.send.attempt_id)
            self._host.ended(self.send.attempt_id, event)
