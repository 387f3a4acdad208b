"""The Ray Serve host: feeds the dispatcher with what happens and carries out what it decides.

One per gateway replica, on the gateway's event loop. It decides nothing: effects are carried out in order, and every
attempt it starts ends in exactly one terminal event.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

from cluster.clock import Clock
from cluster.event_log import DispatcherListener, NoEventLog
from deployments import inner_hop
from deployments.fleet_registry import SeenReplica
from deployments.metrics import GatewayMetrics
from deployments.open_request import OpenRequest
from deployments.serve_internals import use_own_internal_request_id
from engines.contract import Chunk, EngineRequest, KvHandle
from policies.decisions import LOAD_REASONS, Reason
from policies.views import RequestView, Role
from routing.dispatcher import Dispatcher
from routing.effects import (
    Cancel,
    CancelTimer,
    Classification,
    Commit,
    OutcomeKind,
    Placement,
    Record,
    Respond,
    Send,
    SetTimer,
)
from routing.events import (
    Accepted,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    ClientGone,
    Event,
    FirstToken,
    FleetChanged,
    Outgrew,
    ReplicaInfo,
    ReplicaReported,
    TimerFired,
)

LOGGER = logging.getLogger("ray.serve")
METHODS = {Role.UNIFIED: "generate", Role.PREFILL: "prefill", Role.DECODE: "decode"}


class ServeHost:
    """Runs one dispatcher on Ray Serve.

    Args:
        dispatcher: Decides.
        pools: The handle of each pool, by deployment name.
        pool_roles: Role of each pool, by deployment name.
        clock: Read once for each event.
        metrics: Where outcomes, latencies and decisions are counted.
        listener: Hears every event and its effects, before they are carried out.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        pools: Mapping[str, DeploymentHandle],
        pool_roles: Mapping[str, Role],
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        listener: DispatcherListener | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._pool_roles = pool_roles
        self._clock = clock
        self._metrics = metrics
        self._listener = listener or NoEventLog()
        self._loop = asyncio.get_running_loop()
        self._callers = {
            (pool, stage): handle.options(
                stream=stage is not Role.PREFILL,
                method_name=METHODS[stage],
                _by_reference=False,
                request_serialization="pickle",
                response_serialization="pickle",
            )
            for pool, handle in pools.items()
            for stage in {pool_roles[pool], Role.UNIFIED}  # any engine can run a whole request
        }
        self._lanes = {lane.name: lane for lane in dispatcher.access.lanes}
        self._requests: dict[str, OpenRequest] = {}
        self._attempts: dict[str, _RunningAttempt] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._replicas: dict[str, tuple[SeenReplica, ...]] = {}
        self._carry_out: dict[type, Callable[..., None]] = {
            Send: self._send,
            Cancel: self._cancel,
            Commit: self._commit,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Respond: self._respond,
            Record: self._record,
        }

    # -- for the gateway ----------------------------------------------------------------------------------------------

    def submit(self, view: RequestView, request: EngineRequest) -> OpenRequest:
        """Takes a request in; read its ``stream`` to the outcome, or call :meth:`abandon`."""
        opened = OpenRequest(view=view, payload=inner_hop.encode(request))
        self._requests[view.request_id] = opened
        self.handle(Arrived(request=view))
        return opened

    def abandon(self, request_id: str) -> None:
        """The client has gone; nothing happens when the request is answered already."""
        if request_id in self._requests:
            self.handle(ClientGone(request_id=request_id))

    def live_replicas(self) -> dict[str, int]:
        """Replicas that can take work now, by pool."""
        now_s = self._clock.now_s()
        return {pool: len(self._dispatcher.fleet.live_in((pool,), now_s)) for pool in self._pool_roles}

    def seen_replicas(self) -> Mapping[str, tuple[SeenReplica, ...]]:
        """What the replicas report, by pool."""
        return self._replicas

    def handle(self, event: Event) -> None:
        """Passes one event to the dispatcher and carries the effects out, in order."""
        now_s = self._clock.now_s()
        try:
            effects = self._dispatcher.handle(event, now_s)
        except Exception as error:
            self._listener.on_error(now_s, event, error)
            raise
        self._listener.on_event(now_s, event, effects)
        for effect in effects:
            self._carry_out[type(effect)](effect)

    # -- what routers tell, from their threads ------------------------------------------------------------------------

    def on_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        self._loop.call_soon_threadsafe(self._take_in_replicas, pool, replicas)

    def on_accepted(self, attempt_id: str, replica_id: str) -> None:
        self._loop.call_soon_threadsafe(self._take_in_acceptance, attempt_id, replica_id)

    def on_replica_lost(self, replica_id: str) -> None:
        self._loop.call_soon_threadsafe(self._take_in_loss, replica_id)

    def _take_in_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        role = self._pool_roles[pool]
        known = {replica.replica_id for replica in self._replicas.get(pool, ())}
        self._replicas[pool] = replicas
        if known != {replica.replica_id for replica in replicas}:
            LOGGER.info("pool %s: replicas %s", pool, [replica.replica_id for replica in replicas])
            infos = tuple(_info(replica, pool, role) for replica in replicas)
            self.handle(FleetChanged(pool=pool, role=role, replicas=infos))
        for replica in replicas:
            if replica.stats:
                self.handle(
                    ReplicaReported(
                        replica_id=replica.replica_id,
                        prefill_tokens=int(replica.stats["prefill_tokens"]),
                        kv_tokens=int(replica.stats["kv_tokens"]),
                        kv_cache_usage=float(replica.stats["kv_cache_usage"]),
                    )
                )

    def _take_in_acceptance(self, attempt_id: str, replica_id: str) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            attempt.is_accepted = True
            self.handle(Accepted(attempt_id=attempt_id, replica_id=replica_id))

    def _take_in_loss(self, replica_id: str) -> None:
        """Serve would go on offering an attempt that nobody has accepted to the dead replica; that ends here."""
        for attempt in list(self._attempts.values()):
            if attempt.send.replica_id == replica_id and not attempt.is_accepted:
                attempt.stop(Reason.REPLICA_LOST)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _send(self, effect: Send) -> None:
        caller = self._callers[effect.pool, effect.stage]
        attempt = _RunningAttempt(self, effect, self._requests[effect.request_id], caller)
        self._attempts[effect.attempt_id] = attempt
        attempt.start(self._loop)

    def _cancel(self, effect: Cancel) -> None:
        if attempt := self._attempts.get(effect.attempt_id):
            attempt.stop(Reason.CLIENT_GONE)

    def _commit(self, effect: Commit) -> None:
        opened = self._requests[effect.request_id]
        opened.committed = effect.attempt_id
        opened.first_token_at_s = self._clock.now_s()

    def _set_timer(self, effect: SetTimer) -> None:
        delay_s = effect.at_s - self._clock.now_s()
        self._timers[effect.token] = self._loop.call_later(delay_s, self._fire, effect.token)

    def _fire(self, token: str) -> None:
        self._timers.pop(token, None)
        self.handle(TimerFired(token=token))

    def _cancel_timer(self, effect: CancelTimer) -> None:
        if timer := self._timers.pop(effect.token, None):
            timer.cancel()

    def _respond(self, effect: Respond) -> None:
        opened = self._requests.pop(effect.request_id)
        now_s = self._clock.now_s()
        self._metrics.count_outcome(opened.view, effect.outcome, opened.first_token_at_s, now_s)
        if opened.lane and effect.outcome.kind is not OutcomeKind.CANCELLED:
            self._metrics.count_promises(self._lanes[opened.lane], *opened.latencies_s(effect.outcome, now_s))
        opened.stream.finish(effect.outcome)
        if effect.outcome.kind not in (OutcomeKind.COMPLETED, OutcomeKind.CANCELLED):
            level = logging.DEBUG if effect.outcome.reason in LOAD_REASONS else logging.WARNING
            LOGGER.log(level, "request %s: %s, %s", effect.request_id, effect.outcome.kind, effect.outcome.reason)

    def _record(self, effect: Record) -> None:
        decision = effect.decision
        if isinstance(decision, Placement):
            self._metrics.count_placement(decision)
        elif isinstance(decision, Classification):
            self._requests[decision.request_id].lane = decision.lane

    def ended(self, attempt_id: str, event: AttemptFinished | AttemptFailed) -> None:
        """Called once by each attempt, last of all."""
        del self._attempts[attempt_id]
        self.handle(event)


