"""The one call that makes a dispatcher, the same in every host."""

from collections.abc import Callable
from dataclasses import dataclass, field

from policies.catalog import PolicySpec, build
from policies.contracts import Need, Rng
from policies.views import Role
from routing.dispatcher import Dispatcher
from routing.dispatcher_params import DispatcherParams
from routing.planning import build_planner


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSpec:
    """All that makes one dispatcher decide differently from another, random streams aside.

    Args:
        planner: A planner's name or import path.
        roles: Roles that have a pool.
        policies: A choice for every question.
        params: Limits of the state machine.
    """

    planner: str
    roles: frozenset[Role]
    policies: PolicySpec = field(default_factory=PolicySpec)
    params: DispatcherParams = field(default_factory=DispatcherParams)


def build_dispatcher(spec: DispatcherSpec, *, rng_for: Callable[[str], Rng], provided: frozenset[Need]) -> Dispatcher:
    """Builds the dispatcher that ``spec`` describes, with policies of its own.

    Args:
        spec: The choices.
        rng_for: Gives the random stream for a purpose.
        provided: What the host can supply.

    Raises:
        ConfigError: A policy or planner that does not exist or does not fit; see :func:`policies.catalog.build` and
            :func:`routing.planning.build_planner`.
    """
    policies = build(spec.policies, rng_for=rng_for, provided=provided)
    return Dispatcher(policies, build_planner(spec.planner, spec.roles), spec.params)
