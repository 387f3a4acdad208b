"""What routers tell of replicas, by the deployment that each is one of, and by the pool that it serves."""

from collections.abc import Mapping, Sequence

from deployments.wire.fleet_registry import SeenReplica

Replicas = tuple[SeenReplica, ...]
NO_PAIRS: Mapping[str, str] = {}


class SeenFleet:
    """The replicas of one model's pools.

    Args:
        role_pairs: The pools whose replicas change roles, each with the other one.

    Attributes:
        by_deployment: Where each has started; a deployment's handle leads to these.
        by_pool: What each serves, or will when it is not warm any more.
        canaries: Those that try other engine arguments.
    """

    def __init__(self, role_pairs: Mapping[str, str] = NO_PAIRS) -> None:
        self._role_pairs = role_pairs
        self.by_deployment: dict[str, Replicas] = {}
        self.by_pool: dict[str, Replicas] = {}
        self.canaries: set[str] = set()
        self._lent_by: dict[str, str] = {}

    def take_in(self, deployment: str, replicas: Replicas) -> Sequence[str]:
        """A deployment has these replicas now; the pools in which others are in service than before."""
        before = {pool: in_service(its) for pool, its in self.by_pool.items()}
        self.by_deployment[deployment] = replicas
        pools = (deployment, self._role_pairs[deployment]) if deployment in self._role_pairs else (deployment,)
        seen = [each for name in pools for each in self.by_deployment.get(name, ())]
        for pool in pools:
            self.by_pool[pool] = replicas if len(pools) == 1 else tuple(each for each in seen if each.serves == pool)
        if len(pools) > 1:
            self._lent_by = {each.replica_id: each.deployment for each in seen if each.serves != each.deployment}
        self.canaries = {each.replica_id for its in self.by_pool.values() for each in its if each.is_canary}
        return [pool for pool in pools if _ids(in_service(self.by_pool[pool])) != _ids(before.get(pool, ()))]

    def deployment_of(self, replica_id: str, pool: str) -> str:
        """The deployment that a replica is one of which serves a pool."""
        return self._lent_by.get(replica_id, pool)

    def deployments_of(self, pool: str) -> Sequence[str]:
        """Deployments whose replicas may serve a pool."""
        other = self._role_pairs.get(pool)
        return (pool,) if other is None else (pool, other)


def in_service(replicas: Replicas) -> Replicas:
    """Those that take requests."""
    return tuple(each for each in replicas if not each.is_warm)


def _ids(replicas: Replicas) -> set[str]:
    return {each.replica_id for each in replicas}
