"""The one call that makes a dispatcher, the same in every host."""

from collections.abc import Callable

from policies.contracts import Need, Rng
from routing.breakers.breakers import NoBreakers
from routing.config.parts import Reconfiguration
from routing.config.spec import DispatcherSpec
from routing.dispatcher import Dispatcher

NO_BREAKERS = NoBreakers()


def build_dispatcher(
    spec: DispatcherSpec,
    *,
    rng_for: Callable[[str], Rng],
    provided: frozenset[Need],
    breakers: NoBreakers = NO_BREAKERS,
) -> Dispatcher:
    """Builds the dispatcher that ``spec`` describes, with policies of its own.

    Args:
        spec: The choices.
        rng_for: Gives the random stream for a purpose.
        provided: What the host can supply.
        breakers: Around policies of somebody's own; without them what these raise is raised.

    Raises:
        ConfigError: A policy, planner or other part that does not exist or does not fit; see
            :func:`policies.catalog.build`, :func:`routing.config.catalog.build_planner` and
            :func:`routing.lanes.lanes.check_lanes`.
    """
    reconfiguration = Reconfiguration(spec, rng_for, provided, breakers)
    return Dispatcher(reconfiguration.parts, reconfiguration.parts_for)
