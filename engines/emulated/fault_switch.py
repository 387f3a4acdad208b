"""Switches an emulated engine's faults on, and off again when their time is over."""

import asyncio
import logging
from collections.abc import Callable

from engines.faults import FaultKind
from engines.model.messages import BeginFault, EndFault, Message
from policies.errors import ConfigError

LOGGER = logging.getLogger(__name__)
LONGEST_FAULT_S = 86_400


class FaultSwitch:
    """The faults of one engine; see the module.

    Args:
        tell: Tells the engine model something.
    """

    def __init__(self, tell: Callable[[Message], object]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._ends: dict[FaultKind, asyncio.TimerHandle] = {}

    def begin(self, kind: FaultKind, factor: float, for_s: float | None) -> None:
        """Switches a fault on, or one that is on once more: for another time, by another factor.

        Args:
            kind: Which; not ``CRASH``.
            factor: For ``SLOW``: how many times as long a step takes.
            for_s: Real seconds until it is switched off again; ``None`` leaves it on.
        """
        self._cancel_end(kind)
        LOGGER.warning("fault: %s, factor %s, for %s s", kind.value, factor, for_s)
        self._tell(BeginFault(kind, factor))
        if for_s is not None:
            self._ends[kind] = self._loop.call_later(for_s, self.end, kind)

    def end(self, kind: FaultKind) -> None:
        """Switches a fault off, if it is on."""
        self._cancel_end(kind)
        self._tell(EndFault(kind))

    def stop(self) -> None:
        """Nothing is switched any more."""
        for kind in list(self._ends):
            self._cancel_end(kind)

    def _cancel_end(self, kind: FaultKind) -> None:
        if timer := self._ends.pop(kind, None):
            timer.cancel()


def check_duration(for_s: float | None) -> None:
    """Whether a fault may be on for so long.

    Raises:
        ConfigError: The number is out of range.
    """
    if for_s is not None and not 0 < for_s <= LONGEST_FAULT_S:
        raise ConfigError("for_s", for_s, f"more than 0, at most {LONGEST_FAULT_S:,}")
