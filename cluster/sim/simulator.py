"""The virtual-time host: gateways with production dispatchers, replicas with engine models, and nothing that waits.

One run is one thread, one heap of events and one seed. Time jumps from event to event; randomness comes from named
streams, one for each purpose, so that another policy meets the same requests in the same order.
"""

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from cluster.scaled_pools import PoolSize, ScaledPool, check_fallbacks, starting_to_serve
from cluster.scaler import Scaler, scaling_policy
from cluster.seeds import GatewayStreams, Seeds
from cluster.sim.attempt import SimAttempt
from cluster.sim.event_queue import EventQueue, Handler, Rank
from cluster.sim.faults import (
    AnyFault,
    CoordinatorOutage,
    Fault,
    GatewayDeath,
    GatewayPause,
    Partition,
    Reconfiguration,
    SlowNetwork,
)
from cluster.sim.gateway import SimGateway, SimOpenRequest
from cluster.sim.load_coordinator import SimCoordinator
from cluster.sim.replica import SimReplica
from cluster.sim.run_table import RunRecorder, RunTable
from cluster.sim.topology import FleetSpec, PoolSpec
from cluster.sim.traffic import Arrival, Traffic
from engines.faults import FaultKind
from policies.contracts import Need
from policies.errors import ConfigError
from policies.views import Role
from routing.assembly import build_dispatcher
from routing.config.parts import reconfigured
from routing.config.spec import DispatcherSpec
from routing.dispatcher import Dispatcher
from routing.request.effects import Outcome
from routing.request.events import Event, FleetChanged, ReplicaReported, ReplicaStalled, ReplicaUnstalled

PROGRESS_PERIOD_REQUESTS = 1_000
OBJECTS_PER_COLLECTION = 1_000_000
"""New objects, less those that have gone, after which Python looks for cycles among them."""
EventListener = Callable[[int, float, Event, Any], None]
"""Called with a gateway's number, the time, an event and its effects."""


def provided(fleet: FleetSpec) -> frozenset[Need]:
    """What simulated gateways can supply policies with: no answers, for there is no text, and places inside engines
    where all that compute prompts go by priority.
    """
    go_by_priority = all(each.limits.priority_scheduling for each in fleet.pools if each.role is not Role.DECODE)
    missing = {Need.RESPONSE_CACHE} if go_by_priority else {Need.RESPONSE_CACHE, Need.ENGINE_PRIORITY}
    return frozenset(Need) - missing


AtRest = Callable[[Sequence[SimGateway], Sequence[SimReplica]], None]
"""Called with all gateways and replicas when nothing happens any more."""


class WatchedGauges(NamedTuple):
    """What a run tells of its gateways' gauges.

    Args:
        on_gauges: Called with a gateway's number, the time, and what it knows of queues, lanes and pools, by name.
        period_s: Virtual seconds between two looks.
    """

    on_gauges: Callable[[int, float, Mapping[str, float]], None]
    period_s: float


def simulate(
    fleet: FleetSpec,
    dispatcher: DispatcherSpec,
    traffic: Traffic,
    traffic_classes: Sequence[str],
    *,
    seed: int,
    until_s: float = math.inf,
    faults: Sequence[AnyFault] = (),
    on_progress: Callable[[float], None] | None = None,
    on_event: EventListener | None = None,
    watched: WatchedGauges | None = None,
    at_rest: AtRest | None = None,
) -> RunTable:
    """Runs all traffic to its end.

    Args:
        fleet: Gateways, replicas, delays.
        dispatcher: What every gateway's dispatcher is built from, by the call that production uses.
        traffic: The clients.
        traffic_classes: Names of the traffic classes.
        seed: Of the policies' random streams and of the choice of gateways. Traffic has streams of its own.
        until_s: A hard end; what is unanswered then has no row.
        faults: What goes wrong or is changed, and when.
        on_progress: Called now and then with the virtual time.
        on_event: Called with everything that dispatchers are told and answer.
        watched: Who is told of the gateways' gauges, and how often.
        at_rest: Called at the end. None of the four changes anything in the run.

    Raises:
        ConfigError: A policy, planner or fault that does not fit the fleet.
    """
    simulation = _Simulation(fleet, traffic, RunRecorder(traffic_classes), seed)
    simulation.add_gateways(dispatcher, on_event)
    simulation.scale(dispatcher)
    simulation.schedule(faults)
    if watched is not None:
        simulation.watch_gauges(watched)
    with _rare_collections():
        return simulation.run(until_s, on_progress or _ignore, at_rest or _leave)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A run makes no cycles, but holds tens of thousands of requests that Python would look through again and again."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, OBJECTS_PER_COLLECTION) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


