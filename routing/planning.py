"""Tier 2: which stages a request goes through.

A plan is a tuple of stages: ``(UNIFIED,)``, or ``(PREFILL, DECODE)`` with a KV handoff between the two.
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from policies.catalog import Factory, PolicyChoice, make_policy
from policies.errors import ConfigError
from policies.views import FleetView, RequestView, Role

Plan = tuple[Role, ...]

UNIFIED: Plan = (Role.UNIFIED,)
DISAGGREGATED: Plan = (Role.PREFILL, Role.DECODE)


class Planner(Protocol):
    """Answers: one replica for the whole request, or a prefill replica and a decode replica?"""

    roles: ClassVar[frozenset[Role]]
    """Every role that a plan of this planner can name; the host refuses to start without a pool for each."""

    def plan(self, request: RequestView, fleet: FleetView, now_s: float) -> Plan: ...


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
}


def build_planner(choice: PolicyChoice, roles: frozenset[Role]) -> Planner:
    """Builds a planner.

    Args:
        choice: A key of ``PLANNERS``, or ``package.module:factory``, and its parameters.
        roles: Roles for which the deployment has a pool.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy`; or a planner that needs a pool that is not there.
    """
    planner: Planner = make_policy("policies.planning", choice, PLANNERS, ("plan",))
    if not planner.roles <= roles:
        have, missing = (sorted(role.value for role in each) for each in (roles, planner.roles - roles))
        raise ConfigError("policies.planning", choice.name, f"a planner for the pools {have} (missing: {missing})")
    return planner
