"""Tier 2: which stages a request goes through."""

from typing import ClassVar, Protocol

from policies.views import FleetView, RequestView, Role
from routing.intake.conditional_planning import StageView
from routing.request.stages import DISAGGREGATED, UNIFIED, Plan


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
