"""The replicas of pools that have warm ones, each by its name: Serve's controller knows only how many there are."""

import logging
from collections.abc import Collection, Mapping
from threading import Lock

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.wire.fleet_registry import REGISTRY, SeenReplica
from deployments.wire.handle_calls import UNANSWERED

LOGGER = logging.getLogger("ray.serve")
CALL_PATIENCE_S = 5.0


class WarmReplicas:
    """Who is warm, and who is told to be, or to take requests again.

    What a replica was told holds until it says the same of itself, which takes as long as a report.

    Args:
        application: The application's name.
        pools: Those that have warm replicas.
    """

    def __init__(self, application: str, pools: Collection[str]) -> None:
        self._application = application
        self._pools = pools
        self._handles: dict[str, DeploymentHandle] = {}
        self._lock = Lock()
        self._replicas: dict[str, tuple[SeenReplica, ...]] = {}
        self._told: dict[str, bool] = {}
        if pools:
            REGISTRY.listen(self)

    def connect(self, deployments: Collection[str]) -> None:
        """Routers of these deployments tell of their replicas from now on; blocks."""
        for pool in self._pools:
            if pool in deployments and pool not in self._handles:
                handle = serve.get_deployment_handle(pool, self._application)
                handle._init()
                self._handles[pool] = handle.options(_by_reference=False)

    def num_warm(self, pool: str) -> int:
        """Replicas that are warm, or soon will be."""
        return len(self._those(pool, is_warm=True))

    def num_waking(self, pool: str) -> int:
        """Replicas that were told to take requests again and don't yet."""
        with self._lock:
            replicas = self._replicas.get(pool, ())
            return sum(each.is_warm and not self._told.get(each.replica_id, True) for each in replicas)

    def wake(self, pool: str, number: int) -> None:
        """So many take requests again, as far as there are any; blocks until they know."""
        for replica in self._those(pool, is_warm=True)[: max(0, number)]:
            self._tell(pool, replica.replica_id, is_warm=False)

    def rest(self, pool: str, number: int) -> None:
        """So many become warm, those with the least to do; blocks until they know."""
        in_service = sorted(self._those(pool, is_warm=False), key=_load)
        for replica in in_service[: max(0, number)]:
            self._tell(pool, replica.replica_id, is_warm=True)

    def on_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        """Called by routers: all replicas of a pool, and what they say."""
        with self._lock:
            self._replicas[pool] = replicas
            there = {each.replica_id: each.is_warm for its in self._replicas.values() for each in its}
            self._told = {name: warm for name, warm in self._told.items() if there.get(name, warm) is not warm}

    def on_accepted(self, attempt_id: str, replica_id: str) -> None:
        """Called by routers; no attempts are sent from here."""

    def on_replica_lost(self, replica_id: str) -> None:
        """Called by routers; the controller says so, too."""

    def _those(self, pool: str, *, is_warm: bool) -> list[SeenReplica]:
        with self._lock:
            replicas = self._replicas.get(pool, ())
            return [each for each in replicas if self._told.get(each.replica_id, each.is_warm) is is_warm]

    def _tell(self, pool: str, replica_id: str, *, is_warm: bool) -> None:
        handle = self._handles[pool]
        call = handle.leave_service if is_warm else handle.enter_service
        try:
            call.remote(target=replica_id).result(timeout_s=CALL_PATIENCE_S)
        except UNANSWERED as error:
            LOGGER.warning("pool %s: replica %s was not told: %s", pool, replica_id, type(error).__name__)
            return
        with self._lock:
            self._told[replica_id] = is_warm
        LOGGER.info("pool %s: replica %s %s", pool, replica_id, "is to be warm" if is_warm else "is to take requests")


def _load(replica: SeenReplica) -> tuple[int, int, str]:
    said: Mapping[str, int] = replica.stats
    return said.get("kv_tokens", 0), said.get("prefill_tokens", 0), replica.replica_id