_Report = tuple[int, int, float, tuple[tuple[str, ...], tuple[str, ...]]]
UNREPORTED: _Report = (0, 0, 0.0, ((), ()))
"""What gateways take for granted of a replica that has said nothing."""


class _SlotState(Enum):
    """What becomes of a replica, until it is dead."""

    STARTING = "starting"
    READY = "ready"
    RESTING = "finishes what it has, and is warm then"
    WARM = "warm"
    WAKING = "waking up"
    CHANGING = "finishes what it has, and has another role then"
    DRAINING = "finishes what it has, and goes then"


class _Slot:
    """A place in a pool: the replica that has it, or had it last.

    Attributes:
        pool: Where the replica serves.
        own_pool: Where it has started, and its successor will.
    """

    def __init__(self, pool: PoolSpec, index: int, replica: SimReplica, state: _SlotState) -> None:
        self.pool = self.own_pool = pool
        self.index = index
        self.replica = replica
        self.state = state
        self.asleep_s = 0.0
        self.stalled_since_s = math.inf
        self.num_lives = 1
        self.last_report = UNREPORTED

    @property
    def is_ready(self) -> bool:
        """Whether its replica takes requests."""
        return self.state is _SlotState.READY and not self.replica.is_dead

    @property
    def is_crashed(self) -> bool:
        """Whether its replica has died in service, and another one will come."""
        return self.state is _SlotState.READY and self.replica.is_dead


