"""The replica that the session's hash names, unless it is too busy."""

from typing import ClassVar

from policies.balancing.hash_ring import HashRing, first_within
from policies.balancing.work_limit import WorkLimit
from policies.candidates import Candidates
from policies.contracts import Need
from policies.errors import ConfigError
from policies.signals import Signal
from policies.views import ReplicaView, RequestView


class SessionAffinity:
    """Which replica takes the attempt? The session's own, or the next one on the ring that is not too busy.

    Rule: from the session's place on a ring of hashed replica ids, the first candidate with ``work_tokens <=
        bound_factor * mean + slack_tokens``; least work left when none is, or when the request names no session.
    State: the ring, ``points_per_replica`` entries for each replica seen of late; what it answers depends on the
        candidates alone, so all gateways agree without a word and a restart changes nothing.
    Consumes: no signal; the views' work accounts, which need the replicas' reports.
    Complexity: O(n) to see that the candidates are on the ring, about 25 ns for each; O(log n) for the pick.
    Failure mode: it knows sessions, not text: a text that many sessions share is cached everywhere, and a session that
        had to overflow starts anew elsewhere. When replicas come or go, about 1 in n sessions moves.
    Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018; Karger et al.,
        "Consistent Hashing and Random Trees", STOC 1997.

    Args:
        bound_factor: Multiple of the candidates' mean work, at least 1, up to which a replica is not too busy.
        slack_tokens: Work on top of that.
        points_per_replica: Of the ring.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, bound_factor: float = 1.5, slack_tokens: int = 16_384, points_per_replica: int = 128) -> None:
        if points_per_replica < 1:
            raise ConfigError("policies.balancing.params.points_per_replica", points_per_replica, "at least 1")
        self._limit = WorkLimit(bound_factor, slack_tokens)
        self._ring = HashRing(points_per_replica)

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        if not request.session_id:
            return candidates.least_work_left()
        return first_within(self._ring, request.session_id, candidates, self._limit.tokens(candidates))
