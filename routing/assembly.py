"""The one call that makes a dispatcher, the same in every host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from policies.catalog import PolicyChoice, PolicySpec, build
from policies.contracts import Need, Rng
from policies.views import Role
from routing.dispatcher import Dispatcher
from routing.dispatcher_params import DispatcherParams
from routing.door import Door
from routing.geometry import GeometryEstimator, ServiceRates
from routing.lane_access import LaneAccess, build_guard
from routing.lane_classifiers import build_classifier
from routing.lanes import Lane, check_lanes, one_lane
from routing.length_predictors import build_predictor
from routing.planning import build_planner
from routing.prefix_tracking import build_tracker
from routing.stages import NO_POOLS, PoolNames, stages_served

FIRST_THAT_FITS = PolicyChoice(name="first_that_fits")
ALWAYS_ON = PolicyChoice(name="always_on")
MAX_TOKENS = PolicyChoice(name="max_tokens")
NO_TRACKER = PolicyChoice(name="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesSpec:
    """Lanes, and who decides about them.

    Args:
        lanes: In order; none means that everything may go everywhere.
        classifier: Chooses a request's lane.
        guard: Turns lanes off when they lose.
    """

    lanes: tuple[Lane, ...] = ()
    classifier: PolicyChoice = FIRST_THAT_FITS
    guard: PolicyChoice = ALWAYS_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSpec:
    """All that makes one dispatcher decide differently from another, random streams aside.

    Args:
        planner: Chooses each request's stages.
        pools: Role of each pool, by the pool's name.
        whole_request_pools: Prefill and decode pools whose replicas also take whole requests.
        policies: A choice for every question.
        lanes: The lanes.
        length_prediction: How long answers are expected to be.
        prefixes: Who keeps track of the replicas' prefix caches.
        rates: How fast the engines are.
        params: Limits of the state machine.
    """

    planner: PolicyChoice
    pools: Mapping[str, Role]
    whole_request_pools: PoolNames = NO_POOLS
    policies: PolicySpec = field(default_factory=PolicySpec)
    lanes: LanesSpec = field(default_factory=LanesSpec)
    length_prediction: PolicyChoice = MAX_TOKENS
    prefixes: PolicyChoice = NO_TRACKER
    rates: ServiceRates = field(default_factory=ServiceRates)
    params: DispatcherParams = field(default_factory=DispatcherParams)


def build_dispatcher(spec: DispatcherSpec, *, rng_for: Callable[[str], Rng], provided: frozenset[Need]) -> Dispatcher:
    """Builds the dispatcher that ``spec`` describes, with policies of its own.

    Args:
        spec: The choices.
        rng_for: Gives the random stream for a purpose.
        provided: What the host can supply.

    Raises:
        ConfigError: A policy, planner or other part that does not exist or does not fit; see
            :func:`policies.catalog.build`, :func:`routing.planning.build_planner` and
            :func:`routing.lanes.check_lanes`.
    """
    lanes = spec.lanes.lanes or one_lane(spec.pools)
    check_lanes(lanes, spec.pools, spec.whole_request_pools)
    access = LaneAccess(lanes, spec.pools, build_guard(spec.lanes.guard), spec.whole_request_pools)
    prefixes = build_tracker(spec.prefixes)
    geometry = GeometryEstimator(build_predictor(spec.length_prediction), prefixes, spec.rates)
    provided -= _not_configured(spec)
    policies = build(
        spec.policies,
        rng_for=rng_for,
        provided=provided,
        queues=access.queues,
        prefixes=prefixes,
    )
    return Dispatcher(
        policies,
        build_planner(spec.planner, stages_served(spec.pools, spec.whole_request_pools), spec.rates, provided),
        Door(geometry, build_classifier(spec.lanes.classifier, lanes), lanes),
        access,
        prefixes=prefixes,
        params=spec.params,
    )


def _not_configured(spec: DispatcherSpec) -> frozenset[Need]:
    """What a host could supply, if only its configuration said so."""
    needs = {Need.PREFIXES: spec.prefixes == NO_TRACKER, Need.SERVICE_RATES: not spec.rates.are_known}
    return frozenset(need for need, is_missing in needs.items() if is_missing)
