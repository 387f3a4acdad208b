"""Tier 2: which stages a request goes through.

A plan is a tuple of stages: ``(UNIFIED,)``, or ``(PREFILL, DECODE)`` with a KV handoff between the two.
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from policies.catalog import Factory, resolve
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


def build_planner(name: str, pools: frozenset[Role]) -> Planner:
    """Builds a planner by name or import path.

    Args:
        name: A key of ``PLANNERS``, or ``package.module:factory``.
        pools: Roles for which the deployment has a pool.

    Raises:
        ConfigError: Unknown name, or a planner that needs a pool that is not there.
    """
    planner: Planner = resolve("planning", name, PLANNERS)()
    if not planner.roles <= pools:
        have, missing = (sorted(role.value for role in roles) for roles in (pools, planner.roles - pools))
        raise ConfigError("policies.planning", name, f"a planner for the pools {have} (missing: {missing})")
    return planner
