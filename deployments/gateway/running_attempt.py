"""One attempt in flight on Ray Serve: a task that calls a replica, and ends in exactly one terminal event."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

from deployments.gateway.open_request import ServeOpenRequest
from deployments.telemetry.work.work_meter import AttemptWork
from deployments.wire import inner_hop
from deployments.wire.serve_internals import use_own_internal_request_id
from engines.contract import Chunk, EngineTimes, KvHandle
from policies.decisions import Reason
from policies.views import Role
from routing.request.effects import Send
from routing.request.events import (
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    CacheChanged,
    Event,
    FirstTokenReceived,
    LaneLengthExceeded,
)
from routing.request.news import CacheChange

LOGGER = logging.getLogger("ray.serve")

AttemptEnd = AttemptFinished | AttemptFailed | AttemptWithdrawn
"""The terminal event of an attempt."""


class AttemptHost(Protocol):
    """Who hears what happens to attempts."""

    tasks: set[asyncio.Task[None]]
    """Those of all attempts that are not over."""

    def handle(self, event: Event) -> None:
        """Something happened."""
        ...

    def ended(self, attempt_id: str, event: AttemptEnd) -> None:
        """Called once by each attempt, last of all."""
        ...


class RunningAttempt:
    """One attempt in flight: a task on a deployment handle.

    Args:
        host: Hears of it.
        send: What it is to do.
        opened: Its request.
        caller: The handle of its pool, for its stage.
        find_tied: Finds out, before the call is made, which attempt it shares an execution claim with and where that
            one's replica answers for it.

    Attributes:
        opened: Its request.
        output_tokens: Tokens that have come of it.
        replica_id: Where it is: where it was sent, or the replica that took it.
        is_accepted: Whether a replica has taken it.
        has_ended: Whether its terminal event is out.
    """

    def __init__(
        self,
        host: AttemptHost,
        send: Send,
        opened: ServeOpenRequest,
        caller: DeploymentHandle,
        find_tied: Callable[[], Awaitable[tuple[str, str] | None]] | None = None,
    ) -> None:
        self._host = host
        self.send = send
        self.opened = opened
        self._caller = caller
        self._find_tied = find_tied
        self._more: dict[str, Any] = {}
        self._stopped_for: Reason | None = None
        self._is_truncated = False
        self._has_all = False
        self.has_ended = False
        self.output_tokens = 0
        self._prompt_tokens = opened.view.prompt_tokens + len(opened.emitted)
        self._computed_tokens = send.prefill_tokens
        self._num_emitted = 0
        self._lane_limits_tokens = send.lane_limits_tokens
        self.replica_id = send.replica_id
        self.is_accepted = False
        self._is_placed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the call in a task of its own, which the host holds on to until it is done."""
        self.opened.budget.sent(self.send.attempt_id, self.replica_id, self.send.kv_from)
        self._task = loop.create_task(self._run())
        self._host.tasks.add(self._task)
        self._task.add_done_callback(self._on_task_done)

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
        """Stops the attempt, or ends its answer where it is; the terminal event follows from its task."""
        if self._stopped_for is None and not self.has_ended and self._task is not None:
            self._stopped_for, self._is_truncated = reason, is_truncated
            self._task.cancel()

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        """A task that is cancelled before its first step never runs, and still owes its terminal event."""
        self._host.tasks.discard(task)
        self._end_stopped()

    async def _run(self) -> None:
        """Makes the call and reports exactly one terminal event."""
        use_own_internal_request_id()
        try:
            if self._find_tied is not None and (tied_request := await self._find_tied()):
                self._more["tied_to"] = tied_request
            if self.send.stage is Role.PREFILL:
                await self._run_prefill()
            else:
                await self._run_stream()
        except asyncio.CancelledError:
            self._end_stopped()
        except RayActorError as error:
            LOGGER.warning("attempt %s: replica %s is lost: %s", self.send.attempt_id, self.send.replica_id, error)
            self._end_failed(Reason.REPLICA_LOST)
        except Exception:
            LOGGER.exception("attempt %s failed on its way", self.send.attempt_id)
            self._end_failed(Reason.ENGINE_ERROR)

    def _call(self, *arguments: bytes) -> Any:
        send = self.send
        return self._caller.remote(
            *arguments,
            attempt_id=send.attempt_id,
            work=(send.prefill_tokens, send.kv_tokens),
            priority=send.engine_priority,
            target=send.replica_id,
            **self._more,
        )

    async def _run_prefill(self) -> None:
        call = self._call(self.opened.payload)
        try:
            answer: bytes = await call
        except asyncio.CancelledError:
            call.cancel()
            raise
        item = self._told_of_cache(inner_hop.decode_item(answer))
        if isinstance(item, KvHandle):
            self.opened.budget.took(self.send.attempt_id, EngineTimes(prefill_s=item.prefill_s))
            self.opened.handles[self.send.attempt_id] = inner_hop.encode(item)
            self._hear_cached(item.cached_tokens)
            self.opened.expected_cached_tokens = self._expected_cached_tokens
            self._end_finished(output_tokens=1)
        else:
            self._fail_with(item)

    async def _run_stream(self) -> None:
        arguments = [self.opened.payload]
        if self.send.kv_from is not None:
            arguments.append(self.opened.handles[self.send.kv_from])
        call = self._call(*arguments)
        try:
            async for raw in call:
                await self._take_in(self._told_of_cache(inner_hop.decode_item(raw)))
        except BaseException:
            call.cancel()
            raise
        if not self.has_ended:
            LOGGER.error("attempt %s: the replica's stream ended without a verdict", self.send.attempt_id)
            self._end_failed(Reason.REPLICA_LOST)

    def _told_of_cache(self, item: inner_hop.Item) -> inner_hop.Item:
        """The item itself; what has happened in the replica's prefix cache is the dispatcher's to know."""
        if not isinstance(item, inner_hop.WithCacheChange):
            return item
        self._host.handle(CacheChanged(change=CacheChange(self.replica_id, item.stored, item.dropped)))
        return item.item

    async def _take_in(self, item: inner_hop.Item) -> None:
        """One item of the replica's stream; what follows the verdict is only the end of the stream."""
        if self.has_ended:
            return
        if not isinstance(item, Chunk) or item.finish_reason == "abort":
            self._fail_with(item)
            return
        if self.output_tokens == 0:
            if item.times is not None:
                self.opened.budget.took(self.send.attempt_id, item.times)
            self._hear_cached(item.cached_tokens)
            self._host.handle(FirstTokenReceived(attempt_id=self.send.attempt_id))
        self.output_tokens += len(item.token_ids)
        self._tell_lane_length_exceeded()
        if self.opened.committed == self.send.attempt_id:
            if not self.opened.emitted and self.send.stage is Role.UNIFIED:
                self.opened.expected_cached_tokens = self._expected_cached_tokens
            self._num_emitted += len(item.token_ids)
            self._has_all = item.finish_reason is not None
            await self.opened.emit(item)
        if item.finish_reason is not None:
            self._end_finished(self.output_tokens)

    def _hear_cached(self, cached_tokens: int | None) -> None:
        """What the engine says of its prompt; a decode's was computed elsewhere."""
        if cached_tokens is not None and self.send.stage is not Role.DECODE:
            self._computed_tokens = max(0, self._prompt_tokens - cached_tokens)

    def _tell_lane_length_exceeded(self) -> None:
        while self._lane_limits_tokens and self.output_tokens >= self._lane_limits_tokens[0]:
            self._lane_limits_tokens = self._lane_limits_tokens[1:]
            self._host.handle(LaneLengthExceeded(attempt_id=self.send.attempt_id, output_tokens=self.output_tokens))

    def _fail_with(self, item: object) -> None:
        if isinstance(item, inner_hop.Failure):
            self.opened.failure = item
            self._end_failed(item.reason)
        elif isinstance(item, inner_hop.Withdrawn):
            self._end(AttemptWithdrawn(attempt_id=self.send.attempt_id))
        else:
            self._end_failed(Reason.ENGINE_ERROR)

    def _end_stopped(self) -> None:
        """Its task was cancelled: to end the answer where it is, or because its place or its answer is not wanted."""
        if self._is_truncated and not (self.has_ended or self._has_all):
            self.opened.stream.put(Chunk("", (), "length"))
        if self._is_truncated or self._has_all:
            self._end_finished(self.output_tokens)
        else:
            self._end_failed(self._stopped_for or Reason.REPLICA_LOST)

    def _end_finished(self, output_tokens: int) -> None:
        if self.send.stage is not Role.PREFILL and not self.has_ended:
            self.opened.output_tokens = len(self.opened.emitted)
        self._end(AttemptFinished(attempt_id=self.send.attempt_id, output_tokens=output_tokens))

    def _end_failed(self, reason: Reason) -> None:
        self._end(AttemptFailed(attempt_id=self.send.attempt_id, reason=reason, output_tokens=self._num_emitted))

    def _end(self, event: AttemptEnd) -> None:
        """What is said first counts."""
        if not self.has_ended:
            self.has_ended = True
            self._is_placed.set()
            self.opened.budget.ended(self.send.attempt_id)
            self._host.ended(self.send.attempt_id, event)