class _Simulation:
    """One run.

    Args:
        fleet: Gateways, replicas, delays.
        traffic: The clients.
        recorder: Takes the rows.
        seed: Of everything but the traffic.
    """

    def __init__(self, fleet: FleetSpec, traffic: Traffic, recorder: RunRecorder, seed: int) -> None:
        self._fleet = fleet
        self._traffic = traffic
        self._recorder = recorder
        self._seed = seed
        self._rates = fleet.rates
        self._gateway_choice = Seeds(seed).stream("gateways")
        self._events = EventQueue()
        self._gateways: list[SimGateway] = []
        self._num_deaths = 0
        self._awaiting_gateway: list[Arrival] = []
        self._replicas: dict[str, SimReplica] = {}
        self._pools = {pool.name: pool for pool in fleet.pools}
        self._slots: dict[str, list[_Slot]] = {}
        self._num_slots = {pool.name: pool.replicas + pool.num_warm for pool in fleet.pools}
        self._scaled: dict[str, ScaledPool] = {}
        self._wanted = {pool.name: pool.replicas for pool in fleet.pools}
        self._coordinator = SimCoordinator(fleet, self._events, is_over=lambda: self._is_over)
        self._on_progress: Callable[[float], None] = _ignore
        self._unsettled: list[tuple[int, SimOpenRequest]] = []
        self._num_expected = 0
        self._num_arrived = 0
        for pool in fleet.pools:
            self._slots[pool.name] = [self._new_slot(pool, index) for index in range(pool.replicas + pool.num_warm)]

    def add_gateways(self, spec: DispatcherSpec, on_event: EventListener | None) -> None:
        """Builds the gateways, each with a dispatcher of its own, and tells them of the replicas."""
        self._spec = spec
        for rank in range(self._fleet.num_gateways):
            self._gateways.append(self._new_gateway(rank, on_event))
        for pool in self._fleet.pools:
            self._announce(0.0, pool)

    def scale(self, spec: DispatcherSpec) -> None:
        """Has a policy say how many replicas there are, where there are pools whose size may change."""
        pools = {pool.name: pool.scaled(pool.autoscaling) for pool in self._fleet.pools if pool.autoscaling is not None}
        self._scaled = pools
        check_fallbacks(pools, self._gateways[0].access)
        policy = scaling_policy(spec, provided(self._fleet), self._seed)
        scaler, period_s = Scaler(policy, pools, self), self._fleet.scaling_period_s

        def hear(now_s: float) -> None:
            for rank, gateway in enumerate(self._gateways):
                if not gateway.is_dead:
                    scaler.hear(str(rank), gateway.pool_loads(now_s), now_s)

        def look(now_s: float, _: None) -> None:
            hear(now_s)
            scaler.look(now_s)
            if not self._is_over:
                self._events.push(now_s + period_s, Rank.REPORT, look)

        if pools:
            hear(0.0)
            self._events.push(period_s, Rank.REPORT, look)

    def schedule(self, faults: Sequence[AnyFault]) -> None:
        """Has everything go wrong, or be changed, in its time.

        Raises:
            ConfigError: There is no such replica or gateway.
        """
        for fault in faults:
            self._schedule(fault)

    def _schedule(self, fault: AnyFault) -> None:
        if isinstance(fault, Fault):
            hit = fault, self._slot(fault.role, fault.replica)
            self._during(fault.at_s, fault.for_s, self._begin, self._end, hit)
        elif isinstance(fault, CoordinatorOutage):  # it dies with all that it knows
            self._during(fault.at_s, fault.for_s, self._coordinator.die, self._coordinator.restart, None)
        elif isinstance(fault, Partition):
            cut = self._gateway(fault.gateway), self._slot(fault.role, fault.replica)
            self._during(fault.at_s, fault.for_s, self._cut, self._mend, cut)
        elif isinstance(fault, SlowNetwork):
            gateway = self._gateway(fault.gateway)
            self._during(fault.at_s, fault.for_s, self._slow_down, self._speed_up, (gateway, fault.extra_s))
        elif isinstance(fault, GatewayDeath):
            self._gateway(fault.gateway)
            self._during(fault.at_s, fault.for_s, self._kill, self._revive, fault)
        elif isinstance(fault, GatewayPause):
            self._events.push(fault.at_s, Rank.FAULT, self._pause, (self._gateway(fault.gateway), fault.for_s))
        else:
            self._events.push(fault.at_s, Rank.FAULT, self._reconfigure, fault)

    def _during(self, at_s: float, for_s: float, begin: Handler, end: Handler, hit: Any) -> None:
        self._events.push(at_s, Rank.FAULT, begin, hit)
        self._events.push(at_s + for_s, Rank.FAULT, end, hit)

    def _slot(self, role: Role, replica: int) -> _Slot:
        slots = [slot for slots in self._slots.values() for slot in slots if slot.pool.role is role]
        if replica >= len(slots):
            raise ConfigError("faults.replica", f"{role} {replica}", "a replica of a pool of the fleet")
        return slots[replica]

    def _gateway(self, rank: int) -> SimGateway:
        if rank >= len(self._gateways):
            raise ConfigError("faults.gateway", rank, f"one of {len(self._gateways)}")
        return self._gateways[rank]

    def watch_gauges(self, watched: WatchedGauges) -> None:
        """Has the gateways' gauges read once in a period, from now until the last request is answered."""

        def read(now_s: float, _: None) -> None:
            for rank, gateway in enumerate(self._gateways):
                watched.on_gauges(rank, now_s, gateway.gauges(now_s))
            if not self._is_over:
                self._events.push(now_s + watched.period_s, Rank.ARRIVAL, read)

        self._events.push(0.0, Rank.ARRIVAL, read)

    def run(self, until_s: float, on_progress: Callable[[float], None], at_rest: AtRest) -> RunTable:
        """Runs the traffic to its end, or to ``until_s``."""
        self._on_progress = on_progress
        self._expect_next(self._traffic.arrivals())
        slots = [slot for slots in self._slots.values() for slot in slots]
        for number, slot in enumerate(slots):
            first_s = self._fleet.report_period_s * (number + 1) / len(slots)
            self._events.push(first_s, Rank.REPORT, self._report, slot)
        self._coordinator.open()
        self._events.run(until_s)
        at_rest(self._gateways, tuple(self._replicas.values()))
        for row, opened in self._unsettled:
            self._recorder.correct(row, opened.computed_prompt_tokens)
        for gateway in self._gateways:
            self._recorder.add_cancels(gateway.cancels_s())
        end_s = self._recorder.last_end_s
        return self._recorder.table([replica.totals(end_s) for replica in self._replicas.values()])

    # -- clients ------------------------------------------------------------------------------------------------------

    def _expect_next(self, arrivals: Iterator[Arrival]) -> None:
        """Only the next arrival waits in the heap, so that a million planned requests take no memory."""
        arrival = next(arrivals, None)
        if arrival is not None:
            self._expect(arrival, self._arrive_then_expect_next, (arrival, arrivals))

    def _expect(self, arrival: Arrival, handler: Callable[[float, Any], None], argument: Any) -> None:
        self._num_expected += 1
        self._events.push(arrival.at_s + self._fleet.ingress_delay_s, Rank.ARRIVAL, handler, argument)

    def _arrive_then_expect_next(self, now_s: float, argument: tuple[Arrival, Iterator[Arrival]]) -> None:
        arrival, arrivals = argument
        self._arrive(now_s, arrival)
        self._expect_next(arrivals)

    def _arrive(self, now_s: float, arrival: Arrival) -> None:
        self._num_expected -= 1
        self._num_arrived += 1
        if self._num_arrived % PROGRESS_PERIOD_REQUESTS == 0:
            self._on_progress(now_s)
        gateways = [each for each in self._gateways if not each.is_dead] if self._num_deaths else self._gateways
        if gateways:
            gateways[int(self._gateway_choice.random() * len(gateways))].arrive(now_s, arrival)
        else:
            self._awaiting_gateway.append(arrival)

    def _on_answer(self, gateway: int, opened: SimOpenRequest, outcome: Outcome, now_s: float) -> None:
        following = self._traffic.on_end(opened.request, outcome, now_s)
        is_last = True
        for arrival in following:
            is_last = is_last and arrival.request.logical_request != opened.request.logical_request
            self._expect(arrival, self._arrive, arrival)
        row = self._recorder.add(
            opened.request,
            sent_s=opened.sent_s,
            first_token_s=opened.first_token_s,
            end_s=now_s,
            output_tokens=opened.output_tokens,
            outcome=outcome,
            num_attempts=opened.num_attempts,
            num_hedges=opened.num_hedges,
            gateway=gateway,
            is_last=is_last,
            cached_tokens=opened.cached_tokens if opened.has_begun else 0,
            computed_prompt_tokens=opened.computed_prompt_tokens,
        )
        self._recorder.add_spent(opened.spent_s(self._rates))
        if not opened.is_settled:
            self._unsettled.append((row, opened))

    @property
    def _is_over(self) -> bool:
        is_waited_for = self._num_expected or self._awaiting_gateway
        return not is_waited_for and not any(gateway.num_open_requests for gateway in self._gateways)

    # -- gateways and replicas ----------------------------------------------------------------------------------------

    def _new_dispatcher(self, rank: int, life: str = "") -> Dispatcher:
        streams = GatewayStreams(seed=self._seed, prefix=f"gateway.{rank}{life}.")
        return build_dispatcher(self._spec_at(rank, self._spec), rng_for=streams.stream, provided=provided(self._fleet))

    def _spec_at(self, rank: int, spec: DispatcherSpec) -> DispatcherSpec:
        """With the run's time for the time of day, as far as a clock that drifts can be told."""
        ahead_s = self._fleet.clock_of(rank).ahead_s
        return replace(spec, unix_ahead_s=-ahead_s) if ahead_s else spec

    def _new_gateway(self, rank: int, on_event: EventListener | None) -> SimGateway:
        streams = GatewayStreams(seed=self._seed, prefix=f"gateway.{rank}.")

        def listen(now_s: float, event: Event, effects: Any) -> None:
            if on_event is not None:
                on_event(rank, now_s, event, effects)

        gateway = SimGateway(
            self._new_dispatcher(rank),
            self._replicas,
            self._fleet,
            self._events,
            on_answer=partial(self._on_answer, rank),
            on_load=partial(self._coordinator.push, rank),
            on_ejection=self._recorder.add_ejection,
            on_event=None if on_event is None else listen,
            clock=self._fleet.clock_of(rank),
            name=f"gateway-{rank}",
        )
        self._coordinator.attend(gateway, streams.stream("ledger"))
        return gateway

    def _new_slot(self, pool: PoolSpec, index: int) -> _Slot:
        replica = self._new_replica(f"{pool.name}-{index:04d}.0", pool, index)
        if index < pool.replicas:
            return _Slot(pool, index, replica, _SlotState.READY)
        replica.sleep(0.0)
        return _Slot(pool, index, replica, _SlotState.WARM)

    def _new_replica(
        self, replica_id: str, pool: PoolSpec, index: int, asked_s: float = 0.0, born_s: float = 0.0
    ) -> SimReplica:
        replica = SimReplica(
            replica_id, pool, self._fleet, self._events, self._die_of, index=index, asked_s=asked_s, born_s=born_s
        )
        self._replicas[replica_id] = replica
        return replica

    def _announce(self, now_s: float, pool: PoolSpec) -> None:
        """Every gateway learns which replicas of a pool are up."""
        changed = self._fleet_of(pool)
        for gateway in self._gateways:
            gateway.handle(changed, now_s)

    def _fleet_of(self, pool: PoolSpec) -> FleetChanged:
        up = [slot for slot in self._slots[pool.name] if slot.is_ready]
        infos = tuple(slot.replica.info(pool) for slot in up)
        return FleetChanged(pool=pool.name, role=pool.role, replicas=infos)

    def _report(self, now_s: float, slot: _Slot) -> None:
        """A replica says how busy it is; what has not changed is not sent."""
        replica = slot.replica
        replica.tell_lane_length_exceeded(now_s)
        report = (replica.prefill_tokens, replica.kv_tokens, replica.kv_cache_usage, replica.adapters)
        if report != slot.last_report and not replica.is_dead:
            slot.last_report = report
            event = ReplicaReported(
                replica_id=replica.replica_id,
                prefill_tokens=report[0],
                kv_tokens=report[1],
                kv_cache_usage=report[2],
                adapters=report[3][0],
                adapters_in_use=report[3][1],
            )
            self._tell_all(now_s, event)
        if self._fleet.stall_after_s:
            self._watch(now_s, slot)
        if slot.state is _SlotState.RESTING and replica.is_idle:
            replica.sleep(now_s)
            slot.state, slot.asleep_s = _SlotState.WARM, now_s + slot.pool.profile.sleep_s
        if slot.state is _SlotState.CHANGING and replica.is_idle:
            slot.state = _SlotState.READY
            self._announce(now_s, slot.pool)
        if slot.state is _SlotState.DRAINING and replica.is_idle:
            replica.retire(now_s)
        elif not self._is_over:
            self._events.push(now_s + self._fleet.report_period_s, Rank.REPORT, self._report, slot)

    def _watch(self, now_s: float, slot: _Slot) -> None:
        """Gateways are told that a replica stands still, again and again, and that it does so no longer. It begins with
        requests; once they have gone elsewhere it takes a step to show that it is over.
        """
        replica, still_s = slot.replica, now_s - slot.stalled_since_s
        if replica.makes_no_step and not replica.is_dead and (replica.num_ongoing or still_s >= 0.0):
            slot.stalled_since_s = min(slot.stalled_since_s, now_s)
            if still_s >= self._fleet.stall_after_s:
                self._tell_all(now_s, ReplicaStalled(replica_id=replica.replica_id))
        elif still_s >= 0.0:
            slot.stalled_since_s = math.inf
            if still_s >= self._fleet.stall_after_s:
                self._tell_all(now_s, ReplicaUnstalled(replica_id=replica.replica_id))

    def _tell_all(self, now_s: float, event: ReplicaReported | ReplicaStalled | ReplicaUnstalled) -> None:
        self._events.push(now_s + self._fleet.report_delay_s, Rank.REPORT, self._deliver_report, event)

    def _deliver_report(self, now_s: float, event: ReplicaReported | ReplicaStalled | ReplicaUnstalled) -> None:
        for gateway in self._gateways:
            gateway.handle(event, now_s)

    # -- pools whose size changes -------------------------------------------------------------------------------------

    def size(self, pool: str) -> PoolSize:
        """What a pool has; a place whose replica has crashed is one that starts."""
        slots = self._slots[pool]
        num_in = {
            state: sum(slot.state is state and not slot.replica.is_dead for slot in slots) for state in _SlotState
        }
        num_warm = num_in[_SlotState.RESTING] + num_in[_SlotState.WARM]
        wanted_warm = self._scaled[pool].autoscaling.num_warm(self._wanted[pool])
        to_serve = starting_to_serve(num_in[_SlotState.STARTING], num_warm, wanted_warm)
        return PoolSize(
            num_ready=num_in[_SlotState.READY],
            num_starting=to_serve
            + num_in[_SlotState.WAKING]
            + num_in[_SlotState.CHANGING]
            + sum(slot.is_crashed for slot in slots),
            num_draining=num_in[_SlotState.DRAINING],
            num_warm=num_warm,
            num_changing=num_in[_SlotState.CHANGING],
        )

    def resize(self, pool: str, num_replicas: int, now_s: float) -> None:
        """Replicas wake up and begin to start, or fall asleep and go, until a pool has so many in service."""
        size, num_warm = self.size(pool), self._scaled[pool].autoscaling.num_warm(num_replicas)
        self._wanted[pool] = num_replicas
        for _ in range(num_replicas - size.num_replicas):
            self._wake(pool, now_s)
        for _ in range(size.num_ready - num_replicas):
            self._take_out(pool, now_s)
        slots = [slot for slot in self._slots[pool] if slot.state is not _SlotState.DRAINING]
        for _ in range(num_replicas + num_warm - len(slots)):
            self._start(pool, now_s)
        for _ in range(len(slots) - num_replicas - num_warm):
            self._let_go(pool, now_s)

    def _in_state(self, pool: str, state: _SlotState) -> list[_Slot]:
        return [slot for slot in self._slots[pool] if slot.state is state]

    def _wake(self, pool: str, now_s: float) -> None:
        """A replica takes requests again, at once if it has not slept yet; none, where none is warm."""
        resting, warm = self._in_state(pool, _SlotState.RESTING), self._in_state(pool, _SlotState.WARM)
        if resting:
            resting[0].state = _SlotState.READY
            self._announce(now_s, resting[0].pool)
        elif warm:
            warm[0].state = _SlotState.WAKING
            awake_s = max(now_s, warm[0].asleep_s) + warm[0].pool.profile.wake_s
            self._events.push(awake_s, Rank.FAULT, self._wake_up, warm[0])

    def _wake_up(self, now_s: float, slot: _Slot) -> None:
        if slot.state is _SlotState.WAKING:
            slot.replica.wake(now_s)
            slot.state = _SlotState.READY
            self._announce(now_s, slot.pool)

    def change_roles(self, pool: str, other: str, number: int, now_s: float) -> None:
        """Those with the fewest requests take no more, and serve in the other pool as soon as they have none."""
        for _ in range(number):
            self._move(self._with_fewest_requests(pool), self._pools[other], _SlotState.CHANGING)
        self._announce(now_s, self._pools[pool])

    def _move(self, slot: _Slot, pool: PoolSpec, state: _SlotState) -> None:
        if pool is not slot.pool:
            self._slots[slot.pool.name].remove(slot)
            self._slots[pool.name].append(slot)
        slot.pool, slot.state = pool, state

    def _with_fewest_requests(self, pool: str) -> _Slot:
        ready = [slot for slot in self._slots[pool] if slot.is_ready]
        return min(ready, key=lambda slot: (slot.replica.num_ongoing, -slot.index))

    def _take_out(self, pool: str, now_s: float) -> None:
        """The replica with the fewest requests takes no more."""
        chosen = self._with_fewest_requests(pool)
        chosen.state = _SlotState.RESTING
        self._announce(now_s, chosen.pool)

    def _start(self, pool: str, now_s: float) -> None:
        """One more replica begins to start."""
        index, spec = self._num_slots[pool], self._pools[pool]
        self._num_slots[pool] += 1
        ready_s = now_s + spec.starts_in_s
        replica = self._new_replica(f"{pool}-{index:04d}.0", spec, index, now_s, ready_s)
        slot = _Slot(spec, index, replica, _SlotState.STARTING)
        self._slots[pool].append(slot)
        self._events.push(ready_s, Rank.FAULT, self._begin_serving, slot)

    def _let_go(self, pool: str, now_s: float) -> None:
        """The last of those that start goes; without one, one that is warm, or one that has something to finish."""
        starting, warm = self._in_state(pool, _SlotState.STARTING), self._in_state(pool, _SlotState.WARM)
        for chosen in [*starting[-1:], *warm[-1:]][:1]:
            chosen.state = _SlotState.DRAINING
            chosen.replica.retire(now_s)
            return
        finishing = [*self._in_state(pool, _SlotState.CHANGING), *self._in_state(pool, _SlotState.RESTING)]
        for chosen in finishing[-1:]:
            chosen.state = _SlotState.DRAINING

    def _begin_serving(self, now_s: float, slot: _Slot) -> None:
        if slot.state is _SlotState.STARTING:
            slot.state = _SlotState.READY
            self._announce(now_s, slot.pool)
            self._report(now_s, slot)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _cut(self, now_s: float, hit: tuple[SimGateway, _Slot]) -> None:
        gateway, slot = hit
        gateway.cut(slot.replica.replica_id, now_s)

    def _mend(self, now_s: float, hit: tuple[SimGateway, _Slot]) -> None:
        """Should another replica have its place by now, there is nothing to mend."""
        gateway, slot = hit
        gateway.mend(slot.replica.replica_id)

    def _slow_down(self, now_s: float, hit: tuple[SimGateway, float]) -> None:
        hit[0].slow_down(hit[1])

    def _speed_up(self, now_s: float, hit: tuple[SimGateway, float]) -> None:
        hit[0].slow_down(0.0)

    def _pause(self, now_s: float, hit: tuple[SimGateway, float]) -> None:
        hit[0].pause(now_s + hit[1])

    def _kill(self, now_s: float, fault: GatewayDeath) -> None:
        """Nothing more, if it is dead already."""
        gateway = self._gateways[fault.gateway]
        if not gateway.is_dead:
            self._num_deaths += 1
            gateway.die(self._new_dispatcher(fault.gateway, f".{self._num_deaths}"), now_s)

    def _revive(self, now_s: float, fault: GatewayDeath) -> None:
        """It is told of all replicas, and takes what has waited for a gateway."""
        gateway = self._gateways[fault.gateway]
        if not gateway.is_dead:
            return
        gateway.revive()
        for pool in self._fleet.pools:
            gateway.handle(self._fleet_of(pool), now_s)
        for slot in (slot for slots in self._slots.values() for slot in slots):
            slot.last_report = UNREPORTED
        waiting, self._awaiting_gateway = self._awaiting_gateway, []
        for arrival in waiting:
            gateway.arrive(now_s, arrival)

    def _reconfigure(self, now_s: float, change: Reconfiguration) -> None:
        self._spec = change.dispatcher
        for rank, gateway in enumerate(self._gateways):
            gateway.handle(reconfigured(self._spec_at(rank, change.dispatcher)), now_s)

    def _begin(self, now_s: float, hit: tuple[Fault, _Slot]) -> None:
        fault, slot = hit
        slot.replica.begin_fault(fault.kind, fault.factor, now_s)
        if fault.kind is FaultKind.CRASH:
            for replica in self._replicas.values():
                replica.lose_kv_source(slot.replica.replica_id, now_s)
            self._events.push(now_s + self._fleet.detection_delay_s, Rank.FAULT, self._announce, slot.pool)
            if slot.state not in (_SlotState.STARTING, _SlotState.DRAINING):
                self._move(slot, slot.own_pool, _SlotState.READY)  # the replica that takes its place begins in service

    def _die_of(self, now_s: float, attempt: SimAttempt) -> None:
        """The replica that has computed its prompt crashes, if it lives; another one starts in its place later."""
        for slot in [slot for slots in self._slots.values() for slot in slots]:
            if slot.replica.has(attempt):
                for_s, role = attempt.request.kills_for_s, slot.own_pool.role
                hit = Fault(kind=FaultKind.CRASH, at_s=now_s, for_s=for_s, role=role, replica=slot.index), slot
                self._begin(now_s, hit)
                self._events.push(now_s + for_s, Rank.FAULT, self._end, hit)

    def _end(self, now_s: float, hit: tuple[Fault, _Slot]) -> None:
        fault, slot = hit
        if fault.kind is FaultKind.CRASH:
            if slot.state is not _SlotState.DRAINING:
                self._events.push(now_s + slot.own_pool.starts_in_s, Rank.FAULT, self._refill, slot)
        else:
            slot.replica.end_fault(fault.kind, now_s)

    def _refill(self, now_s: float, slot: _Slot) -> None:
        """A new replica has loaded its model and is warm."""
        replica_id = f"{slot.own_pool.name}-{slot.index:04d}.{slot.num_lives}"
        slot.replica = self._new_replica(
            replica_id, slot.own_pool, slot.index, now_s - slot.own_pool.starts_in_s, now_s
        )
        slot.num_lives += 1
        self._announce(now_s, slot.pool)


def _ignore(now_s: float) -> None:
    """Nobody watches the run."""


def _leave(gateways: Sequence[SimGateway], replicas: Sequence[SimReplica]) -> None:
    """Nobody looks at what is left."""
