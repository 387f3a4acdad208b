"""What a dispatcher is put together from, and how it goes on with another configuration while requests are under way.

A :class:`routing.request.events.Reconfigured` is an event like any other: it is in the event log, and a replay comes to
the same effects. What is under way goes on, and who waits is enqueued in the new queues in order of arrival. A part
whose piece of the spec has not changed stays, with all that it remembers; a new one begins with no memory, and is told
of the ends of requests whose beginnings it has not seen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

from policies.catalog import PolicyChoice, PolicySpec, build, build_queue
from policies.contracts import Need, PolicySet, QueueingPolicy, Rng
from policies.errors import ConfigError
from policies.estimators.work_budget import WorkBudget
from policies.tenancy import quotas_of, weights_of
from policies.views import Role
from routing.config.catalog import build_classifier, build_guard, build_planner, build_predictor, build_tracker
from routing.config.spec import NO_TRACKER, DispatcherParams, DispatcherSpec, from_json, to_json
from routing.fleet.first_token import FirstTokenEstimator
from routing.intake.demand import DemandMeter
from routing.intake.intake import RequestClassifier
from routing.intake.logical_requests import LogicalRequests
from routing.intake.planning import Planner
from routing.intake.slo_meter import SloMeter
from routing.lanes.access import LaneAccess
from routing.lanes.classifiers import LaneClassifier
from routing.lanes.guard import LaneGuard
from routing.lanes.lanes import Lane, check_lanes, chosen_among, one_lane
from routing.lanes.queue_model import QueueModel
from routing.prefixes.prefix_tracking import PrefixTracker
from routing.request.events import Reconfigured
from routing.request.stages import stages_served
from routing.sizing.geometry import GeometryEstimator
from routing.sizing.length_prediction import LengthPredictor

T = TypeVar("T")
Source = Callable[[DispatcherSpec], object]
"""All of a spec that something is made from."""

FOR_ALL_GATEWAYS = ("scaling",)
"""Questions that no dispatcher answers for itself."""
SETS = {"balancing": "balancers", "queueing": "queues"}
"""Questions that several policies answer, and where a policy set has them."""
ALSO_MADE_FROM: dict[str, Source] = {
    "admission": lambda spec: quotas_of(spec.tenants),
    "degradation": lambda spec: spec.lanes.lanes,
    "queueing": lambda spec: (weights_of(spec.tenants), spec.lanes.lanes),
    "balancing": lambda spec: spec.prefixes,
}
"""What the policies that answer a question go by, beside their name and parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherParts:
    """What a dispatcher is put together from.

    Args:
        policies: One policy for each question.
        planner: Chooses each request's stages.
        predictor: How long answers will be; part of the request classifier.
        classifier: Chooses lanes; part of the request classifier.
        request_classifier: Estimates what requests cost and puts them in lanes.
        access: Which replicas a lane may use.
        prefixes: Is told where prompts go.
        first_tokens: Estimates how long first tokens take.
        kv_lease_s: How long prefill engines hold KV that nobody pulls.
        params: Limits.
        logical_requests: Those that were not answered, for their clients' retries.
        shares_news: Whether gateways tell one another what is new with them.
        shares_prompts: Whether they tell which prompts they have sent where, too.
        budget: What policies have done twice; whichever they are from now on, the work has been done.
        demand: What requests have asked for, if it is added up.
        slo_meter: How many were in time, likewise.
    """

    policies: PolicySet
    planner: Planner
    predictor: LengthPredictor
    classifier: LaneClassifier
    request_classifier: RequestClassifier
    access: LaneAccess
    prefixes: PrefixTracker
    first_tokens: FirstTokenEstimator
    kv_lease_s: float
    params: DispatcherParams
    logical_requests: LogicalRequests
    shares_news: bool
    shares_prompts: bool
    budget: WorkBudget
    demand: DemandMeter
    slo_meter: SloMeter


