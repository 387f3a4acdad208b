"""What this gateway knows of one replica."""

import sys

from policies.views import Role
from routing.fleet.known_adapters import KnownAdapters
from routing.request.events import ReplicaInfo
from routing.request.news import ReplicaWork

NO_BOUND = sys.maxsize
"""More tokens than anybody has."""


class Replica:
    """One replica's record; policies see it as :class:`policies.views.ReplicaView`.

    Beyond that view it holds what its pool keeps there, so that no list has to be searched:

    Args:
        info: What does not change.
        prefill_window_tokens: It has room while it has fewer prompt tokens to compute.

    Attributes:
        adapters: Those that its engine is taken to have loaded.
        num_slots: Attempts that it is given at a time: as many as it takes, or fewer after an ejection or a start.
        quarantined_until_s: When its quarantine ends; 0 when there is none.
        is_up: Whether the host named it when it last named its pool's replicas.
        is_live: Whether it is among its pool's live replicas: up, and not in quarantine.
        is_candidate: Whether it is among its pool's candidates: live, and with room.
    """

    __slots__ = (
        "_is_told_by_gateways",
        "_kv_tokens_elsewhere",
        "_limit_after_ejection",
        "_limit_after_start",
        "_prefill_tokens_elsewhere",
        "adapters",
        "failure_domain",
        "is_candidate",
        "is_live",
        "is_up",
        "kv_cache_usage",
        "kv_capacity_tokens",
        "kv_tokens",
        "max_ongoing_requests",
        "num_ongoing_requests",
        "num_slots",
        "place",
        "pool",
        "prefill_tokens",
        "prefill_window_tokens",
        "quarantined_until_s",
        "replica_id",
        "role",
        "waiting_tokens",
        "waiting_tokens_elsewhere",
        "work_tokens",
    )

    def __init__(self, info: ReplicaInfo, prefill_window_tokens: int = NO_BOUND) -> None:
        self.replica_id = info.replica_id
        self.role = info.role
        self.pool = info.pool
        self.max_ongoing_requests = info.max_ongoing_requests
        self.kv_capacity_tokens = info.kv_capacity_tokens
        self.failure_domain = info.failure_domain
        self.place = info.place
        self.adapters = KnownAdapters(info.max_adapters)
        self._limit_after_ejection = NO_BOUND
        self._limit_after_start = NO_BOUND
        self.num_slots = info.max_ongoing_requests
        self.num_ongoing_requests = 0
        self.prefill_tokens = 0
        self.kv_tokens = 0
        self.waiting_tokens = 0
        self.work_tokens = 0
        self.kv_cache_usage = 0.0
        self.quarantined_until_s = 0.0
        self.is_up = False
        self.is_live = False
        self.is_candidate = False
        self._prefill_tokens_elsewhere = 0
        self._kv_tokens_elsewhere = 0
        self.waiting_tokens_elsewhere = 0
        self._is_told_by_gateways = False
        self.prefill_window_tokens = prefill_window_tokens

    def serve(self, pool: str, role: Role) -> None:
        """It is one of this pool from now on, whatever role it had before."""
        self.pool, self.role = pool, role

    @property
    def has_room(self) -> bool:
        return self.num_ongoing_requests < self.num_slots and self.prefill_tokens < self.prefill_window_tokens

    def has_room_without(self, prefill_tokens: int) -> bool:
        """Whether it would have room if an attempt ended that has so many prompt tokens to compute."""
        has_slot = self.num_ongoing_requests <= self.num_slots
        return has_slot and self.prefill_tokens - prefill_tokens < self.prefill_window_tokens

    def take_at_most(self, max_ongoing_requests: int) -> None:
        """It takes so many at a time from now on."""
        self.max_ongoing_requests = max_ongoing_requests
        self.limit()

    def limit(self, *, after_ejection: int | None = None, after_start: int | None = None) -> None:
        """It has no more than so many attempts of this gateway's at a time, for one reason and for the other."""
        if after_ejection is not None:
            self._limit_after_ejection = after_ejection
        if after_start is not None:
            self._limit_after_start = after_start
        self.num_slots = min(self.max_ongoing_requests, self._limit_after_ejection, self._limit_after_start)

    def take(self, prefill_tokens: int, kv_tokens: int) -> None:
        """A slot is taken."""
        self.num_ongoing_requests += 1
        self.prefill_tokens += prefill_tokens
        self.kv_tokens += kv_tokens
        self.work_tokens += prefill_tokens + kv_tokens

    def give_back(self, prefill_tokens: int, kv_tokens: int) -> None:
        """A slot is free again."""
        self.num_ongoing_requests -= 1
        self.prefill_tokens -= prefill_tokens
        self.kv_tokens -= kv_tokens
        self.work_tokens -= prefill_tokens + kv_tokens

    def end_prefill(self, prefill_tokens: int) -> None:
        """A prompt is computed; its attempt goes on."""
        self.prefill_tokens -= prefill_tokens
        self.work_tokens -= prefill_tokens

    def grow(self, kv_tokens: int) -> None:
        """An attempt holds so many KV tokens more than was expected."""
        self.kv_tokens += kv_tokens
        self.work_tokens += kv_tokens

    @property
    def work_here(self) -> ReplicaWork:
        """What this gateway alone has for it."""
        return ReplicaWork(
            self.prefill_tokens - self._prefill_tokens_elsewhere,
            self.kv_tokens - self._kv_tokens_elsewhere,
            self.waiting_tokens - self.waiting_tokens_elsewhere,
        )

    def has_slot_for(self, adapter: str) -> bool:
        return not adapter or self.adapters.has_slot_for(adapter)

    def has_loaded(self, adapter: str) -> bool:
        return not adapter or adapter in self.adapters

    def report(self, prefill_tokens: int, kv_tokens: int, kv_cache_usage: float) -> None:
        """The replica's own account replaces what was known about other gateways' work, unless they have just told it.

        A report can be older than this gateway's newest attempts, so it may name less than they alone amount to.
        """
        self.kv_cache_usage = kv_cache_usage
        if self._is_told_by_gateways:
            self._is_told_by_gateways = False
            return
        here = self.work_here
        elsewhere = ReplicaWork(max(0, prefill_tokens - here.prefill_tokens), max(0, kv_tokens - here.kv_tokens))
        self._set_elsewhere(elsewhere)

    def share(self, elsewhere: ReplicaWork) -> None:
        """The other gateways have told what they have for it."""
        self._is_told_by_gateways = True
        self._set_elsewhere(elsewhere)

    def _set_elsewhere(self, elsewhere: ReplicaWork) -> None:
        here = self.work_here
        self._prefill_tokens_elsewhere, self._kv_tokens_elsewhere, self.waiting_tokens_elsewhere = elsewhere
        self.prefill_tokens = here.prefill_tokens + elsewhere.prefill_tokens
        self.kv_tokens = here.kv_tokens + elsewhere.kv_tokens
        self.waiting_tokens = here.waiting_tokens + elsewhere.waiting_tokens
        self.work_tokens = self.prefill_tokens + self.kv_tokens
