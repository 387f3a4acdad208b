"""What Serve hands to a request router: replicas, and requests that wait for one."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FakeReplicaId:
    """As Serve names a replica."""

    unique_id: str


@dataclass(slots=True)
class FakeReplica:
    """A replica that a router can choose."""

    replica_id: FakeReplicaId
    max_ongoing_requests: int = 8
    routing_stats: dict[str, Any] | None = None


@dataclass(slots=True)
class FakeRoutingContext:
    """What a router says of how it went."""

    should_backoff: bool = False


async def choices(router: Any, candidates: list[FakeReplica], pending: object) -> list[list[str]]:
    """The ranks of replicas that a router gives, by their ids."""
    ranks = await router.choose_replicas(candidates, pending)
    return [[each.replica_id.unique_id for each in rank] for rank in ranks]
