"""Intake: what is decided about a request that comes in, before anything is spent on it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from policies.admission.always_admit import AlwaysAdmit
from policies.contracts import PolicySet
from policies.decisions import AS_ASKED, Degradation, Reason, Reject
from policies.degradation.never_degrade import NeverDegrade
from policies.errors import PolicyMisbehaved
from policies.shedding.never_shed import NeverShed
from policies.signals import NO_PERMITS, Permits
from policies.views import RequestView, drain_s
from routing.fleet.fleet import Fleet
from routing.intake.logical_requests import LogicalRequests, is_hopeless
from routing.intake.planning import Planner
from routing.intake.slos import Slos
from routing.lanes.access import LaneAccess
from routing.lanes.classifiers import LaneClassifier
from routing.lanes.lanes import Lane, chosen_among, demoted, lane_limits_tokens
from routing.queues.backlog import Backlog
from routing.queues.queues import Queues
from routing.request.effects import Classification, Degraded, Outcome, OutcomeKind, Record
from routing.request.refusal import refusal
from routing.request.stages import Plan
from routing.sizing.geometry import GeometryEstimator, ServiceRates
from routing.sizing.prompt_ngrams import NgramParams


class RequestClassifier:
    """Classifies requests.

    Args:
        geometry: Estimates what they cost.
        classifier: Chooses the lane.
        lanes: In the order of the configuration.
        slos: What requests are promised.

    Attributes:
        slos: The same.
    """

    def __init__(
        self, geometry: GeometryEstimator, classifier: LaneClassifier, lanes: Sequence[Lane], slos: Slos
    ) -> None:
        self._geometry = geometry
        self.slos = slos
        self._classifier = classifier
        self._lanes = tuple(lanes)
        self._choices = chosen_among(lanes)
        self._by_name = {lane.name: lane for lane in lanes}
        self._lane_limits_tokens = {lane.name: lane_limits_tokens(lane, self._choices) for lane in lanes}
        self._num_demotions = {lane.name: 0 for lane in lanes}
        self._num_requests = {lane.name: 0 for lane in lanes}

    def classify(self, request: RequestView, fleet: Fleet, now_s: float) -> RequestView:
        """The request as policies see it from here on.

        Raises:
            PolicyMisbehaved: The classifier named something that is no lane.
        """
        first = self._choices[0]
        by_s = self.slos.first_token_by_s(request, first)
        sized = request.classified(self._geometry.estimate(request), first.name, by_s)
        if len(self._choices) == 1:
            self._num_requests[sized.lane] += 1
            return sized
        lane = self._classifier.classify(sized, self._choices, fleet, now_s)
        if lane not in self._choices:
            names = [each.name for each in self._choices]
            raise PolicyMisbehaved("lanes", self._classifier, f"one of the lanes {names}", lane)
        self._num_requests[lane.name] += 1
        return sized.classified(sized.geometry, lane.name, self.slos.first_token_by_s(request, lane))

    def cheaper(self, request: RequestView, by: Degradation) -> RequestView:
        """A request that has been classified, with the bounds and in the lane of ``by``, with a new cost estimate."""
        lane = self._by_name[by.lane or request.lane]
        self._num_requests[request.lane] -= 1
        self._num_requests[lane.name] += 1
        limited = request.limited_to(by.max_output_tokens)
        by_s = self.slos.first_token_by_s(request, lane)
        return limited.classified(self._geometry.estimate(limited), lane.name, by_s)

    def put_in_lane(self, request: RequestView, fleet: Fleet, now_s: float) -> RequestView:
        """A request that came in when there were perhaps other lanes; it keeps its own, and its SLO."""
        if request.lane in self._by_name:
            return request
        lane = self._classifier.classify(request, self._choices, fleet, now_s)
        return request.classified(request.geometry, lane.name, request.first_token_by_s)

    def records_of(self, request: RequestView) -> Sequence[Record]:
        """What is worth recording of a request that has just been classified: its lane, where there are several."""
        if len(self._lanes) == 1:
            return ()
        geometry = request.geometry
        decision = Classification(
            request_id=request.request_id,
            lane=request.lane,
            uncached_tokens=geometry.uncached_tokens,
            output_tokens=geometry.output_tokens,
        )
        return (Record(decision=decision),)

    @property
    def rates(self) -> ServiceRates:
        """How fast the engines are taken to be."""
        return self._geometry.rates

    @property
    def wants_ngrams(self) -> NgramParams | None:
        """How the host is to hash prompts into ``RequestView.prompt_ngrams``; ``None``: not at all."""
        return self._geometry.wants_ngrams

    def lane_limits_tokens(self, request: RequestView, num_emitted: int = 0) -> tuple[int, ...]:
        """How many more tokens of its answer take a request out of its lane, ascending; empty when none do."""
        lengths = self._lane_limits_tokens[request.lane]
        return lengths if not num_emitted else tuple(each - num_emitted for each in lengths if each > num_emitted)

    def rest_of(self, request: RequestView, output_tokens: int) -> RequestView:
        """What is left of a request when so many tokens of its answer have been emitted: they are prompt now."""
        if not output_tokens:
            return request
        longer = replace(
            request,
            prompt_tokens=request.prompt_tokens + output_tokens,
            max_output_tokens=max(1, request.max_output_tokens - output_tokens),
        )
        return replace(longer, geometry=self._geometry.rest_of(longer, output_tokens))

    def demote(self, request: RequestView, output_tokens: int) -> RequestView:
        """The request in the lane for its answer, which has become so long and is expected to double at least."""
        self._num_demotions[request.lane] += 1
        lane = demoted(self._by_name[request.lane], self._choices, output_tokens)
        known, most_tokens = request.geometry, request.max_output_tokens
        expected = min(most_tokens, max(known.output_tokens_high, 2 * output_tokens))
        geometry = replace(known, output_tokens=expected, output_tokens_high=max(expected, known.output_tokens_high))
        return request.classified(geometry, lane.name, request.first_token_by_s)

    def answered(self, request: RequestView, output_tokens: int, *, was_truncated: bool = False) -> None:
        """A request was answered; one that was truncated was going to say more than these tokens."""
        if was_truncated:
            request = request.limited_to(max(1, output_tokens))
        self._geometry.observe(request, output_tokens)

    def gauges(self) -> Mapping[str, float]:
        """For metrics: requests and demotions by lane (``lane_requests_total:<lane>``), and the classifier's own."""
        gauges: Callable[[], Mapping[str, float]] = getattr(self._classifier, "gauges", dict)
        requests = {f"lane_requests_total:{lane}": count for lane, count in self._num_requests.items()}
        demotions = {f"lane_demotions_total:{lane}": count for lane, count in self._num_demotions.items()}
        return {**requests, **demotions, **gauges()}


