"""Another configuration for a dispatcher that has requests under way.

A :class:`routing.events.Reconfigured` is an event like any other: it is in the event log, and a replay comes to the
same effects. What is under way goes on, and who waits lines up in the new lines in order of arrival. A part whose piece
of the spec has not changed stays, with all that it remembers; a new one begins with no memory, and is told of the ends
of requests whose beginnings it has not seen.
"""

from collections.abc import Callable

from policies.contracts import Need, Rng
from policies.errors import ConfigError
from routing.dispatcher_spec import DispatcherSpec, from_json, to_json
from routing.events import Reconfigured
from routing.parts import DispatcherParts, PartsBefore, build_parts

FIXED = ("pools", "whole_request_pools", "rates", "num_gateways")
"""What a dispatcher's fleet is made of: no change of the configuration changes it while it runs."""


def reconfigured(spec: DispatcherSpec) -> Reconfigured:
    """The event that tells a dispatcher to go on as ``spec`` says."""
    return Reconfigured(spec=to_json(spec))


class Reconfiguration:
    """What a dispatcher is made from now, and what it would be made from next.

    Args:
        spec: What it is made from at first.
        rng_for: Gives the random stream for a purpose; a new policy begins its stream anew.
        provided: What the host can supply.

    Raises:
        ConfigError: See :func:`routing.parts.build_parts`.

    Attributes:
        parts: Those that the dispatcher has.
    """

    def __init__(self, spec: DispatcherSpec, rng_for: Callable[[str], Rng], provided: frozenset[Need]) -> None:
        self._rng_for = rng_for
        self._provided = provided
        self._spec = spec
        self.parts = build_parts(spec, rng_for=rng_for, provided=provided)

    def parts_for(self, event: Reconfigured) -> DispatcherParts:
        """The parts that the dispatcher has from now on.

        Raises:
            ConfigError: A part that does not exist or does not fit, or a fleet that is another one; the dispatcher
                keeps what it has.
        """
        spec, present = from_json(event.spec), from_json(to_json(self._spec))
        for name in FIXED:
            if getattr(spec, name) != getattr(present, name):
                allowed = f"what it has been since the start: {getattr(present, name)}"
                raise ConfigError(name, getattr(spec, name), allowed)
        before = PartsBefore(present, self.parts)
        self.parts = build_parts(spec, rng_for=self._rng_for, provided=self._provided, before=before)
        self._spec = spec
        return self.parts
