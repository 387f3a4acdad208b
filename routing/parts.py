"""What a dispatcher is put together from, and which of it outlives a change of the configuration."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from policies.budget import WorkBudget
from policies.catalog import build
from policies.contracts import Need, PolicySet, Rng
from policies.tenancy import quotas_of, weights_of
from routing.dispatcher_params import DispatcherParams
from routing.dispatcher_spec import NO_TRACKER, DispatcherSpec
from routing.door import Door
from routing.geometry import GeometryEstimator
from routing.lane_access import LaneAccess, build_guard
from routing.lane_classifiers import build_classifier
from routing.lanes import LaneClassifier, check_lanes, chosen_among, one_lane
from routing.length_prediction import LengthPredictor
from routing.length_predictors import build_predictor
from routing.planning import Planner, build_planner
from routing.prefix_tracking import PrefixTracker, build_tracker
from routing.stages import stages_served

T = TypeVar("T")
Source = Callable[[DispatcherSpec], object]
"""All of a spec that something is made from."""

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
        predictor: How long answers will be; in the door.
        classifier: Chooses lanes; in the door.
        door: Sizes requests up and puts them in lanes.
        access: Which replicas a lane may use.
        prefixes: Is told where prompts go.
        params: Limits.
        budget: What policies have done twice; whichever they are from now on, the work has been done.
    """

    policies: PolicySet
    planner: Planner
    predictor: LengthPredictor
    classifier: LaneClassifier
    door: Door
    access: LaneAccess
    prefixes: PrefixTracker
    params: DispatcherParams
    budget: WorkBudget


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
        for question in fields(now.policies):
            is_same = _made_from(self._spec, question.name) == _made_from(now, question.name)
            name = SETS.get(question.name, question.name)
            chosen[name] = getattr(self._parts.policies if is_same else made, name)
        return PolicySet(**chosen, shared=made.shared)


NOTHING_BEFORE = PartsBefore()


def build_parts(
    spec: DispatcherSpec,
    *,
    rng_for: Callable[[str], Rng],
    provided: frozenset[Need],
    before: PartsBefore = NOTHING_BEFORE,
) -> DispatcherParts:
    """Makes what a spec describes.

    Args:
        spec: The choices.
        rng_for: Gives the random stream for a purpose.
        provided: What the host can supply.
        before: What to keep where the spec has not changed.

    Raises:
        ConfigError: A part that does not exist or does not fit; nothing that was before has changed then.
    """
    lanes = spec.lanes.lanes or one_lane(spec.pools)
    check_lanes(lanes, spec.pools, spec.whole_request_pools)
    provided -= _not_configured(spec)
    access = before.keep(
        "access",
        spec,
        lambda each: (each.lanes.lanes, each.lanes.guard),
        lambda: LaneAccess(lanes, spec.pools, build_guard(spec.lanes.guard), spec.whole_request_pools),
    )
    prefixes = before.keep("prefixes", spec, lambda each: each.prefixes, lambda: build_tracker(spec.prefixes))
    predictor = before.keep(
        "predictor", spec, lambda each: each.length_prediction, lambda: build_predictor(spec.length_prediction)
    )
    classifier = before.keep(
        "classifier",
        spec,
        lambda each: (each.lanes.lanes, each.lanes.classifier),
        lambda: build_classifier(spec.lanes.classifier, chosen_among(lanes)),
    )
    budget = before.keep("budget", spec, lambda each: (), WorkBudget)
    made = build(
        spec.policies,
        rng_for=rng_for,
        provided=provided,
        queues=access.queues,
        prefixes=prefixes,
        tenants=spec.tenants,
        num_gateways=spec.num_gateways,
        budget=budget,
        fallback_lanes=tuple(lane.name for lane in lanes if lane.fallback),
    )
    return DispatcherParts(
        policies=before.keep_policies(spec, made),
        planner=before.keep(
            "planner",
            spec,
            lambda each: (each.planner, each.prefixes),
            lambda: build_planner(
                spec.planner, stages_served(spec.pools, spec.whole_request_pools), spec.rates, provided
            ),
        ),
        predictor=predictor,
        classifier=classifier,
        door=before.keep(
            "door",
            spec,
            lambda each: (each.lanes.lanes, each.lanes.classifier, each.length_prediction, each.prefixes),
            lambda: Door(GeometryEstimator(predictor, prefixes, spec.rates), classifier, lanes),
        ),
        access=access,
        prefixes=prefixes,
        params=spec.params,
        budget=budget,
    )


def _made_from(spec: DispatcherSpec, question: str) -> object:
    also = ALSO_MADE_FROM.get(question)
    return getattr(spec.policies, question), also(spec) if also else ()


def _not_configured(spec: DispatcherSpec) -> frozenset[Need]:
    """What a host could supply, if only its configuration said so."""
    needs = {Need.PREFIXES: spec.prefixes == NO_TRACKER, Need.SERVICE_RATES: not spec.rates.are_known}
    return frozenset(need for need, is_missing in needs.items() if is_missing)
