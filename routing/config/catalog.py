"""Parts of a dispatcher by name: planners, length predictors, lane classifiers and guards, prefix trackers.

The policies of ``policies/`` are in :mod:`policies.catalog`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from policies.catalog import NOTHING, Factory, PolicyChoice, make_policy
from policies.contracts import Need
from policies.errors import ConfigError
from policies.views import Role
from routing.intake.conditional_planning import Conditional
from routing.intake.planning import AlwaysDisaggregated, AlwaysUnified, Planner
from routing.lanes.adaptive_borders import AdaptiveLaneBorders
from routing.lanes.classifiers import FirstThatFits, LaneClassifier, check_ranges
from routing.lanes.counterfactual import CounterfactualGuard
from routing.lanes.guard import AlwaysOn, BacklogGuard, LaneGuard
from routing.lanes.lanes import Lane
from routing.prefixes.prefix_index import PrefixIndex
from routing.prefixes.prefix_tracking import NoPrefixTracker, PrefixTracker
from routing.sizing.adaptive_histogram import AdaptiveHistogram
from routing.sizing.geometry import ServiceRates
from routing.sizing.length_histogram import Log2Histogram
from routing.sizing.length_prediction import FIELD, GlobalMedian, LengthPredictor, MaxTokens
from routing.sizing.prompt_ngrams import NgramParams
from routing.sizing.quantile_model import QuantileModel

EVERY_NEED = frozenset(Need)

CLASSIFIERS: Mapping[str, Factory] = {"adaptive_lane_borders": AdaptiveLaneBorders, "first_that_fits": FirstThatFits}


def build_classifier(choice: PolicyChoice, lanes: Sequence[Lane]) -> LaneClassifier:
    """Builds a lane classifier: a key of ``CLASSIFIERS``, or ``package.module:factory``.

    Args:
        choice: Its name and parameters.
        lanes: Those that it is to choose from; the built-in ones need ranges in which every request has its place.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy` and :func:`routing.lanes.classifiers.check_ranges`.
    """
    classifier: LaneClassifier = make_policy("policies.lanes.classifier", choice, CLASSIFIERS, ("classify",))
    if choice.name in CLASSIFIERS:
        check_ranges(lanes)
    return classifier


PREDICTORS: Mapping[str, Factory] = {
    "max_tokens": MaxTokens,
    "global_median": GlobalMedian,
    "log2_histogram": Log2Histogram,
    "adaptive_histogram": AdaptiveHistogram,
    "quantile_model": QuantileModel,
}


def build_predictor(choice: PolicyChoice) -> LengthPredictor:
    """Builds a length predictor by name or import path. Reads the model's file if it has one: call it at the start.

    Args:
        choice: A key of ``PREDICTORS`` or ``package.module:factory``, and its parameters.

    Raises:
        ConfigError: Unknown name, parameters that it doesn't take, or something that is not a length predictor.
    """
    predictor: LengthPredictor = make_policy(FIELD, choice, PREDICTORS, ("predict", "observe"))
    if not isinstance(getattr(predictor, "wants_ngrams", ""), NgramParams | None):
        allowed = "a predictor with `wants_ngrams`: NgramParams, or None if it never looks at them"
        raise ConfigError(FIELD, choice.name, allowed)
    return predictor


PLANNERS: Mapping[str, Factory] = {
    "always_unified": AlwaysUnified,
    "always_disaggregated": AlwaysDisaggregated,
    "conditional": Conditional,
}


def build_planner(
    choice: PolicyChoice,
    stages: frozenset[Role],
    rates: ServiceRates | None = None,
    provided: frozenset[Need] = EVERY_NEED,
) -> Planner:
    """Builds a planner.

    Args:
        choice: A key of ``PLANNERS``, or ``package.module:factory``, and its parameters.
        stages: Stages for which the deployment has a pool.
        rates: How fast the engines are, for a planner whose factory takes ``rates``.
        provided: What the host can supply.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy`; or a planner that needs a pool or something else that is
            not there.
    """
    given = {"rates": lambda: rates or ServiceRates()}
    planner: Planner = make_policy("policies.planning", choice, PLANNERS, ("plan",), given)
    if not planner.roles <= stages:
        have, missing = (sorted(role.value for role in each) for each in (stages, planner.roles - stages))
        raise ConfigError("policies.planning", choice.name, f"a planner for the pools {have} (missing: {missing})")
    missing_needs: frozenset[Need] = getattr(planner, "requires", frozenset()) - provided
    if Need.SERVICE_RATES in missing_needs:
        allowed = "a planner that does not reckon in seconds, as long as no engine profile is given"
        raise ConfigError("policies.planning", choice.name, allowed)
    if missing_needs:
        have, missing = (sorted(need.value for need in each) for each in (provided, missing_needs))
        allowed = f"a planner whose needs are within {have} (missing: {missing})"
        raise ConfigError("policies.planning", choice.name, allowed)
    return planner


GUARDS: Mapping[str, Factory] = {
    "always_on": AlwaysOn,
    "backlog": BacklogGuard,
    "counterfactual": CounterfactualGuard,
}


def build_guard(choice: PolicyChoice, given: Mapping[str, Callable[[], Any]] = NOTHING) -> LaneGuard:
    """Builds a lane guard: a key of ``GUARDS``, or ``package.module:factory``.

    Args:
        choice: Its name and parameters.
        given: What a factory gets that has a parameter of that name: ``laned`` and ``pooled``, models of the fleet with
            the lanes and with one pool, and ``num_gateways``.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy`.
    """
    guard: LaneGuard = make_policy("policies.lanes.guard", choice, GUARDS, ("look", "are_on"), given)
    return guard


TRACKERS: Mapping[str, Factory] = {"block_hash": PrefixIndex, "none": NoPrefixTracker}


def build_tracker(choice: PolicyChoice) -> PrefixTracker:
    """Builds a prefix tracker: a key of ``TRACKERS``, or ``package.module:factory``.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy`.
    """
    methods = ("cached_tokens", "sent", "sent_elsewhere", "cache_changed", "forget")
    tracker: PrefixTracker = make_policy("policies.prefixes", choice, TRACKERS, methods)
    return tracker
