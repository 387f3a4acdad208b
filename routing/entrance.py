"""What is decided about a request that comes in, before anything is spent on it."""

import math
from typing import NamedTuple

from policies.contracts import PolicySet
from policies.decisions import AS_ASKED, AdmissionDecision, Degradation, Reject, SheddingDecision
from policies.errors import PolicyMisbehaved
from policies.views import RequestView
from routing.backlog import Backlog
from routing.door import Door
from routing.effects import Degraded, Outcome, OutcomeKind, Record
from routing.fleet import Fleet
from routing.lane_access import LaneAccess
from routing.planning import Planner
from routing.refusal import refusal
from routing.stages import Plan
from routing.waiting_lines import WaitingLines


class Entry(NamedTuple):
    """What became of a request at the entrance.

    Args:
        request: The request in its lane, with what it may cost at the most.
        plan: Its stages.
        records: Decisions worth keeping.
        time_box_s: How long after its first token its answer ends with what there is of it.
        outcome: The verdict, where there is one already: a refusal, or an answer that the host has; ``None`` for a
            request that was let in.
    """

    request: RequestView
    plan: Plan
    records: tuple[Record, ...]
    time_box_s: float
    outcome: Outcome | None


class Entrance:
    """Puts a request in a lane, plans its stages, degrades it where it has to be, and asks whether it may come in.

    Args:
        policies: Those that degrade, shed and admit.
        door: Sizes requests up and puts them in lanes.
        planner: Chooses the stages.
        access: Which replicas a lane may use.
        fleet: All replicas.
        lines: Where requests wait.
    """

    def __init__(
        self,
        policies: PolicySet,
        door: Door,
        planner: Planner,
        access: LaneAccess,
        *,
        fleet: Fleet,
        lines: WaitingLines,
    ) -> None:
        self._policies = policies
        self._door = door
        self._planner = planner
        self._access = access
        self._fleet = fleet
        self._lines = lines

    def take_in(self, request: RequestView, now_s: float) -> Entry:
        """All that is decided about a request that has arrived.

        Raises:
            PolicyMisbehaved: A policy answered what its contract does not allow.
        """
        sized = self._door.classify(request, self._fleet, now_s)
        plan, backlog = self._before(sized, now_s)
        by = self._policies.degradation.decide(sized, backlog, now_s)
        if by == AS_ASKED:
            return self._judge(sized, plan, backlog, now_s)
        if by.may_use_cache and sized.has_cached_answer:
            records = (*self._door.records_of(sized), _degraded(sized, sized, by, from_cache=True))
            return Entry(sized, plan, records, math.inf, Outcome(kind=OutcomeKind.COMPLETED))
        self._check(by)
        cheaper = self._door.cheaper(sized, by)
        plan, backlog = self._before(cheaper, now_s)
        entry = self._judge(cheaper, plan, backlog, now_s)
        if entry.outcome is not None:
            return entry
        records = (*entry.records, _degraded(sized, cheaper, by))
        return entry._replace(records=records, time_box_s=by.time_box_s)

    def _before(self, request: RequestView, now_s: float) -> tuple[Plan, Backlog]:
        """The stages of a request in its lane, and what it finds before it."""
        plan = self._planner.plan(request, self._access.view(request, self._fleet), now_s)
        return plan, self._lines.backlog(request, plan, now_s)

    def _judge(self, request: RequestView, plan: Plan, backlog: Backlog, now_s: float) -> Entry:
        records = tuple(self._door.records_of(request))
        verdict: SheddingDecision | AdmissionDecision = self._policies.shedding.decide(request, backlog, now_s)
        if not isinstance(verdict, Reject):
            verdict = self._policies.admission.decide(request, backlog, now_s)
        if isinstance(verdict, Reject):
            return Entry(request, plan, records, math.inf, refusal(request.request_id, verdict))
        return Entry(request, plan, records, math.inf, None)

    def _check(self, by: Degradation) -> None:
        lanes = [lane.name for lane in self._access.lanes]
        if by.max_output_tokens < 1 or by.time_box_s <= 0 or by.lane not in ("", *lanes):
            allowed = f"a token and some time at least, in one of the lanes {lanes}"
            raise PolicyMisbehaved("degradation", self._policies.degradation, allowed, by)


def _degraded(asked: RequestView, given: RequestView, by: Degradation, *, from_cache: bool = False) -> Record:
    """The record of what a request gets in the place of what it asked for."""
    decision = Degraded(
        request_id=asked.request_id,
        priority=asked.priority,
        max_output_tokens=given.max_output_tokens,
        asked_output_tokens=asked.max_output_tokens,
        time_box_s=0.0 if from_cache or math.isinf(by.time_box_s) else by.time_box_s,
        from_cache=from_cache,
        lane="" if from_cache else by.lane,
    )
    return Record(decision=decision)