class Guards(Protocol):
    """What is put around policies and parts of somebody's own."""

    def around(self, parts: DispatcherParts, spec: DispatcherSpec) -> DispatcherParts:
        """Parts that were made from a spec, with policies that have something around them."""
        ...

    def part(self, question: str, part: T, choice: PolicyChoice) -> T:
        """One that is no policy, such as a length predictor, when it has just been made from a choice."""
        ...


class PartsBefore:
    """Parts that were made from an earlier spec, of which those are kept that would be made from the same again.

    Args:
        spec: The earlier one; ``None``: there are none.
        parts: Its parts.
    """

    def __init__(self, spec: DispatcherSpec | None = None, parts: DispatcherParts | None = None) -> None:
        self._spec = spec
        self._parts = parts

    def keep(self, name: str, now: DispatcherSpec, source: Source, make: Callable[[], T]) -> T:
        """The earlier part of that name, with its memory, if it would be made from the same; else a new one."""
        if self._spec is None or source(self._spec) != source(now):
            return make()
        kept: T = getattr(self._parts, name)
        return kept

    def keep_policies(self, now: DispatcherSpec, made: PolicySet) -> PolicySet:
        """The new policies, with the earlier ones in the place of those that would be the same."""
        if self._spec is None or self._parts is None:
            return made
        chosen: dict[str, Any] = {}
        for question in (each for each in fields(now.policies) if each.name not in FOR_ALL_GATEWAYS):
            is_same = _made_from(self._spec, question.name) == _made_from(now, question.name)
            name = SETS.get(question.name, question.name)
            chosen[name] = getattr(self._parts.policies if is_same else made, name)
        return PolicySet(**chosen, shared=made.shared, another_queue=made.another_queue)


NOTHING_BEFORE = PartsBefore()


def build_parts(
    spec: DispatcherSpec, rng_for: Callable[[str], Rng], provided: frozenset[Need], guards: Guards, before: PartsBefore
) -> DispatcherParts:
    """Makes what a spec describes.

    Args:
        spec: The choices.
        rng_for: Gives the random stream for a purpose.
        provided: What the host can supply.
        guards: Put around parts of somebody's own; policies have to be put behind theirs yet.
        before: What to keep where the spec has not changed.

    Raises:
        ConfigError: A part that does not exist or does not fit; nothing that was before has changed then.
    """
    maker, provided = _PartsMaker(spec, before, guards), provided - _not_configured(spec)
    access, prefixes, budget = maker.access(rng_for, provided), maker.prefixes(), maker.budget()
    demand, slo_meter, first_tokens = maker.demand(), maker.slo_meter(), maker.first_tokens(prefixes)
    predictor, classifier, shares_news = maker.predictor(), maker.classifier(), _shares_news(spec)
    return DispatcherParts(
        policies=_metered(spec, maker.policies(rng_for, provided, access, first_tokens, budget), demand, slo_meter),
        planner=maker.planner(provided),
        predictor=predictor,
        classifier=classifier,
        request_classifier=maker.request_classifier(predictor, prefixes, classifier),
        access=access,
        prefixes=prefixes,
        first_tokens=first_tokens,
        kv_lease_s=spec.kv_lease_s,
        params=spec.params,
        logical_requests=maker.logical_requests(),
        shares_news=shares_news,
        shares_prompts=shares_news and spec.prefixes != NO_TRACKER,
        budget=budget,
        demand=demand,
        slo_meter=slo_meter,
    )


