"""The replica with the longest match that is not too busy."""

from typing import ClassVar

from policies.balancing.hash_ring import HashRing, first_within
from policies.balancing.work_limit import WorkLimit
from policies.candidates import Candidates, load_of
from policies.contracts import Need
from policies.signals import Signal
from policies.views import PrefixView, ReplicaView, RequestView

POINTS_PER_REPLICA = 128
TELLING_BLOCK = 1
"""The first block is often the same in everybody's prompt; the second tells texts apart."""


class PrefixAffinity:
    """Which replica takes the attempt? Of those that are not too busy, the one that has most of the prompt cached.

    Rule: among candidates with ``work_tokens <= bound_factor * mean + slack_tokens`` the longest match, and of equally
        long ones least work left; when none of those that match is within the bound, least work left of all. With
        ``hash_new_text``, text that nobody is known to have goes to the first such candidate on a ring of hashed
        replica ids, from the place of the prompt's second block.
    State: none but the ring; the prefix index is shared with the rest of the router, and says how long a match must be
        to count.
    Consumes: no signal; the prefix index and the views' work accounts, which need the replicas' reports.
    Complexity: O(k log n) for the k replicas up to the longest match within the bound; O(1) where the one with the
        least work is among the longest matches, so that a text which everybody shares costs nothing.
    Failure mode: each gateway knows what it has sent itself, so a conversation that comes by another one is new there,
        unless ``hash_new_text`` has sent it to the place where all gateways look, at the price of placing new work less
        evenly. A bound that is too tight scatters conversations, one too loose lets queues grow behind popular text.
    Source: the load bound of Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018, on
        cache-aware routing.

    Args:
        prefixes: What replicas have in their caches.
        bound_factor: Multiple of the candidates' mean work, at least 1, up to which a replica is not too busy.
        slack_tokens: Work on top of that.
        hash_new_text: Whether text that nobody has goes to its place on the ring, and not to the least work left.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.PREFIXES, Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        prefixes: PrefixView,
        bound_factor: float = 1.5,
        slack_tokens: int = 16_384,
        hash_new_text: bool = False,
    ) -> None:
        self._prefixes = prefixes
        self._limit = WorkLimit(bound_factor, slack_tokens)
        self._ring = HashRing(POINTS_PER_REPLICA) if hash_new_text else None

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        cached = self._prefixes.cached_tokens(request)
        limit_tokens = self._limit.tokens(candidates)
        if self._ring is not None and not cached and len(request.prefix_blocks) > TELLING_BLOCK:
            return first_within(self._ring, str(request.prefix_blocks[TELLING_BLOCK]), candidates, limit_tokens)
        idlest = candidates.least_work_left()
        tokens_at_idlest = cached.get(idlest.replica_id, 0)
        best: ReplicaView | None = None
        best_tokens = 0
        for replica_id, tokens in cached.items():  # the longest match first
            if tokens <= tokens_at_idlest or tokens < best_tokens:
                break
            replica = candidates.find(replica_id)
            if replica is None or replica.work_tokens > limit_tokens:
                continue
            if best is None or load_of(replica) < load_of(best):
                best, best_tokens = replica, tokens
        return best or idlest
