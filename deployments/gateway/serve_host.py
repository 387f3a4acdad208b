"""The Ray Serve host: feeds the dispatcher with what happens and carries out what it decides.

One per gateway replica, on the gateway's event loop. It decides nothing: effects are carried out in order, and every
attempt it starts ends in exactly one terminal event.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from ray.serve.handle import DeploymentHandle

from cluster.clock import Clock
from cluster.event_log.frames import DispatcherListener, NoEventLog
from cluster.latency_budget import LatencyBudget
from cluster.load_coordinator.news import UnsharedNews
from deployments.coordination.coordinator_client import CoordinatorClient
from deployments.coordination.news_client import NewsClient
from deployments.data_plane.connections import NoConnections
from deployments.gateway.open_request import ServeOpenRequest
from deployments.gateway.response_cache import NO_CACHE_ENTRY, CacheEntry
from deployments.gateway.running_attempt import AttemptEnd, Order, RunningAttempt
from deployments.gateway.watches.probe_call import ProbeCall
from deployments.http.rate_limits import NO_USAGE, NoUsage, Usage
from deployments.telemetry.metrics import CanaryResult, GatewayMetrics, ProbeResult
from deployments.telemetry.refusals import RecentRefusals
from deployments.wire import inner_hop
from deployments.wire.attempt_call import NO_KEEPING, AnswerKeeping, AttemptOrder
from deployments.wire.fleet_registry import SeenReplica
from deployments.wire.handle_calls import HandleCaller
from deployments.wire.seen_fleet import SeenFleet, in_service
from engines.contract import EngineRequest
from engines.probe_request import probe_request
from policies.decisions import LOAD_REASONS, Reason
from policies.views import RequestView, Role
from routing.config.parts import reconfigured
from routing.config.spec import DispatcherSpec
from routing.dispatcher import Dispatcher
from routing.request.effects import (
    Cancel,
    CancelProbe,
    CancelTimer,
    Classification,
    ClientRetry,
    Commit,
    Degraded,
    Effect,
    Ejection,
    OutcomeKind,
    Placement,
    Preemption,
    Probe,
    PushLoad,
    Race,
    Record,
    ReleaseKv,
    Replan,
    Respond,
    Resumption,
    Retry,
    Send,
    SetTimer,
    ShareCacheChange,
    ShareFirstArrival,
    SharePrompt,
    Truncate,
)
from routing.request.events import (
    Accepted,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    CacheChanged,
    ClientGone,
    Event,
    FleetChanged,
    ProbeEnded,
    ReplicaReported,
    ReplicaStalled,
    ReplicaUnstalled,
    TimerFired,
)
from routing.request.news import CacheChange
from routing.sizing.prompt_ngrams import NgramParams

LOGGER = logging.getLogger("ray.serve")
REPLICAS_OWN = frozenset({Reason.REPLICA_LOST, Reason.ENGINE_ERROR, Reason.KV_TRANSFER_FAILED})
"""Why an attempt fails where something may be wrong with its replica."""
TIE_PATIENCE_S = 1.0
"""How long a second attempt waits to know which replica has the first one."""


class ServeHost:
    """Runs one dispatcher on Ray Serve.

    Args:
        dispatcher: Decides.
        pools: The handle of each pool, by deployment name.
        pool_roles: Role of each pool, by deployment name.
        clock: Read once for each event.
        metrics: Where outcomes, latencies and decisions are counted.
        gateway: This gateway replica's own id.
        listener: Hears every event and its effects, before they are carried out.
        connections: Those of the data plane; what none of them leads to goes over the handles.
        model: Whose pools these are.
        refusals: Where requests that got no answer are noted.
        seen: Where what routers tell of replicas is kept; one that knows which pools' replicas change roles.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        pools: Mapping[str, DeploymentHandle],
        pool_roles: Mapping[str, Role],
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        gateway: str = "",
        listener: DispatcherListener | None = None,
        connections: NoConnections | None = None,
        model: str = "",
        refusals: RecentRefusals | None = None,
        seen: SeenFleet | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._gateway = gateway
        self._pool_roles = pool_roles
        self._clock = clock
        self._metrics = metrics
        self._listener = listener or NoEventLog()
        self._loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        self._connections = connections or NoConnections()
        self._seen = seen or SeenFleet()
        self._callers = self._handle_callers(pools)
        self._lanes = {lane.name: lane for lane in dispatcher.access.lanes}
        self._requests: dict[str, ServeOpenRequest] = {}
        self._attempts: dict[str, RunningAttempt] = {}
        self._probes: dict[str, tuple[str, ProbeCall]] = {}
        self._cancelled_at_s: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._carry_out = self._interpreters()
        self._count = self._counters()
        self._refusals = refusals or RecentRefusals(clock.now_s)
        self._coordinator = CoordinatorClient(gateway, model, self.handle, lambda: dispatcher.report_period_s, metrics)
        self._unshared = UnsharedNews()
        news = partial(NewsClient, gateway, model, self.handle, self._unshared, dispatcher.work, clock=clock)
        self._clients = (self._coordinator, news()) if dispatcher.shares_news else (self._coordinator,)

    def _handle_callers(self, pools: Mapping[str, DeploymentHandle]) -> Mapping[tuple[str, Role], HandleCaller]:
        """By pool and stage; any engine can run a whole request."""
        return {
            (pool, stage): HandleCaller(handle, stage, self.tasks)
            for pool, handle in pools.items()
            for stage in {Role.UNIFIED, *(self._pool_roles[each] for each in self._seen.deployments_of(pool))}
        }

    def _counters(self) -> Mapping[type, Callable[..., None]]:
        """What counts decisions that need nothing else."""
        return {
            ClientRetry: self._metrics.count_client_retry,
            Ejection: self._count_ejection,
            Race: self._count_race,
            Replan: self._metrics.count_replan,
            Retry: self._metrics.count_retry,
        }

    def _interpreters(self) -> Mapping[type, Callable[..., None]]:
        """What carries each effect out."""
        return {
            Send: self._send,
            Cancel: self._cancel,
            ReleaseKv: self._release_kv,
            Probe: self._probe,
            CancelProbe: self._cancel_probe,
            Truncate: self._cancel,
            Commit: self._commit,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Respond: self._respond,
            PushLoad: self._push_load,
            ShareFirstArrival: self._share_first_arrival,
            SharePrompt: self._share_prompt,
            ShareCacheChange: self._share_cache_change,
            Record: self._record,
        }

    def close(self) -> None:
        """Tells the load coordinator nothing any more, and ends the connections to replicas and all timers."""
        for client in self._clients:
            client.close()
        self._connections.close()
        self.forget_timers()

    def forget_timers(self) -> None:
        """Whatever the dispatcher waits for does not come."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # -- for the gateway ----------------------------------------------------------------------------------------------

    def submit(
        self,
        view: RequestView,
        request: EngineRequest,
        cache_entry: CacheEntry = NO_CACHE_ENTRY,
        budget: LatencyBudget | None = None,
        *,
        keeping: AnswerKeeping = NO_KEEPING,
        usage: Usage | NoUsage = NO_USAGE,
    ) -> ServeOpenRequest:
        """Takes a request in; read its ``stream`` to the outcome, or call :meth:`abandon`.

        Args:
            view: What policies see of it.
            request: What engines are given.
            cache_entry: What the response cache has to do with it.
            budget: Where its time has gone so far; it begins now unless given.
            keeping: How replicas keep its answer for another gateway.
            usage: What it uses of its tenant's limits; ended with it.
        """
        budget = budget or LatencyBudget(self._clock.now_s)
        opened = ServeOpenRequest(
            view=view,
            payload=inner_hop.encode(request),
            budget=budget,
            cache_entry=cache_entry,
            answered_tokens=request.answered_tokens,
            answered_chars=request.answered_chars,
            keeping=keeping,
            usage=usage,
        )
        is_new = view.request_id not in self._requests
        self._requests[view.request_id] = opened
        budget.arrived()
        self._metrics.count_arrival(view.prompt_tokens, view.arrival_s)
        effects = self._decide_on(view, is_new=is_new)
        budget.admitted()
        self._act(effects)
        return opened

    def _decide_on(self, view: RequestView, *, is_new: bool) -> Sequence[Effect]:
        try:
            return self._decide(Arrived(request=view))
        except Exception:
            if is_new:
                self._forget(view.request_id)
            raise

    def _forget(self, request_id: str) -> None:
        """Of a request whose arrival was too much for the dispatcher nothing stays, as far as that can be."""
        with suppress(Exception):
            self.abandon(request_id)
        self._requests.pop(request_id, None)

    def abandon(self, request_id: str) -> None:
        """The client has gone; nothing happens when the request is answered already."""
        if request_id in self._requests:
            self.handle(ClientGone(request_id=request_id))

    def reconfigure(self, spec: DispatcherSpec) -> None:
        """Goes on as ``spec`` says, requests under way included.

        Raises:
            ConfigError: That can't be; nothing has changed.
        """
        self.handle(reconfigured(spec))
        lanes = self._dispatcher.access.lanes
        self._lanes |= {lane.name: lane for lane in lanes}  # of former ones there may be requests
        self._metrics.begin_slos(lanes, self._dispatcher.request_classifier.slos)

    @property
    def wants_ngrams(self) -> NgramParams | None:
        """How prompts are to be hashed for the dispatcher; ``None``: not at all."""
        return self._dispatcher.request_classifier.wants_ngrams

    def live_replicas(self) -> dict[str, int]:
        """Replicas that can take work now, by pool."""
        now_s = self._clock.now_s()
        return {pool: len(self._dispatcher.fleet.live_in((pool,), now_s)) for pool in self._pool_roles}

    def goes_on_without(self, pool: str) -> bool:
        """Whether a pool has had replicas, and others serve all requests while it has none."""
        fleet, now_s = self._dispatcher.fleet, self._clock.now_s()
        return fleet.has_begun(pool) and self._dispatcher.access.serves_all(fleet, now_s)

    def seen_replicas(self) -> Mapping[str, tuple[SeenReplica, ...]]:
        """What the replicas report, by the pool that they serve."""
        return self._seen.by_pool

    def replicas_by_deployment(self) -> Mapping[str, tuple[SeenReplica, ...]]:
        """The same, by the pool that they have started in, whose handle leads to them."""
        return self._seen.by_deployment

    def now_s(self) -> float:
        """The gateway's clock."""
        return self._clock.now_s()

    def handle(self, event: Event) -> None:
        """Passes one event to the dispatcher and carries the effects out, in order."""
        self._act(self._decide(event))

    def _decide(self, event: Event) -> Sequence[Effect]:
        now_s = self._clock.now_s()
        try:
            effects = self._dispatcher.handle(event, now_s)
        except Exception as error:
            self._listener.on_error(now_s, event, error)
            raise
        self._listener.on_event(now_s, event, effects)
        return effects

    def _act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._carry_out[type(effect)](effect)

    # -- what routers tell, from their threads ------------------------------------------------------------------------

    def on_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        if pool in self._pool_roles:  # the others are those of other models
            self._loop.call_soon_threadsafe(self._take_in_replicas, pool, replicas)

    def on_accepted(self, attempt_id: str, replica_id: str) -> None:
        self._loop.call_soon_threadsafe(self._take_in_acceptance, attempt_id, replica_id)

    def take_in_stall(self, replica_id: str, is_stalled: bool) -> None:
        """A replica stands still, or does so no longer."""
        self.handle((ReplicaStalled if is_stalled else ReplicaUnstalled)(replica_id=replica_id))

    def on_replica_lost(self, replica_id: str) -> None:
        self._loop.call_soon_threadsafe(self._take_in_loss, replica_id)

    def _take_in_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        self._connections.follow(pool, {each.replica_id: each.metadata for each in replicas})
        for changed in self._seen.take_in(pool, replicas):
            role, there = self._pool_roles[changed], in_service(self._seen.by_pool[changed])
            LOGGER.info("pool %s: replicas %s", changed, [replica.replica_id for replica in there])
            infos = tuple(replica.info(changed, role) for replica in there)
            self.handle(FleetChanged(pool=changed, role=role, replicas=infos))
        self._take_in_reports(replicas)

    def _take_in_reports(self, replicas: tuple[SeenReplica, ...]) -> None:
        for replica in replicas:
            if replica.stats:
                self.handle(
                    ReplicaReported(
                        replica_id=replica.replica_id,
                        prefill_tokens=int(replica.stats["prefill_tokens"]),
                        kv_tokens=int(replica.stats["kv_tokens"]),
                        kv_cache_usage=float(replica.stats["kv_cache_usage"]),
                        adapters=tuple(replica.stats.get("adapters", ())),
                        adapters_in_use=tuple(replica.stats.get("adapters_in_use", ())),
                    )
                )

    def _take_in_acceptance(self, attempt_id: str, replica_id: str) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            attempt.accept(replica_id)
            self.handle(Accepted(attempt_id=attempt_id, replica_id=replica_id))

    def _take_in_loss(self, replica_id: str) -> None:
        """Serve would go on offering an attempt that nobody has accepted to the dead replica; that ends here."""
        for attempt in list(self._attempts.values()):
            if attempt.send.replica_id == replica_id and not attempt.is_accepted:
                attempt.stop(Reason.REPLICA_LOST)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _way_to(self, replica_id: str, pool: str, stage: Role) -> Order:
        """What has a replica run an attempt: its connection, or else Serve's handle."""
        connection = self._connections.to(replica_id)
        if connection is not None:
            return connection.call
        deployment = self._seen.deployment_of(replica_id, pool)
        return partial(self._callers[deployment, stage].call, target=replica_id)

    def _send(self, effect: Send) -> None:
        order = self._way_to(effect.replica_id, effect.pool, effect.stage)
        attempt = RunningAttempt(self, effect, self._requests[effect.request_id], order)
        self._attempts[effect.attempt_id] = attempt
        first = None if effect.tied_to is None else self._attempts.get(effect.tied_to)
        if first is None:
            attempt.start()
        else:
            attempt.start_tied(partial(self._tied_request_of, first))
        if self._connections.to(effect.replica_id) is not None:
            attempt.place()

    async def _tied_request_of(self, first: RunningAttempt) -> tuple[str, str] | None:
        """The attempt that is to share its execution claim and where that is asked for; none where nobody would answer.

        Until a replica has taken it Serve may still give it to another one, which would know nothing of the execution
        claim. If that takes too long, where it was sent is named: once it has room there, it finds its execution claim
        given away.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(TIE_PATIENCE_S):
                await first.placed()
        if first.has_ended:
            return None
        replicas = self._seen.by_pool.get(first.send.pool, ())
        claims_at = next((each.claims_at for each in replicas if each.replica_id == first.replica_id), "")
        return (first.send.attempt_id, claims_at) if claims_at else None

    def _cancel(self, effect: Cancel | Truncate) -> None:
        if attempt := self._attempts.get(effect.attempt_id):
            self._cancelled_at_s[effect.attempt_id] = self._clock.now_s()
            attempt.stop(Reason.CLIENT_GONE, is_truncated=isinstance(effect, Truncate))

    def _release_kv(self, effect: ReleaseKv) -> None:
        """Over Ray's handles there is no way to say so."""
        connection = self._connections.to(effect.replica_id)
        if connection is not None:
            connection.release(self._requests[effect.request_id].handles[effect.kv_from])

    def _probe(self, effect: Probe) -> None:
        """The replica may be gone by now, and its answer comes in a later turn then, too."""
        metadata = next(
            (each.metadata for each in self._seen.by_pool[effect.pool] if each.replica_id == effect.replica_id), {}
        )
        most_tokens = metadata.get("context_tokens", effect.prompt_tokens + effect.output_tokens) - effect.output_tokens
        request = probe_request(
            f"{self._gateway}/{effect.probe_id}",
            metadata.get("pooling_tasks", ()),
            max(1, min(effect.prompt_tokens, most_tokens)),
            effect.output_tokens,
        )
        order = AttemptOrder(request.request_id, Role.UNIFIED, inner_hop.encode(request))
        probe = ProbeCall(effect.replica_id, self._hear_of_cache, partial(self._end_probe, effect.probe_id))
        self._probes[effect.probe_id] = effect.pool, probe
        probe.start(self._way_to(effect.replica_id, effect.pool, Role.UNIFIED), order)

    def _hear_of_cache(self, change: CacheChange) -> None:
        self.handle(CacheChanged(change=change))

    def _end_probe(self, probe_id: str, is_well: bool) -> None:
        pool, _ = self._probes.pop(probe_id)
        self._metrics.count_probe(pool, ProbeResult.WELL if is_well else ProbeResult.FAILED)
        self.handle(ProbeEnded(probe_id=probe_id, is_well=is_well))

    def _cancel_probe(self, effect: CancelProbe) -> None:
        if begun := self._probes.pop(effect.probe_id, None):
            pool, probe = begun
            probe.stop()
            self._metrics.count_probe(pool, ProbeResult.CANCELLED)

    def _commit(self, effect: Commit) -> None:
        opened = self._requests[effect.request_id]
        opened.committed = effect.attempt_id
        opened.budget.committed(effect.attempt_id)
        if opened.first_token_at_s is None:
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
        opened.budget.answered()
        now_s = self._clock.now_s()
        answered = opened.answered(effect.outcome, now_s)
        opened.usage.end(answered.output_tokens)
        self._metrics.count_answer(answered)
        self._refusals.note_outcome(opened.view, opened.lane, effect.outcome)
        if effect.outcome.kind is not OutcomeKind.CANCELLED:
            self._count_slos(opened, opened.latencies_s(effect.outcome, now_s))
        if effect.outcome.kind is OutcomeKind.COMPLETED:
            opened.cache_entry.keep()
        opened.stream.finish(effect.outcome)
        if effect.outcome.kind not in (OutcomeKind.COMPLETED, OutcomeKind.CANCELLED):
            level = logging.DEBUG if effect.outcome.reason in LOAD_REASONS else logging.WARNING
            LOGGER.log(level, "request %s: %s, %s", effect.request_id, effect.outcome.kind, effect.outcome.reason)

    def _count_slos(self, opened: ServeOpenRequest, latencies_s: tuple[float, float]) -> None:
        """With one lane alone, nobody says which a request is in."""
        lane = self._lanes[opened.lane] if opened.lane else self._dispatcher.access.lanes[0]
        slo = self._dispatcher.request_classifier.slos.of(opened.view, lane)
        has_canary = bool(self._seen.canaries and self._seen.canaries & opened.budget.replica_ids)
        limits_s = slo.limits_s(opened.view.prompt_tokens)
        self._metrics.count_slos(lane.name, limits_s, *latencies_s, has_canary=has_canary)

    def _count_of_canary(self, event: AttemptEnd) -> None:
        if isinstance(event, AttemptFinished):
            self._metrics.count_canary_attempt(CanaryResult.FINISHED)
        elif isinstance(event, AttemptFailed) and event.was_taken and event.reason in REPLICAS_OWN:
            self._metrics.count_canary_attempt(CanaryResult.FAILED)

    def _count_ejection(self, ejection: Ejection) -> None:
        self._metrics.count_ejection(ejection)
        if ejection.replica_id in self._seen.canaries:
            self._metrics.count_canary_ejection(ejection)
        LOGGER.warning("pool %s: replica %s is out: %s", ejection.pool, ejection.replica_id, ejection.reason)

    def _count_race(self, race: Race) -> None:
        """A hedge helps a request that waits for a slow canary: its client does not notice, and the count does."""
        self._metrics.count_race(race)
        if not (race.is_hedge and race.superseded_tokens and self._seen.canaries):
            return  # of two tied attempts neither is slow
        winner = self._attempts[race.attempt_id]
        for each in self._attempts.values():
            is_beaten = each is not winner and each.opened is winner.opened and each.send.stage is winner.send.stage
            if is_beaten and each.replica_id in self._seen.canaries:
                self._metrics.count_canary_attempt(CanaryResult.BEATEN)

    def _push_load(self, effect: PushLoad) -> None:
        self._coordinator.push(effect.report)

    def _share_first_arrival(self, effect: ShareFirstArrival) -> None:
        self._unshared.add_arrival(effect.arrival)

    def _share_prompt(self, effect: SharePrompt) -> None:
        self._unshared.add_prompt(effect.prompt)

    def _share_cache_change(self, effect: ShareCacheChange) -> None:
        self._unshared.add_cache_change(effect.change)

    def _record(self, effect: Record) -> None:
        decision = effect.decision
        if isinstance(decision, Placement):
            self._metrics.count_placement(decision)
            self._requests[decision.request_id].place(decision)
        elif isinstance(decision, Degraded):
            self._metrics.count_degraded(decision)
            self._requests[decision.request_id].degrade(decision, self._clock.now_s())
        elif isinstance(decision, Classification):
            self._requests[decision.request_id].enter(decision.lane)
        elif isinstance(decision, Preemption | Resumption):
            self._metrics.count_going_on(decision)
            self._requests[decision.request_id].go_on()
        elif count := self._count.get(type(decision)):
            count(decision)

    def ended(self, attempt_id: str, event: AttemptEnd) -> None:
        """Called once by each attempt, last of all; what comes of that may name it."""
        attempt = self._attempts[attempt_id]
        if (attempt.is_accepted or attempt.output_tokens) and not isinstance(event, AttemptWithdrawn):
            opened = attempt.opened
            self._metrics.count_attempt(opened.lane, opened.view.priority, attempt.work)
        if attempt.replica_id in self._seen.canaries:
            self._count_of_canary(event)
        cancelled_at_s = self._cancelled_at_s.pop(attempt_id, None)
        if cancelled_at_s is not None:
            self._metrics.observe_cancel(self._clock.now_s() - cancelled_at_s)
        try:
            self.handle(event)
        finally:
            del self._attempts[attempt_id]