class _PartsMaker:
    """Makes the parts of a spec, or keeps those that were before."""

    def __init__(self, spec: DispatcherSpec, before: PartsBefore, guards: Guards) -> None:
        self._spec = spec
        self._before = before
        self._guards = guards
        self.lanes = spec.lanes.lanes or one_lane(spec.pools)
        check_lanes(self.lanes, spec.pools, spec.whole_request_pools)

    def access(self, rng_for: Callable[[str], Rng], provided: frozenset[Need]) -> LaneAccess:
        spec = self._spec
        return self._keep(
            "access",
            lambda each: (each.lanes.lanes, each.lanes.guard, _model_made_from(each)),
            lambda: LaneAccess(self.lanes, spec.pools, self._guard(rng_for, provided), spec.whole_request_pools),
        )

    def _guard(self, rng_for: Callable[[str], Rng], provided: frozenset[Need]) -> LaneGuard:
        spec = self._spec

        def new_queue(stage: Role) -> QueueingPolicy:
            return build_queue(spec.policies.queueing, stage, rng_for=rng_for, provided=provided, tenants=spec.tenants)

        def model(lanes: Sequence[Lane]) -> QueueModel:
            return QueueModel(
                lanes,
                spec.pools,
                spec.whole_request_pools,
                new_queue=new_queue,
                prefill_window_tokens=spec.params.prefill_window_tokens,
                refuses_late=_refuses(spec),
            )

        given: Mapping[str, Callable[[], Any]] = {
            "laned": lambda: model(self.lanes),
            "pooled": lambda: model(one_lane(spec.pools)),
            "num_gateways": lambda: spec.num_gateways,
        }
        return self._guards.part("lanes.guard", build_guard(spec.lanes.guard, given), spec.lanes.guard)

    def prefixes(self) -> PrefixTracker:
        choice = self._spec.prefixes
        return self._keep(
            "prefixes",
            lambda each: each.prefixes,
            lambda: self._guards.part("prefixes", build_tracker(choice), choice),
        )

    def first_tokens(self, prefixes: PrefixTracker) -> FirstTokenEstimator:
        return self._keep(
            "first_tokens", lambda each: each.prefixes, lambda: FirstTokenEstimator(self._spec.rates, prefixes)
        )

    def budget(self) -> WorkBudget:
        return self._keep("budget", lambda each: (), WorkBudget)

    def demand(self) -> DemandMeter:
        return self._keep("demand", lambda each: (), lambda: DemandMeter(self._spec.rates))

    def slo_meter(self) -> SloMeter:
        return self._keep(
            "slo_meter", lambda each: (each.slos, each.lanes.lanes), lambda: SloMeter(self._spec.slos, self.lanes)
        )

    def logical_requests(self) -> LogicalRequests:
        window_s = self._spec.params.client_retry_window_s
        return self._keep(
            "logical_requests",
            lambda each: each.params.client_retry_window_s,
            lambda: LogicalRequests(window_s, is_shared=_shares_news(self._spec)),
        )

    def predictor(self) -> LengthPredictor:
        choice = self._spec.length_prediction
        return self._keep(
            "predictor",
            lambda each: each.length_prediction,
            lambda: self._guards.part("length_prediction", build_predictor(choice), choice),
        )

    def classifier(self) -> LaneClassifier:
        choice = self._spec.lanes.classifier
        return self._keep(
            "classifier",
            lambda each: (each.lanes.lanes, each.lanes.classifier),
            lambda: self._guards.part("lanes.classifier", build_classifier(choice, chosen_among(self.lanes)), choice),
        )

    def planner(self, provided: frozenset[Need]) -> Planner:
        spec = self._spec
        stages = stages_served(spec.pools, spec.whole_request_pools)
        return self._keep(
            "planner",
            lambda each: (each.planner, each.prefixes),
            lambda: build_planner(spec.planner, stages, spec.rates, provided),
        )

    def request_classifier(
        self, predictor: LengthPredictor, prefixes: PrefixTracker, classifier: LaneClassifier
    ) -> RequestClassifier:
        geometry = GeometryEstimator(predictor, prefixes, self._spec.rates)
        return self._keep(
            "request_classifier",
            lambda each: (each.lanes.lanes, each.lanes.classifier, each.slos, each.length_prediction, each.prefixes),
            lambda: RequestClassifier(geometry, classifier, self.lanes, self._spec.slos),
        )

    def policies(
        self,
        rng_for: Callable[[str], Rng],
        provided: frozenset[Need],
        access: LaneAccess,
        first_tokens: FirstTokenEstimator,
        budget: WorkBudget,
    ) -> PolicySet:
        spec = self._spec
        made = build(
            spec.policies,
            rng_for=rng_for,
            provided=provided,
            queues=access.queues,
            prefixes=first_tokens.prefixes,
            first_tokens=first_tokens,
            tenants=spec.tenants,
            num_gateways=spec.num_gateways,
            unix_ahead_s=spec.unix_ahead_s,
            budget=budget,
            fallback_lanes=tuple(lane.name for lane in self.lanes if lane.fallback),
        )
        return self._before.keep_policies(spec, made)

    def _keep(self, name: str, source: Source, make: Callable[[], T]) -> T:
        return self._before.keep(name, self._spec, source, make)


