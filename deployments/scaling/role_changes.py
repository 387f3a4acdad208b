"""Which of two pools each replica serves, where replicas change roles: the one that it has started in, or the other."""

from collections.abc import Mapping
from typing import NamedTuple

from deployments.scaling.named_replicas import NamedReplicas, Told
from deployments.scaling.warm_replicas import load_of
from deployments.wire.fleet_registry import SeenReplica


class Roles(NamedTuple):
    """How many replicas of a pool, and of the other one, serve here and there.

    Args:
        lent: Replicas that have started here and serve there, or will.
        borrowed: Replicas that have started there and serve here, or will.
        borrowed_ready: Those of them that do.
        returning: Replicas that have started here and served there, and don't serve here yet.
    """

    lent: int
    borrowed: int
    borrowed_ready: int
    returning: int

    @property
    def num_changing(self) -> int:
        """Replicas that will serve here and finish what they have of their other role."""
        return self.borrowed - self.borrowed_ready + self.returning


NOBODY_CHANGES = Roles(0, 0, 0, 0)


class RoleChanges:
    """Has replicas serve the other pool, or their own again.

    Args:
        replicas: All of them.
        pairs: The pools whose replicas change roles, each with the other one.
    """

    def __init__(self, replicas: NamedReplicas, pairs: Mapping[str, str]) -> None:
        self._replicas = replicas
        self._pairs = pairs
        self._told = Told[str]()
        self._untold: dict[str, tuple[str, str]] = {}

    def roles(self, pool: str) -> Roles:
        """Of a pool's replicas, and of those that serve it."""
        other = self._pairs.get(pool)
        if other is None:
            return NOBODY_CHANGES
        serve_here = [each for each in self._replicas.of(pool) if self._serves(each) == pool]
        borrowed = [each for each in self._replicas.of(other) if self._serves(each) == pool]
        return Roles(
            lent=len(self._replicas.of(pool)) - len(serve_here),
            borrowed=len(borrowed),
            borrowed_ready=sum(_is_ready(each, pool) for each in borrowed),
            returning=sum(not _is_ready(each, pool) for each in serve_here),
        )

    def change(self, pool: str, other: str, number: int) -> None:
        """So many of those that serve a pool will serve the other one, once :meth:`tell` has told them.

        Those that have started there come first, and of the others those with the least to do.
        """
        for replica in [*self._serving(pool, other), *self._serving(pool, pool)][:number]:
            self._told.tell(replica.replica_id, other)
            self._untold[replica.replica_id] = replica.deployment, other

    def tell(self) -> None:
        """Tells those that are to change roles; blocks. One that does not answer goes on as before."""
        untold, self._untold = self._untold, {}
        for replica_id, (deployment, pool) in untold.items():
            if not self._replicas.tell(deployment, "serve_pool", replica_id, pool):
                self._told.take_back(replica_id)

    def _serving(self, pool: str, deployment: str) -> list[SeenReplica]:
        replicas = sorted(self._replicas.of(deployment), key=load_of)
        return [each for each in replicas if self._serves(each) == pool and not each.is_warm]

    def _serves(self, replica: SeenReplica) -> str:
        return self._told.of(replica.replica_id, replica.serves)


def _is_ready(replica: SeenReplica, pool: str) -> bool:
    return replica.serves == pool and not replica.is_warm
