"""What must hold in a run whatever goes wrong, and a watcher that writes down where it does not.

- Each dispatcher's conversation holds (:mod:`cluster.event_log.invariants`), by its own clock.
- Every request has one outcome, and by its deadline, whatever becomes of its gateway.
- Its client has each token of a whole answer once, and none of a refused one.
- When all is over nothing is left: no request, attempt, timer or waiting stage in a gateway, no attempt and no KV block
  in a living replica, and no work that a gateway still counts on one.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from cluster.event_log.invariants import MOST_VIOLATIONS, DispatcherInvariants
from cluster.sim.gateway import SimGateway
from cluster.sim.replica import SimReplica
from cluster.sim.run_table import OUTCOMES, RunTable
from cluster.sim.traffic import Arrival, PlannedRequest, Traffic
from loadtests.fault_simulation.fault_script import FaultScript
from loadtests.workloads.workload import request_id
from routing.request.effects import Outcome, OutcomeKind, Record, ReleaseKv
from routing.request.events import AttemptFailed, Event

GRACE_S = 0.01


class Invariants:
    """Watches one run, as its traffic and as its listener.

    Args:
        traffic: The clients.
        script: What the run is made from.

    Attributes:
        num_requests: Requests that came.
        outcomes: How they ended.
        seen: What dispatchers were told and what they decided, by name, and how often.
    """

    def __init__(self, traffic: Traffic, script: FaultScript) -> None:
        self._traffic = traffic
        self._script = script
        self._clocks = [script.fleet.clock_of(gateway) for gateway in range(script.num_gateways)]
        self._slower = max(max(each.rate, 2.0 - each.rate) for each in self._clocks)
        self._away_s = sum(each.for_s for each in script.faults if each.kind in ("pause", "death"))
        self._deaths = [self._deaths_of(gateway) for gateway in range(script.num_gateways)]
        self._dispatchers = [self._a_dispatcher(gateway) for gateway in range(script.num_gateways)]
        self._open: dict[str, Arrival] = {}
        self._known: set[str] = set()
        self._broken: list[str] = []
        self.num_requests = 0
        self.outcomes: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    @property
    def violations(self) -> list[str]:
        """What did not hold, a sentence each, the first ones."""
        of_dispatchers = [self._said(gateway) for gateway in range(len(self._dispatchers))]
        return [*(each for said in of_dispatchers for each in said), *self._broken][:MOST_VIOLATIONS]

    # -- as the clients -----------------------------------------------------------------------------------------------

    def arrivals(self) -> Iterator[Arrival]:
        """Those of the clients."""
        for arrival in self._traffic.arrivals():
            self._begin(arrival)
            yield arrival

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        """A client has its verdict."""
        arrival = self._open.pop(request.request_id, None)
        if arrival is None:
            self._break(now_s, f"{request.request_id} has another outcome, {outcome.kind}")
        elif now_s > arrival.at_s + request.timeout_s * self._slower + self._away_s + GRACE_S:
            self._break(now_s, f"{request.request_id} has its outcome {now_s - arrival.at_s:.2f} s after it came")
        self.outcomes[outcome.kind if outcome.reason is None else outcome.reason] += 1
        following = self._traffic.on_end(request, outcome, now_s)
        for each in following:
            self._begin(each)
        return following

    def look_through(self, table: RunTable) -> None:
        """How much of each answer its client has, counted as it came."""
        kinds = [OUTCOMES[index] for index in table.outcome]
        for row, kind in enumerate(kinds):
            has, full, end_s = table.output_tokens[row], table.full_output_tokens[row], float(table.end_s[row])
            name = request_id(int(table.logical_request[row]), int(table.retry_index[row]))
            if kind == OutcomeKind.COMPLETED and has != full:
                self._break(end_s, f"{name} has {has} tokens of an answer of {full}")
            if kind == OutcomeKind.REFUSED and has:
                self._break(end_s, f"{name} is refused with {has} tokens of its answer given")

    def _begin(self, arrival: Arrival) -> None:
        self.num_requests += 1
        if arrival.request.request_id in self._known:
            self._break(arrival.at_s, f"{arrival.request.request_id} comes twice")
        self._open[arrival.request.request_id] = arrival
        self._known.add(arrival.request.request_id)

    # -- as the listener ----------------------------------------------------------------------------------------------

    def on_event(self, gateway: int, now_s: float, event: Event, effects: Any) -> None:
        """A dispatcher was told something, and said what is to be done."""
        self._bury(gateway, now_s)
        self._dispatchers[gateway].on_event(self._clocks[gateway].shown_s(now_s), event, effects)
        self.seen[_name_of(event)] += 1
        for effect in effects:
            if isinstance(effect, Record):
                self.seen[type(effect.decision).__name__] += 1
            elif isinstance(effect, ReleaseKv):
                self.seen["ReleaseKv"] += 1

    def _bury(self, gateway: int, now_s: float) -> None:
        """Who died before now has another dispatcher since; what was open in the former one is its clients' affair."""
        deaths_s = self._deaths[gateway]
        while deaths_s and deaths_s[0] <= now_s:
            deaths_s.pop(0)
            self._broken += self._said(gateway)
            self._dispatchers[gateway] = self._a_dispatcher(gateway)

    def _deaths_of(self, gateway: int) -> list[float]:
        faults = self._script.faults
        return sorted(each.at_s for each in faults if each.kind == "death" and each.gateway == gateway)

    def _a_dispatcher(self, gateway: int) -> DispatcherInvariants:
        faults = (each for each in self._script.faults if each.kind == "pause" and each.gateway == gateway)
        late_s = sum(each.for_s for each in faults) * self._clocks[gateway].rate + GRACE_S
        return DispatcherInvariants(self._script.dispatcher(self._script.policies).params.max_attempts, late_s)

    def _said(self, gateway: int) -> list[str]:
        return [f"gateway {gateway}, {each}" for each in self._dispatchers[gateway].violations]

    # -- when all is over ---------------------------------------------------------------------------------------------

    def at_rest(self, gateways: Sequence[SimGateway], replicas: Sequence[SimReplica]) -> None:
        """Nothing happens any more."""
        for name, arrival in self._open.items():
            self._break(arrival.at_s, f"{name} has no outcome")
        for rank, gateway in enumerate(gateways):
            self._bury(rank, math.inf)
            self._dispatchers[rank].close()
            for what, number in gateway.left().items():
                if number:
                    self._break(0.0, f"gateway {rank} has {number} {what} left")
        for replica in replicas:
            if not replica.is_dead and not replica.is_idle:
                self._break(0.0, f"{replica.replica_id} has {replica.num_ongoing} attempts or KV blocks left")

    def _break(self, at_s: float, what: str) -> None:
        if len(self._broken) < MOST_VIOLATIONS:
            self._broken.append(f"{at_s:.3f} s: {what}" if at_s else what)


def _name_of(event: Event) -> str:
    name = type(event).__name__
    return f"{name} {event.reason}" if isinstance(event, AttemptFailed) else name
