"""What must hold in a run whatever goes wrong, and a watcher that writes down where it does not.

- Every request has one outcome, and by its deadline.
- Its client has each token of a whole answer once, and none of a refused one.
- A refusal says when to come back, and that is no time in the past.
- A request makes no more attempts at a stage than it may, between two of which it has got no further.
- When all is over nothing is left: no request, attempt, timer or waiting stage in a gateway, no attempt and no KV block
  in a living replica, and no work that a gateway still counts on one.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from cluster.sim.gateway import SimGateway
from cluster.sim.replica import SimReplica
from cluster.sim.run_table import OUTCOMES, RunTable
from cluster.sim.traffic import Arrival, PlannedRequest, Traffic
from loadtests.workloads.workload import request_id
from policies.views import Role
from routing.request.effects import Outcome, OutcomeKind, Placement, Preemption, Record, ReleaseKv, Send
from routing.request.events import AttemptFailed, Event
from routing.request.request import PROGRESS_TOKENS

MOST_VIOLATIONS = 20
"""A broken run breaks everything after it; the first ones tell."""
GRACE_S = 0.01


class Invariants:
    """Watches one run, as its traffic and as its listener.

    Args:
        traffic: The clients.
        max_attempts: Of a request at a stage.
        late_s: How much later than its deadline an outcome may come: its gateway may have stood still.
        drift_fraction: The same for each second until the deadline: its gateway's clock may be slow.

    Attributes:
        violations: What did not hold, a sentence each.
        num_requests: Requests that came.
        outcomes: How they ended.
        seen: What dispatchers were told and what they decided, by name, and how often.
    """

    def __init__(self, traffic: Traffic, max_attempts: int, late_s: float, drift_fraction: float) -> None:
        self._traffic = traffic
        self._max_attempts = max_attempts
        self._late_s = late_s
        self._slower = 1.0 + drift_fraction
        self._open: dict[str, Arrival] = {}
        self._known: set[str] = set()
        self._attempts: defaultdict[str, Counter[Role]] = defaultdict(Counter)
        self._hedges: set[str] = set()
        self._released: set[str] = set()
        self.violations: list[str] = []
        self.num_requests = 0
        self.outcomes: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

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
        elif now_s > arrival.at_s + request.timeout_s * self._slower + self._late_s + GRACE_S:
            self._break(now_s, f"{request.request_id} has its outcome {now_s - arrival.at_s:.2f} s after it came")
        if not 0 <= outcome.retry_after_s < math.inf:
            self._break(now_s, f"{request.request_id} is told to come back in {outcome.retry_after_s} s")
        self.outcomes[outcome.kind if outcome.reason is None else outcome.reason] += 1
        self._attempts.pop(request.request_id, None)
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
        self.seen[_name_of(event)] += 1
        if isinstance(event, AttemptFailed) and event.output_tokens >= PROGRESS_TOKENS:
            self._attempts.pop(event.attempt_id.rpartition(".")[0], None)
        for effect in effects:
            if isinstance(effect, Record):
                self.seen[type(effect.decision).__name__] += 1
                self._note(effect.decision)
        for effect in effects:
            if isinstance(effect, Send) and effect.attempt_id not in self._hedges:
                self._count(effect, now_s)
            if isinstance(effect, Send) and effect.kv_from in self._released:
                self._break(now_s, f"{effect.attempt_id} is to pull the KV of {effect.kv_from}, which was given up")
            elif isinstance(effect, ReleaseKv):
                self.seen["ReleaseKv"] += 1
                self._released.add(effect.kv_from)

    def _note(self, decision: object) -> None:
        """A second attempt does not count, and a preemption is no fault of the attempts before it."""
        if isinstance(decision, Placement) and decision.is_hedge:
            self._hedges.add(decision.attempt_id)
        elif isinstance(decision, Preemption):
            self._attempts.pop(decision.request_id, None)

    def _count(self, send: Send, now_s: float) -> None:
        if send.request_id not in self._open:
            self._break(now_s, f"{send.attempt_id} is sent for a request that has its outcome")
        attempts = self._attempts[send.request_id]
        attempts[send.stage] += 1
        most = self._max_attempts * (1 + (send.stage is Role.PREFILL))  # KV may be lost as often as well
        if attempts[send.stage] > most:
            self._break(now_s, f"{send.attempt_id} is attempt {attempts[send.stage]} at {send.stage}, of {most}")

    # -- when all is over ---------------------------------------------------------------------------------------------

    def at_rest(self, gateways: Sequence[SimGateway], replicas: Sequence[SimReplica]) -> None:
        """Nothing happens any more."""
        for name, arrival in self._open.items():
            self._break(arrival.at_s, f"{name} has no outcome")
        for rank, gateway in enumerate(gateways):
            for what, number in gateway.left().items():
                if number:
                    self._break(0.0, f"gateway {rank} has {number} {what} left")
        for replica in replicas:
            if not replica.is_dead and not replica.is_idle:
                self._break(0.0, f"{replica.replica_id} has {replica.num_ongoing} attempts or KV blocks left")

    def _break(self, at_s: float, what: str) -> None:
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(f"{at_s:.3f} s: {what}" if at_s else what)


def _name_of(event: Event) -> str:
    name = type(event).__name__
    return f"{name} {event.reason}" if isinstance(event, AttemptFailed) else name
