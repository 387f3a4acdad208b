"""Balancers for calls of any Ray Serve deployment: which replica has how much of our work, and which is next.

Ray copies a request router's own module by value; this one is imported normally, so that what it imports is the real
thing. It knows nothing of Ray.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from policies.catalog import PolicyChoice, PolicySpec, build
from policies.contracts import Need
from policies.decisions import Reason
from policies.errors import PolicyMisbehaved
from policies.views import RequestView, Role
from routing.fleet.fleet import Fleet
from routing.request.events import ReplicaInfo
from routing.request.request import Attempt

PROVIDED = frozenset({Need.LOCAL_WORK, Need.REPLICA_REPORTS})
POOL = "calls"
QUARANTINE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledReplica:
    """One replica of the deployment, as Serve's controller describes it.

    Args:
        replica_id: Serve's unique id.
        max_ongoing_requests: Its limit.
        stats: What its ``record_routing_stats`` said last; ``prefill_tokens``, ``kv_tokens`` (or ``work_tokens``) and
            ``kv_cache_usage`` are used.
    """

    replica_id: str
    max_ongoing_requests: int
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Call:
    """One call, from when a replica is looked for until it has ended.

    Args:
        call_id: Serve's id; calls made within one request share it.
        request: The call as policies see it.
        attempt: What it takes on a replica; nothing before one is chosen, and after it has ended.
        is_accepted: Whether a replica has accepted it, so that somebody will tell how it went.
    """

    call_id: str
    request: RequestView
    attempt: Attempt | None = None
    is_accepted: bool = False


class CallPlacement:
    """A balancer with an account of this process's calls, corrected by what replicas report.

    Args:
        balancing: The balancer.

    Raises:
        ConfigError: See :func:`policies.catalog.build`.
    """

    def __init__(self, balancing: PolicyChoice) -> None:
        spec = PolicySpec(balancing=balancing)
        self._policies = build(spec, rng_for=lambda _: random.Random(), provided=PROVIDED)
        self._balancer = self._policies.balancers[Role.UNIFIED]
        self._fleet = Fleet()
        self._infos: dict[str, ReplicaInfo] = {}
        self._stats: dict[str, Mapping[str, Any]] = {}

    def set_replicas(self, replicas: Iterable[CalledReplica]) -> None:
        """All replicas that are up now, and what they last reported."""
        seen = {each.replica_id: each for each in replicas}
        self._infos = {replica_id: _info(each) for replica_id, each in seen.items()}
        self._replace()
        fresh = {each.replica_id: each.stats for each in seen.values()}
        for replica_id, stats in fresh.items():
            if stats and stats != self._stats.get(replica_id):  # an old report is no correction of a newer account
                self._report(replica_id, stats)
        self._stats = fresh

    def lose(self, replica_id: str) -> None:
        """The replica is dead."""
        if self._infos.pop(replica_id, None) is not None:
            self._replace()

    def quarantine(self, replica_id: str, now_s: float) -> None:
        """The replica did not answer: it is spared for a while."""
        self._fleet.quarantine(replica_id, now_s + QUARANTINE_S)

    def choose(self, call: Call, now_s: float) -> str | None:
        """The replica for a call, whose work counts there from now on; ``None`` when none has room.

        Raises:
            PolicyMisbehaved: The balancer picked what is no candidate.
        """
        self.end(call, now_s)
        candidates = self._fleet.with_room((POOL,), now_s)
        if not candidates:
            return None
        picked = self._balancer.pick(call.request, candidates, now_s)
        if not candidates.has(picked):
            raise PolicyMisbehaved("balancing", self._balancer, f"one of the {len(candidates)} candidates", picked)
        self._take(call, picked.replica_id, now_s)
        return picked.replica_id

    def send(self, call: Call, replica_id: str, now_s: float) -> None:
        """A replica gets the call; it may be another one than was chosen."""
        if call.attempt is None:
            self._take(call, replica_id, now_s)
        else:
            self._fleet.move(call.attempt, replica_id)

    def end(self, call: Call, now_s: float) -> None:
        """The call is over, or looks for a replica anew. Ending it twice changes nothing."""
        attempt, call.attempt = call.attempt, None
        if attempt is not None:
            self._fleet.give_back(attempt)
            if not call.is_accepted:
                self._policies.observe(attempt.cancelled(now_s))

    def tell(self, attempt: Attempt, *, has_failed: bool | None, now_s: float) -> None:
        """How an accepted call went, for balancers that learn; ``None`` when nobody knows, which teaches nothing."""
        if has_failed is None:
            self._policies.observe(attempt.cancelled(now_s))
        elif has_failed:
            self._policies.observe(attempt.failed(Reason.ENGINE_ERROR, now_s))
        else:
            self._policies.observe(attempt.completed(0, now_s))

    def work_left(self) -> dict[str, int]:
        """Work in tokens by replica, as the balancer sees it."""
        return {each.replica_id: each.work_tokens for each in self._fleet.live_in((POOL,), 0.0)}

    def _take(self, call: Call, replica_id: str, now_s: float) -> None:
        if self._fleet.get(replica_id) is None:
            return
        call.attempt = Attempt(
            attempt_id=call.request.request_id,
            request_id=call.request.request_id,
            stage=Role.UNIFIED,
            replica_id=replica_id,
            prefill_tokens=0,
            kv_tokens=call.request.kv_tokens,
            sent_at_s=now_s,
        )
        self._fleet.take(call.attempt)
        self._policies.observe(call.attempt.dispatched())

    def _replace(self) -> None:
        for replica_id, info in self._infos.items():
            known = self._fleet.get(replica_id)
            if known is not None:  # Serve changes the limit of replicas that run
                known.take_at_most(info.max_ongoing_requests)
        self._fleet.replace(POOL, Role.UNIFIED, self._infos.values())

    def _report(self, replica_id: str, stats: Mapping[str, Any]) -> None:
        prefill_tokens = int(stats.get("prefill_tokens", 0))
        kv_tokens = int(stats.get("kv_tokens", stats.get("work_tokens", 0)))
        self._fleet.report(replica_id, prefill_tokens, kv_tokens, float(stats.get("kv_cache_usage", 0.0)))


def _info(replica: CalledReplica) -> ReplicaInfo:
    return ReplicaInfo(
        replica_id=replica.replica_id,
        role=Role.UNIFIED,
        pool=POOL,
        max_ongoing_requests=replica.max_ongoing_requests,
        kv_capacity_tokens=0,
    )
