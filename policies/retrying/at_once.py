"""A retry for everybody, at once."""

from typing import ClassVar

from policies.attempt_views import LostAttempt
from policies.contracts import Need
from policies.decisions import AGAIN_AT_ONCE, RetryDecision
from policies.signals import Signal
from policies.views import RequestView


class AtOnce:
    """Is a request tried again whose attempt was lost? Always, and at once.

    Rule: it is enqueued for another replica, as often as the dispatcher lets it.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: what a replica was lost with falls on the others in the same instant, and goes on to the next ones
        when those are lost too: a request that kills its replica kills as many as it has attempts, and their requests
        come along.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def decide(self, request: RequestView, lost: LostAttempt, now_s: float) -> RetryDecision:
        return AGAIN_AT_ONCE
