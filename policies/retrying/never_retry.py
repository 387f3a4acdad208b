"""Retrying switched off."""

from typing import ClassVar

from policies.attempt_views import LostAttempt
from policies.contracts import Need
from policies.decisions import GiveUp, RetryDecision
from policies.signals import Signal
from policies.views import RequestView


class NeverRetry:
    """Is a request tried again whose attempt was lost? No: its client may.

    Rule: the request is refused, and the client told that a retry has a chance.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: with every replica that is lost all its requests are refused that have no token yet; clients that do
        not retry have lost theirs, and those that do so at once come together.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def decide(self, request: RequestView, lost: LostAttempt, now_s: float) -> RetryDecision:
        return GiveUp(may_retry=True)
