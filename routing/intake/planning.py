"""Tier 2: which stages a request goes through."""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from policies.catalog import Factory, PolicyChoice, make_policy
from policies.contracts import Need
from policies.errors import ConfigError
from policies.views import FleetView, RequestView, Role
from routing.intake.conditional_planning import Conditional, StageView
from routing.request.stages import DISAGGREGATED, UNIFIED, Plan
from routing.sizing.geometry import ServiceRates

EVERY_NEED = frozenset(Need)


class Planner(Protocol):
    """Answers: one replica for the whole request, or a prefill replica and a decode replica?"""

    roles: ClassVar[frozenset[Role]]
    """Every stage that a plan of this planner can name; the host refuses to start without a pool for each.

    A planner may say in ``requires`` what else a host must supply, as policies do.
    """

    def plan(self, request: RequestView, fleet: StageView, now_s: float) -> Plan: ...


class AlwaysUnified:
    """One replica does it all. No handoff; a long prompt delays the tokens of everybody on its replica."""

    roles: ClassVar[frozenset[Role]] = frozenset(UNIFIED)

    def plan(self, request: RequestView, fleet: FleetView, now_s: float) -> Plan:
        return UNIFIED


class AlwaysDisaggregated:
    """Prefill on one pool, decode on another. Steady token times; short prompts pay for a handoff all the same."""

    roles: ClassVar[frozenset[Role]] = frozenset(DISAGGREGATED)

    def plan(self, request: RequestView, fleet: FleetView, now_s: float) -> Plan:
        return DISAGGREGATED


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
