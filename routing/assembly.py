"""The one call that makes a dispatcher, the same in every host."""

from collections.abc import Callable

from policies.contracts import Need, Rng
from routing.config.parts import Reconfiguration
from routing.config.spec import DispatcherSpec
from routing.dispatcher import Dispatcher


def build_dispatcher(spec: DispatcherSpec, *, rng_for: Callable[[str], Rng], provided: frozenset[Need]) -> Dispatcher:
    """Builds the dispatcher that ``spec`` describes, with policies of its own.

    Args:
        spec: The choices.
        rng_for: Gives the random stream for a purpose.
        provided: What the host can supply.

    Raises:
        ConfigError: A policy, planner or other part that does not exist or does not fit; see
            :func:`policies.catalog.build`, :func:`routing.config.catalog.build_planner` and
            :func:`routing.lanes.lanes.check_lanes`.
    """
    reconfiguration = Reconfiguration(spec, rng_for, provided)
    return Dispatcher(reconfiguration.parts, reconfiguration.parts_for)
