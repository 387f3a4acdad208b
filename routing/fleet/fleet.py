"""This gateway's view of the replicas: who is up, who is in quarantine, and how much work each has left."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import merge
from operator import attrgetter
from typing import NamedTuple

from policies.candidates import CandidateList, Candidates
from policies.views import ReplicaView, Role
from routing.fleet.pool import JoinedCandidates, Pool
from routing.fleet.replica import NO_BOUND, Replica
from routing.fleet.shared_kv import SharedKv
from routing.request.events import ReplicaInfo
from routing.request.news import ReplicaWork
from routing.request.request import Attempt
from routing.request.stages import NO_POOLS, PoolNames, pools_serving

NOTHING = ReplicaWork()
_by_id = attrgetter("replica_id")


class Replaced(NamedTuple):
    """What has changed of a pool's replicas, by their ids.

    Args:
        fresh: Those that were not known, unless they are the first that are heard of, which may have run for long.
        gone: Those that are not there any more.
    """

    fresh: Sequence[str]
    gone: Sequence[str]


class Fleet:
    """Replicas by id, with slots; a replica that has gone keeps its record until its last attempt has ended.

    Args:
        whole_request_pools: Prefill and decode pools whose replicas also take whole requests.
        prefill_window_tokens: Prompt tokens that a replica is given at a time; 0: no bound.
    """

    waiting_room_s = 0.0
    """How long a pool that has lost its last replica is worth waiting for; 0: not at all, nor are replicas out."""
    has_gaps = True
    """Whether a pool may have nobody who takes requests: it is known of each pool that nobody has gone out since."""

    def __init__(self, whole_request_pools: PoolNames = NO_POOLS, prefill_window_tokens: int = 0) -> None:
        self._whole_request_pools = whole_request_pools
        self._prefill_window_tokens = prefill_window_tokens or NO_BOUND
        self._replicas: dict[str, Replica] = {}
        self._pools: dict[str, Pool] = {}
        self._joined: dict[PoolNames, tuple[list[int], JoinedCandidates]] = {}
        self._shared_kv = SharedKv()

    def replace(self, pool: str, role: Role, infos: Collection[ReplicaInfo], now_s: float = 0.0) -> Replaced:
        """Sets the replicas of a pool; those known already keep their accounts, and those of another pool leave it."""
        known = self._pools.setdefault(pool, Pool(role))
        fresh = [info.replica_id for info in infos if known.has_begun and info.replica_id not in self._replicas]
        up = {
            info.replica_id: self._replicas.get(info.replica_id) or Replica(info, self._prefill_window_tokens)
            for info in infos
        }
        for replica in up.values():
            if replica.pool != pool:
                self._pools[replica.pool].release(replica)
                replica.serve(pool, role)
        self._replicas.update(up)
        gone = known.replace(up.values(), now_s)
        for replica in gone:
            if replica.quarantined_until_s == math.inf:
                replica.quarantined_until_s = 0.0  # whoever would have ended that has forgotten it
            self._forget_if_idle(replica)
        self.look_for_gaps(now_s)
        return Replaced(fresh, [replica.replica_id for replica in gone])

    def set_prefill_window(self, tokens: int) -> None:
        """So many prompt tokens are given to a replica at a time from now on; 0: no bound."""
        self._prefill_window_tokens = tokens or NO_BOUND
        for replica in self._replicas.values():
            replica.prefill_window_tokens = self._prefill_window_tokens
            self._pools[replica.pool].sort_in(replica)

    def pools(self, stage: Role) -> PoolNames:
        """Names of the pools that have been heard of and serve a stage."""
        heard_of = {name: pool.role for name, pool in self._pools.items()}
        return pools_serving(stage, heard_of, self._whole_request_pools)

    @property
    def pool_names(self) -> Iterable[str]:
        """All pools that have been heard of."""
        return self._pools

    def get(self, replica_id: str) -> Replica | None:
        """The record of a replica that is up or still has attempts."""
        return self._replicas.get(replica_id)

    def up(self, pool: str) -> Sequence[ReplicaView]:
        """Replicas of a pool that are up, in quarantine or not, in order of id; valid until the next change."""
        return self._pools[pool].up

    def live(self, stage: Role, now_s: float) -> Sequence[ReplicaView]:
        """Replicas that serve a stage, are up and not in quarantine, in order of id; valid until the next change."""
        return self.live_in(self.pools(stage), now_s)

    def live_in(self, pools: PoolNames, now_s: float) -> Sequence[ReplicaView]:
        """Replicas of some pools that are up and not in quarantine, in order of id; valid until the next change."""
        if len(pools) == 1 and pools[0] in self._pools:
            return self._pools[pools[0]].live(now_s)
        return list(merge(*(self._pools[name].live(now_s) for name in pools if name in self._pools), key=_by_id))

    def is_expecting(self, pools: PoolNames, now_s: float) -> bool:
        """Whether replicas of some pools are worth waiting for of which none is live."""
        if not self.waiting_room_s:
            return False
        known = (self._pools[name] for name in pools if name in self._pools)
        return any(each.is_expecting(now_s, self.waiting_room_s) for each in known)

    def look_for_gaps(self, now_s: float) -> None:
        """Finds out whether a pool has nobody who takes requests."""
        self.has_gaps = not all(pool.live(now_s) for pool in self._pools.values())

    def has_begun(self, pool: str) -> bool:
        """Whether a pool has ever had a replica."""
        return pool in self._pools and self._pools[pool].has_begun

    def closes_at_s(self, pool: str) -> float:
        """When those are refused that still wait for a pool that has lost its last replica."""
        return self._pools[pool].empty_since_s + self.waiting_room_s

    def is_empty(self, pool: str) -> bool:
        """Whether a pool has lost its last replica."""
        return pool in self._pools and self._pools[pool].is_empty

    def returns_in_s(self, pools: PoolNames, now_s: float) -> float:
        """When the first of some pools will have a replica again; 0 where nothing is known."""
        known = [self._pools[name].returns_in_s(now_s) for name in pools if name in self._pools]
        return min(filter(None, known), default=0.0)

    def with_room(self, pools: PoolNames, now_s: float, excluding: frozenset[str] = frozenset()) -> Candidates:
        """Live replicas of some pools that have a free slot, without the excluded ones; valid until the next change."""
        candidates = self._join(pools, now_s)
        if not excluding:
            return candidates
        return CandidateList(each for each in candidates if each.replica_id not in excluding)

    def quarantine(self, replica_id: str, until_s: float) -> None:
        """Nothing is sent to the replica before ``until_s``."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.quarantined_until_s = max(replica.quarantined_until_s, until_s)
            self._pools[replica.pool].quarantine(replica)
            self.has_gaps = True

    def end_suspicion(self, replica_id: str) -> None:
        """The replica is spared no longer."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            self._pools[replica.pool].end_suspicion(replica)

    def limit(self, replica_id: str, *, after_ejection: int | None = None, after_start: int | None = None) -> None:
        """The replica has no more than so many attempts of this gateway at a time, as far as it takes them.

        Args:
            replica_id: Which; one that has gone is ignored.
            after_ejection: So many, because it was ejected.
            after_start: So many, because it has just started.
        """
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.limit(after_ejection=after_ejection, after_start=after_start)
            self._pools[replica.pool].sort_in(replica)

    def forgive(self) -> None:
        """No replica has fewer than it takes because it was ejected."""
        for replica in self._replicas.values():
            self.limit(replica.replica_id, after_ejection=NO_BOUND)

    def report(self, replica_id: str, prefill_tokens: int, kv_tokens: int, kv_cache_usage: float) -> None:
        """Takes in a replica's report; one from a replica that has gone is ignored."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.report(prefill_tokens, kv_tokens, kv_cache_usage)
            self._pools[replica.pool].sort_in(replica)

    def report_adapters(self, replica_id: str, loaded: Collection[str], in_use: Collection[str]) -> None:
        """Takes in what a replica says of its adapters, the last one used first."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.adapters.report(loaded, in_use)

    def here(self, pool: str) -> Sequence[Replica]:
        """The records of a pool's replicas that are up, with this gateway's own account of each."""
        return [each for each in self._replicas.values() if each.pool == pool and each.is_up]

    def work_here(self) -> Mapping[str, ReplicaWork]:
        """What this gateway alone has for each replica."""
        return {name: here for name, each in self._replicas.items() if any(here := each.work_here)}

    def share(self, elsewhere: Mapping[str, ReplicaWork]) -> None:
        """Takes in what the other gateways have for each replica; for those not named they have nothing."""
        for name, replica in self._replicas.items():
            replica.share(elsewhere.get(name, NOTHING))
            self._pools[replica.pool].sort_in(replica)

    def room_tokens(self, replicas: Iterable[ReplicaView]) -> int:
        """Prompt tokens that replicas will be given before they have no room any more."""
        return sum(max(0, self._prefill_window_tokens - each.prefill_tokens) for each in replicas)

    def shared_kv_fraction(self) -> float:
        """Of the KV tokens that this gateway's attempts hold, each by itself, what another there has too; O(n)."""
        shared_tokens = self._shared_kv.tokens()
        return shared_tokens and shared_tokens / sum(each.work_here.kv_tokens for each in self._replicas.values())

    def take(self, attempt: Attempt) -> None:
        """The attempt holds a slot from here on."""
        replica = self._replicas[attempt.replica_id]
        replica.take(attempt.prefill_tokens, attempt.kv_tokens)
        if attempt.adapter:
            replica.adapters.enter(attempt.adapter)
        if attempt.kv_blocks:
            self._shared_kv.take(attempt)
        self._pools[replica.pool].sort_in(replica)

    def end_prefill(self, attempt: Attempt) -> None:
        """The attempt's first token comes; what is left of its work is KV."""
        if attempt.prefill_tokens:
            replica = self._replicas[attempt.replica_id]
            replica.end_prefill(attempt.prefill_tokens)
            self._pools[replica.pool].sort_in(replica)

    def grow(self, attempt: Attempt, kv_tokens: int) -> None:
        """The attempt is expected to hold so many KV tokens now, more than before."""
        replica = self._replicas[attempt.replica_id]
        replica.grow(kv_tokens - attempt.kv_tokens)
        attempt.grow_to(kv_tokens)
        self._pools[replica.pool].sort_in(replica)

    def give_back(self, attempt: Attempt) -> None:
        """The attempt's slot is free again."""
        replica = self._replicas[attempt.replica_id]
        replica.give_back(attempt.prefill_tokens, attempt.kv_tokens)
        if attempt.adapter:
            replica.adapters.leave(attempt.adapter)
        if attempt.kv_blocks:
            self._shared_kv.give_back(attempt)
        self._pools[replica.pool].sort_in(replica)
        if not replica.is_up:
            self._forget_if_idle(replica)

    def move(self, attempt: Attempt, replica_id: str) -> None:
        """Moves the slot to the replica that really took the attempt, if this gateway knows it."""
        if replica_id == attempt.replica_id or replica_id not in self._replicas:
            return
        self.give_back(attempt)
        attempt.move_to(replica_id)
        self.take(attempt)

    def _join(self, pools: PoolNames, now_s: float) -> Candidates:
        """One pool's own list, or a list of several that is made anew only when one of theirs has changed."""
        if len(pools) == 1 and pools[0] in self._pools:
            return self._pools[pools[0]].with_room(now_s)
        known = [self._pools[name] for name in pools if name in self._pools]
        parts = [pool.with_room(now_s) for pool in known]
        versions = [pool.version for pool in known]
        found = self._joined.get(pools)
        if found is None or found[0] != versions:
            found = versions, JoinedCandidates(parts)
            self._joined[pools] = found
        return found[1]

    def _forget_if_idle(self, replica: Replica) -> None:
        if replica.num_ongoing_requests == 0:
            self._replicas.pop(replica.replica_id, None)

    @property
    def num_ongoing_requests(self) -> int:
        """Slots taken in all, replicas that have gone included."""
        return sum(each.num_ongoing_requests for each in self._replicas.values())
