"""Honours the dispatcher's choice: a call that names a target goes to exactly that replica.

The gateway's dispatcher has decided already; deciding again here would make the simulator lie. So the router looks the
target up and returns it alone. Only when the target has just vanished does it choose, by power of two. It never
raises: an exception in ``choose_replicas`` hangs the request for ever.

Ray pickles this module by value: an object imported into it would become a copy, so what it shares with the gateway it
reaches through the module :mod:`deployments.wire.fleet_registry`.
"""

import logging
import random
from collections.abc import Sequence

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from deployments.wire import fleet_registry

LOGGER = logging.getLogger("ray.serve")


class PinnedRouter(RequestRouter):
    """Routes a call to the replica named in its keyword argument ``target``; see the module."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Passes the pool's replicas on to this process's gateway, whenever Serve's controller announces them."""
        super().update_replicas(replicas)
        pool = self._deployment_id.name
        seen = sorted((_seen(replica, pool) for replica in replicas), key=lambda each: each.replica_id)
        fleet_registry.REGISTRY.publish_replicas(pool, tuple(seen))

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The target alone, or two at random when it is not there (any more)."""
        try:
            if pending_request is not None:
                pending_request.routing_context.should_backoff = True
                target = pending_request.kwargs.get("target", "")
                pinned = [each for each in candidate_replicas if each.replica_id.unique_id == target]
                if pinned:
                    return [pinned]
        except Exception:  # an exception here would hang the request, so it is logged and the request goes on
            LOGGER.exception("the pinned router could not look at a request; power of two instead")
        return [_two_of(candidate_replicas)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """Tells the gateway which replica took the attempt."""
        attempt_id = pending_request.kwargs.get("attempt_id")
        if attempt_id:
            fleet_registry.REGISTRY.publish_accepted(attempt_id, replica_id.unique_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Tells the gateway, which may have attempts that wait for this replica to accept them."""
        super().on_replica_actor_died(replica_id)
        fleet_registry.REGISTRY.publish_lost(replica_id.unique_id)

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        """The same: whatever was not accepted yet is better off elsewhere."""
        super().on_replica_actor_unavailable(replica_id)
        fleet_registry.REGISTRY.publish_lost(replica_id.unique_id)


def _two_of(candidates: Sequence[RunningReplica]) -> list[RunningReplica]:
    return random.sample(list(candidates), min(2, len(candidates)))


def _seen(replica: RunningReplica, pool: str) -> fleet_registry.SeenReplica:
    return fleet_registry.SeenReplica(
        replica_id=replica.replica_id.unique_id,
        node_id=replica.node_id or "",
        max_ongoing_requests=replica.max_ongoing_requests,
        deployment=pool,
        metadata=dict(replica.replica_metadata or {}),
        stats=dict(replica.routing_stats or {}),
    )
