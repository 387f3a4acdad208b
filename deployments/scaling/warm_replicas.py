"""Who is warm in pools that have warm replicas, and who is told to be, or to take requests again."""

from collections.abc import Collection, Mapping

from deployments.scaling.named_replicas import NamedReplicas, Told
from deployments.wire.fleet_registry import SeenReplica


class WarmReplicas:
    """The warm ones among replicas.

    Args:
        replicas: All of them.
        pools: Those that have warm ones.
    """

    def __init__(self, replicas: NamedReplicas, pools: Collection[str]) -> None:
        self._replicas = replicas
        self._pools = pools
        self._told = Told[bool]()

    def num_warm(self, pool: str) -> int:
        """Replicas that are warm, or soon will be."""
        return len(self._those(pool, is_warm=True))

    def num_waking(self, pool: str) -> int:
        """Replicas that were told to take requests again and don't yet."""
        replicas = self._of(pool)
        return sum(each.is_warm and not self._told.of(each.replica_id, each.is_warm) for each in replicas)

    def wake(self, pool: str, number: int) -> None:
        """So many take requests again, as far as there are any; blocks until they know."""
        for replica in self._those(pool, is_warm=True)[: max(0, number)]:
            self._tell(pool, replica.replica_id, is_warm=False)

    def rest(self, pool: str, number: int) -> None:
        """So many become warm, those with the least to do; blocks until they know."""
        in_service = sorted(self._those(pool, is_warm=False), key=load_of)
        for replica in in_service[: max(0, number)]:
            self._tell(pool, replica.replica_id, is_warm=True)

    def _those(self, pool: str, *, is_warm: bool) -> list[SeenReplica]:
        return [each for each in self._of(pool) if self._told.of(each.replica_id, each.is_warm) is is_warm]

    def _of(self, pool: str) -> tuple[SeenReplica, ...]:
        return self._replicas.of(pool) if pool in self._pools else ()

    def _tell(self, pool: str, replica_id: str, *, is_warm: bool) -> None:
        if self._replicas.tell(pool, "leave_service" if is_warm else "enter_service", replica_id):
            self._told.tell(replica_id, is_warm)


def load_of(replica: SeenReplica) -> tuple[int, int, str]:
    """Who has the least to do comes first."""
    said: Mapping[str, int] = replica.stats
    return said.get("kv_tokens", 0), said.get("prefill_tokens", 0), replica.replica_id
