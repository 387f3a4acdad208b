"""Second attempts beside slow ones: when, and where to."""

import math
from collections.abc import Sequence

from policies.contracts import HedgingPolicy, Need
from policies.errors import PolicyMisbehaved
from policies.views import CandidateList, Candidates, ReplicaView, Role
from routing.attempts import Attempt
from routing.effects import SetTimer
from routing.fleet import Fleet
from routing.geometry import ServiceRates
from routing.lane_access import LaneAccess
from routing.life import RequestLife

NOWHERE: Candidates = CandidateList()
ASK_AGAIN_S = 0.05
"""Soonest."""


class SlowAttempt:
    """One attempt, as policies see it: a :class:`policies.attempt_views.AttemptView`.

    Args:
        attempt: The attempt.
        replica: Where it is.
        prefill_s: What its own prompt takes.
        rates: How fast replicas are.
    """

    __slots__ = ("_prefill_s", "_rates", "attempt", "replica")

    def __init__(self, attempt: Attempt, replica: ReplicaView, prefill_s: float, rates: ServiceRates) -> None:
        self.attempt = attempt
        self.replica = replica
        self._prefill_s = prefill_s
        self._rates = rates

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
        ahead_tokens = max(0, self.replica.prefill_tokens - self.attempt.prefill_tokens)
        return self._prefill_s + self._rates.queue_s(ahead_tokens)


class Hedger:
    """Asks the policy about attempts that compute a prompt.

    Those that pull KV are left alone: two that pull the same blocks would get in each other's way, and a transfer can't
    be stopped.

    Args:
        policy: Knows when a second attempt is due, and which of the candidates is to take it.
        access: Which replicas a request may use.
        fleet: All replicas.
        rates: How fast they are.
    """

    def __init__(self, policy: HedgingPolicy, access: LaneAccess, fleet: Fleet, rates: ServiceRates) -> None:
        self._policy = policy
        self._ties = Need.CLAIMS in getattr(policy, "requires", ())
        self._access = access
        self._fleet = fleet
        self._rates = rates

    def timers(self, life: RequestLife, attempt: Attempt, now_s: float) -> Sequence[SetTimer]:
        """What is to fire when an attempt that has just been sent should have its first token."""
        if attempt.stage is Role.DECODE:
            return ()
        fleet = self._access.view(life.request, self._fleet)
        delay_s = self._policy.delay_s(life.request, self._look_at(life, attempt), fleet, now_s)
        return () if delay_s == math.inf else (SetTimer(token=attempt.hedge_token, at_s=now_s + delay_s),)

    def target(self, life: RequestLife, attempt: Attempt, now_s: float) -> Candidates:
        """The one replica for a second attempt, or none.

        Raises:
            PolicyMisbehaved: The policy named another; nothing has been sent.
        """
        tried = life.failed_replicas | {each.replica_id for each in life.open_attempts.values()}
        candidates = self._access.with_room(life.stage, life.request.lane, self._fleet, now_s, tried)
        if not candidates:
            return NOWHERE
        view = self._look_at(life, attempt)
        candidates = _elsewhere(candidates, view.replica.failure_domain)
        target = self._policy.target(life.request, view, candidates, now_s)
        if target is None:
            return NOWHERE
        if not candidates.has(target):
            raise PolicyMisbehaved("hedging", self._policy, f"one of the {len(candidates)} candidates, or none", target)
        return CandidateList([target])

    def tied_to(self, attempt: Attempt) -> str | None:
        """The attempt that a second one beside it shares a claim with: itself, or none where both are to compute."""
        return attempt.attempt_id if self._ties else None

    def later(self, attempt: Attempt, now_s: float) -> SetTimer:
        """When to ask again, after a hedge that was not worth it: after as long again as it has waited."""
        waited_s = now_s - attempt.sent_at_s
        return SetTimer(token=attempt.hedge_token, at_s=now_s + max(ASK_AGAIN_S, waited_s))

    def _look_at(self, life: RequestLife, attempt: Attempt) -> SlowAttempt:
        replica = self._fleet.get(attempt.replica_id)
        assert replica is not None, "a replica is remembered as long as it has attempts"
        return SlowAttempt(attempt, replica, life.request.geometry.prefill_s, self._rates)


def _elsewhere(candidates: Candidates, failure_domain: str) -> Candidates:
    """Those that are in another failure domain, if there are any."""
    if not failure_domain:
        return candidates
    others = CandidateList(each for each in candidates if each.failure_domain != failure_domain)
    return others or candidates