class IntakeDecision(NamedTuple):
    """What became of a request at intake.

    Args:
        request: The request in its lane, with what it may cost at the most.
        plan: Its stages.
        usual_plan: What they would be if every stage had replicas; what the fleet is to be sized for.
        records: Decisions worth keeping.
        output_time_limit_s: How long after its first token its answer ends with what there is of it.
        permits: What the policies that let it in have given to it.
        outcome: The verdict, where there is one already: a refusal, or an answer that the host has; ``None`` for a
            request that was let in.
    """

    request: RequestView
    plan: Plan
    usual_plan: Plan
    records: tuple[Record, ...]
    output_time_limit_s: float
    outcome: Outcome | None
    permits: Permits = NO_PERMITS


class Intake:
    """Puts a request in a lane, plans its stages, degrades it where it has to be, and asks whether it may come in.

    Args:
        policies: Those that degrade, shed and admit.
        request_classifier: Estimates what requests cost and puts them in lanes.
        planner: Chooses the stages.
        access: Which replicas a lane may use.
        fleet: All replicas.
        queues: Where requests wait.
        logical_requests: Those that were not answered, for their clients' retries.
    """

    def __init__(
        self,
        policies: PolicySet,
        request_classifier: RequestClassifier,
        planner: Planner,
        access: LaneAccess,
        *,
        fleet: Fleet,
        queues: Queues,
        logical_requests: LogicalRequests,
    ) -> None:
        self._policies = policies
        self._degrades = not isinstance(policies.degradation, NeverDegrade)
        judges = policies.shedding, policies.admission
        self._judges = [each for each in judges if not isinstance(each, NeverShed | AlwaysAdmit)]
        self._request_classifier = request_classifier
        self._planner = planner
        self._access = access
        self._fleet = fleet
        self._queues = queues
        self._logical_requests = logical_requests

    def take_in(self, request: RequestView, now_s: float) -> IntakeDecision:
        """All that is decided about a request that has arrived.

        Raises:
            PolicyMisbehaved: A policy answered what its contract does not allow.
        """
        if request.retry_count or request.is_keyed:
            return self._take_in_again(request, now_s)
        return self._take_in(self._request_classifier.classify(request, self._fleet, now_s), now_s)

    def _take_in_again(self, request: RequestView, now_s: float) -> IntakeDecision:
        """A request that its client has perhaps sent before; a retry that comes too late costs nothing more, and nor
        does one of what replicas were lost with.
        """
        linked, retry, given_up_for = self._logical_requests.link(request, now_s)
        sized = self._request_classifier.classify(linked, self._fleet, now_s)
        is_vain = given_up_for is not None or (linked is not request and is_hopeless(sized, now_s))
        if not is_vain:
            decision = self._take_in(sized, now_s)
            return decision._replace(records=(*retry, *decision.records))
        plans, backlog = self._before(sized, now_s)
        reason = given_up_for or Reason.DEADLINE_UNREACHABLE
        verdict = Reject(reason=reason, retry_after_s=drain_s(backlog), may_retry=False)
        records = (*retry, *self._request_classifier.records_of(sized))
        return IntakeDecision(sized, *plans, records, math.inf, refusal(sized.request_id, verdict))

    def _take_in(self, sized: RequestView, now_s: float) -> IntakeDecision:
        """What is decided about a classified request."""
        plans, backlog = self._before(sized, now_s)
        by = self._policies.degradation.decide(sized, backlog, now_s) if self._degrades else AS_ASKED
        if by == AS_ASKED:
            return self._judge(sized, plans, backlog, now_s)
        if by.may_use_cache and sized.has_cached_answer:
            records = (*self._request_classifier.records_of(sized), _degraded(sized, sized, by, from_cache=True))
            return IntakeDecision(sized, *plans, records, math.inf, Outcome(kind=OutcomeKind.COMPLETED))
        self._check(by)
        cheaper = self._request_classifier.cheaper(sized, by)
        plans, backlog = self._before(cheaper, now_s)
        decision = self._judge(cheaper, plans, backlog, now_s)
        if decision.outcome is not None:
            return decision
        records = (*decision.records, _degraded(sized, cheaper, by))
        return decision._replace(records=records, output_time_limit_s=by.output_time_limit_s)

    def _before(self, request: RequestView, now_s: float) -> tuple[tuple[Plan, Plan], Backlog]:
        """The stages of a request in its lane, as they can be and as they are usually, and what it finds before it."""
        fleet = self._access.view(request, self._fleet)
        plan = usual_plan = self._planner.plan(request, fleet, now_s)
        if self._fleet.has_gaps:
            plan = self._access.possible(usual_plan, request.lane, self._fleet, now_s)
        return (plan, usual_plan), self._queues.backlog(request, plan, fleet, now_s)

    def _judge(self, request: RequestView, plans: tuple[Plan, Plan], backlog: Backlog, now_s: float) -> IntakeDecision:
        records = tuple(self._request_classifier.records_of(request))
        permits: Permits = NO_PERMITS
        for policy in self._judges:
            verdict = policy.decide(request, backlog, now_s)
            if isinstance(verdict, Reject):
                return IntakeDecision(request, *plans, records, math.inf, refusal(request.request_id, verdict))
            if verdict.permit is not None:
                permits += ((policy, verdict.permit),)
        return IntakeDecision(request, *plans, records, math.inf, None, permits)

    def _check(self, by: Degradation) -> None:
        lanes = [lane.name for lane in self._access.lanes]
        if by.max_output_tokens < 1 or by.output_time_limit_s <= 0 or (by.lane and by.lane not in lanes):
            allowed = f"a token and some time at least, in one of the lanes {lanes}"
            raise PolicyMisbehaved("degradation", self._policies.degradation, allowed, by)


def _degraded(asked: RequestView, given: RequestView, by: Degradation, *, from_cache: bool = False) -> Record:
    """The record of what a request gets in the place of what it asked for."""
    decision = Degraded(
        request_id=asked.request_id,
        priority=asked.priority,
        max_output_tokens=given.max_output_tokens,
        asked_output_tokens=asked.max_output_tokens,
        output_time_limit_s=0.0 if from_cache or math.isinf(by.output_time_limit_s) else by.output_time_limit_s,
        from_cache=from_cache,
        lane="" if from_cache else by.lane,
    )
    return Record(decision=decision)