class _RunningAttempt:
    """One attempt in flight: a task on a deployment handle."""

    def __init__(self, host: ServeHost, send: Send, opened: OpenRequest, caller: DeploymentHandle) -> None:
        self._host = host
        self.send = send
        self._opened = opened
        self._caller = caller
        self._stopped_for: Reason | None = None
        self._has_ended = False
        self._output_tokens = 0
        self._outgrows_at_tokens = send.outgrows_at_tokens
        self.is_accepted = False
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the call in a task of its own, which the host holds on to until it is done."""
        self._task = loop.create_task(self._run())
        self._host.tasks.add(self._task)
        self._task.add_done_callback(self._on_task_done)

    def stop(self, reason: Reason) -> None:
        """Stops the attempt; the terminal event follows from its task."""
        if self._stopped_for is None and not self._has_ended and self._task is not None:
            self._stopped_for = reason
            self._task.cancel()

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        """A task that is cancelled before its first step never runs, and still owes its terminal event."""
        self._host.tasks.discard(task)
        self._end_failed(self._stopped_for or Reason.REPLICA_LOST)

    async def _run(self) -> None:
        """Makes the call and reports exactly one terminal event."""
        use_own_internal_request_id()
        try:
            if self.send.stage is Role.PREFILL:
                await self._run_prefill()
            else:
                await self._run_stream()
        except asyncio.CancelledError:
            self._end_failed(self._stopped_for or Reason.REPLICA_LOST)
        except RayActorError as error:
            LOGGER.warning("attempt %s: replica %s is lost: %s", self.send.attempt_id, self.send.replica_id, error)
            self._end_failed(Reason.REPLICA_LOST)
        except Exception:
            LOGGER.exception("attempt %s failed on its way", self.send.attempt_id)
            self._end_failed(Reason.ENGINE_ERROR)

    def _call(self, *arguments: bytes) -> Any:
        send = self.send
        work = send.prefill_tokens, send.kv_tokens
        return self._caller.remote(*arguments, attempt_id=send.attempt_id, work=work, target=send.replica_id)

    async def _run_prefill(self) -> None:
        call = self._call(self._opened.payload)
        try:
            answer: bytes = await call
        except asyncio.CancelledError:
            call.cancel()
            raise
        item = inner_hop.decode_item(answer)
        if isinstance(item, KvHandle):
            self._opened.handles[self.send.attempt_id] = answer
            self._end_finished(output_tokens=1)
        else:
            self._fail_with(item)

    async def _run_stream(self) -> None:
        arguments = [self._opened.payload]
        if self.send.kv_from is not None:
            arguments.append(self._opened.handles[self.send.kv_from])
        call = self._call(*arguments)
        try:
            async for raw in call:
                await self._take_in(inner_hop.decode_item(raw))
        except BaseException:
            call.cancel()
            raise
        if not self._has_ended:
            LOGGER.error("attempt %s: the replica's stream ended without a verdict", self.send.attempt_id)
            self._end_failed(Reason.REPLICA_LOST)

    async def _take_in(self, item: inner_hop.Item) -> None:
        """One item of the replica's stream; what follows the verdict is only the end of the stream."""
        if self._has_ended:
            return
        if not isinstance(item, Chunk) or item.finish_reason == "abort":
            self._fail_with(item)
            return
        if self._output_tokens == 0:
            self._host.handle(FirstToken(attempt_id=self.send.attempt_id))
        self._output_tokens += len(item.token_ids)
        self._tell_outgrown()
        if self._opened.committed == self.send.attempt_id:
            await self._opened.stream.write(item)
        if item.finish_reason is not None:
            self._end_finished(self._output_tokens)

    def _tell_outgrown(self) -> None:
        while self._outgrows_at_tokens and self._output_tokens >= self._outgrows_at_tokens[0]:
            self._outgrows_at_tokens = self._outgrows_at_tokens[1:]
            self._host.handle(Outgrew(attempt_id=self.send.attempt_id, output_tokens=self._output_tokens))

    def _fail_with(self, item: object) -> None:
        if isinstance(item, inner_hop.Failure):
            self._opened.failure = item
            self._end_failed(item.reason)
        else:
            self._end_failed(Reason.ENGINE_ERROR)

    def _end_finished(self, output_tokens: int) -> None:
        if not self._has_ended:
            self._has_ended = True
            if self.send.stage is not Role.PREFILL:
                self._opened.output_tokens = output_tokens
            event = AttemptFinished(attempt_id=self.send.attempt_id, output_tokens=output_tokens)
            self._host.ended(self.send.attempt_id, event)

    def _end_failed(self, reason: Reason) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._host.ended(self.send.attempt_id, AttemptFailed(attempt_id=self.send.attempt_id, reason=reason))


def _info(replica: SeenReplica, pool: str, role: Role) -> ReplicaInfo:
    return ReplicaInfo(
        replica_id=replica.replica_id,
        role=role,
        pool=pool,
        max_ongoing_requests=replica.max_ongoing_requests,
        kv_capacity_tokens=int(replica.metadata.get("kv_capacity_tokens", 0)),
    )
