"""What a dispatcher tells the load coordinator, and what it hears from it."""

import math
from collections.abc import Sequence
from typing import cast

from policies.contracts import CoordinatedShedding, SheddingPolicy
from routing.request.effects import PushLoad
from routing.request.events import LoadDue, ThresholdsReceived


class LoadExchange:
    """Passes on between the load coordinator and a shedding policy, if that is one whose gateways act as one.

    Args:
        policy: The shedding policy.
    """

    def __init__(self, policy: SheddingPolicy) -> None:
        self._policies = [cast(CoordinatedShedding, policy)] if hasattr(policy, "take_in") else []

    @property
    def period_s(self) -> float:
        """Between two reports; ``math.inf``: there is nothing to report."""
        return min((each.period_s for each in self._policies), default=math.inf)

    def handle(self, event: LoadDue | ThresholdsReceived, now_s: float) -> Sequence[PushLoad]:
        """Gives what the load coordinator is to know now, or takes its answer in."""
        if isinstance(event, LoadDue):
            return [PushLoad(report=each.report(now_s)) for each in self._policies]
        for policy in self._policies:
            policy.take_in(event.thresholds, now_s)
        return ()
