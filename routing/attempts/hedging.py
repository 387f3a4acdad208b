"""Second attempts beside slow ones: when, and where to."""

import math
from collections.abc import Sequence

from policies.candidates import CandidateList, Candidates
from policies.contracts import Need, PolicySet
from policies.errors import PolicyMisbehaved
from policies.hedging.no_hedge import NoHedge
from policies.views import ReplicaView, RequestView, Role
from routing.fleet.first_token import FirstTokenEstimator
from routing.fleet.fleet import Fleet
from routing.lanes.access import LaneAccess
from routing.request.effects import SetTimer
from routing.request.request import Attempt, Request

NOWHERE: Candidates = CandidateList()
ASK_AGAIN_S = 0.05
"""Soonest."""


class SlowAttempt:
    """One attempt, as policies see it: a :class:`policies.attempt_views.AttemptView`.

    Args:
        attempt: The attempt.
        replica: Where it is.
        request: Whose it is.
        first_tokens: How long first tokens take there.
    """

    __slots__ = ("_first_tokens", "_request", "attempt", "replica")

    def __init__(
        self, attempt: Attempt, replica: ReplicaView, request: RequestView, first_tokens: FirstTokenEstimator
    ) -> None:
        self.attempt = attempt
        self.replica = replica
        self._request = request
        self._first_tokens = first_tokens

    @property
    def attempt_id(self) -> str:
        return self.attempt.attempt_id

    @property
    def stage(self) -> Role:
        return self.attempt.stage

    @property
    def prefill_tokens(self) -> int:
        return self.attempt.prefill_tokens

    @property
    def sent_at_s(self) -> float:
        return self.attempt.sent_at_s

    @property
    def expected_s(self) -> float:
        if self.stage is Role.DECODE or not self._first_tokens.rates.are_known:
            return 0.0
        by_profile_s = self._first_tokens.by_profile_s(self.attempt, self._request.prompt_tokens, self.replica)
        return self._first_tokens.corrected_s(by_profile_s)


class Hedger:
    """Asks the policy about attempts that compute a prompt.

    Those that pull KV are left alone: two that pull the same blocks would get in each other's way, and a transfer can't
    be stopped.

    Args:
        policies: The one that hedges knows when a second attempt is due, and which of the candidates is to take it.
            While the one that sheds gives work up, none is: what is done twice would be given up elsewhere.
        access: Which replicas a request may use.
        fleet: All replicas.
        first_tokens: How long first tokens take there.

    Attributes:
        is_on: Whether the policy ever hedges.
    """

    def __init__(
        self, policies: PolicySet, access: LaneAccess, fleet: Fleet, first_tokens: FirstTokenEstimator
    ) -> None:
        self.is_on = not isinstance(policies.hedging, NoHedge)
        self._policy = policies.hedging
        self._shedding = policies.shedding
        self._are_tied = Need.CLAIMS in getattr(policies.hedging, "requires", ())
        self._access = access
        self._fleet = fleet
        self._first_tokens = first_tokens

    def timers(self, request: Request, attempt: Attempt, now_s: float) -> Sequence[SetTimer]:
        """What is to fire when an attempt that has just been sent should have its first token."""
        if attempt.stage is Role.DECODE:
            return ()
        fleet = self._access.view(request.view, self._fleet)
        delay_s = self._policy.delay_s(request.view, self._look_at(request, attempt), fleet, now_s)
        return () if delay_s == math.inf else (SetTimer(token=attempt.hedge_token, at_s=now_s + delay_s),)

    def target(self, request: Request, attempt: Attempt, now_s: float) -> Candidates:
        """The one replica for a second attempt, or none.

        Raises:
            PolicyMisbehaved: The policy named another; nothing has been sent.
        """
        if self._shedding.shed_fraction(now_s) > 0.0:
            return NOWHERE
        tried = request.failed_replicas | {each.replica_id for each in request.open_attempts.values()}
        candidates = self._access.with_room(request.stage, request.view.lane, self._fleet, now_s, tried)
        if not candidates:
            return NOWHERE
        view = self._look_at(request, attempt)
        candidates = _elsewhere(candidates, view.replica.failure_domain)
        target = self._policy.target(request.view, view, candidates, now_s)
        if target is None:
            return NOWHERE
        if not candidates.has(target):
            raise PolicyMisbehaved("hedging", self._policy, f"one of the {len(candidates)} candidates, or none", target)
        return CandidateList([target])

    def tied_to(self, attempt: Attempt) -> str | None:
        """The attempt that a second one beside it shares an execution claim with: itself, or none where both are to
        compute.
        """
        return attempt.attempt_id if self._are_tied else None

    def later(self, attempt: Attempt, now_s: float) -> SetTimer:
        """When to ask again, after a hedge that was not worth it: after as long again as it has waited."""
        waited_s = now_s - attempt.sent_at_s
        return SetTimer(token=attempt.hedge_token, at_s=now_s + max(ASK_AGAIN_S, waited_s))

    def _look_at(self, request: Request, attempt: Attempt) -> SlowAttempt:
        replica = self._fleet.get(attempt.replica_id)
        assert replica is not None, "a replica is remembered as long as it has attempts"
        return SlowAttempt(attempt, replica, request.view, self._first_tokens)


def _elsewhere(candidates: Candidates, failure_domain: str) -> Candidates:
    """Those that are in another failure domain, if there are any."""
    if not failure_domain:
        return candidates
    others = CandidateList(each for each in candidates if each.failure_domain != failure_domain)
    return others or candidates