def _metered(spec: DispatcherSpec, policies: PolicySet, *meters: DemandMeter | SloMeter) -> PolicySet:
    """With meters of what requests ask for and get, where that is wanted."""
    return replace(policies, shared=(*policies.shared, *meters)) if spec.policies.is_scaled else policies


def _made_from(spec: DispatcherSpec, question: str) -> object:
    also = ALSO_MADE_FROM.get(question)
    return getattr(spec.policies, question), also(spec) if also else ()


def _model_made_from(spec: DispatcherSpec) -> object:
    """What a guard's models go by beside the lanes."""
    return _refuses(spec), spec.params.prefill_window_tokens, _made_from(spec, "queueing")


def _refuses(spec: DispatcherSpec) -> bool:
    """Whether an admission policy refuses anything."""
    return spec.policies.admission != PolicySpec().admission


def _not_configured(spec: DispatcherSpec) -> frozenset[Need]:
    """What a host could supply, if only its configuration said so."""
    needs = {Need.PREFIXES: spec.prefixes == NO_TRACKER, Need.SERVICE_RATES: not spec.rates.are_known}
    return frozenset(need for need, is_missing in needs.items() if is_missing)


def _shares_news(spec: DispatcherSpec) -> bool:
    return spec.num_gateways > 1 and spec.has_load_coordinator


FIXED = ("pools", "whole_request_pools", "rates", "num_gateways", "has_load_coordinator", "unix_ahead_s")
"""What a dispatcher's fleet is made of: no change of the configuration changes it while it runs."""


def reconfigured(spec: DispatcherSpec) -> Reconfigured:
    """The event that tells a dispatcher to go on as ``spec`` says."""
    return Reconfigured(spec=to_json(spec))


class Reconfiguration:
    """What a dispatcher is made from now, and what it would be made from next.

    Args:
        spec: What it is made from at first.
        rng_for: Gives the random stream for a purpose; a new policy begins its stream anew.
        provided: What the host can supply.
        guards: Put around what is somebody's own.

    Raises:
        ConfigError: See :func:`routing.config.parts.build_parts`.

    Attributes:
        parts: Those that the dispatcher has.
    """

    def __init__(
        self, spec: DispatcherSpec, rng_for: Callable[[str], Rng], provided: frozenset[Need], guards: Guards
    ) -> None:
        self._rng_for = rng_for
        self._provided = provided
        self._guards = guards
        self._spec = spec
        self.parts = self._made(spec, NOTHING_BEFORE)

    def parts_for(self, event: Reconfigured) -> DispatcherParts:
        """The parts that the dispatcher has from now on.

        Raises:
            ConfigError: A part that does not exist or does not fit, or a fleet that is another one; the dispatcher
                keeps what it has.
        """
        spec, present = from_json(event.spec), from_json(to_json(self._spec))
        for name in FIXED:
            if getattr(spec, name) != getattr(present, name):
                allowed = f"what it has been since the start: {getattr(present, name)}"
                raise ConfigError(name, getattr(spec, name), allowed)
        self.parts = self._made(spec, PartsBefore(present, self.parts))
        self._spec = spec
        return self.parts

    def _made(self, spec: DispatcherSpec, before: PartsBefore) -> DispatcherParts:
        made = build_parts(spec, self._rng_for, self._provided, self._guards, before)
        return self._guards.around(made, spec)
