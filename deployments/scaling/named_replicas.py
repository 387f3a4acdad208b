"""Replicas each by its name, and calls to one of them: Serve's controller knows only how many there are."""

import logging
from collections.abc import Collection
from threading import Lock
from typing import Any, Generic, TypeVar

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.wire.fleet_registry import REGISTRY, SeenReplica
from deployments.wire.handle_calls import UNANSWERED

LOGGER = logging.getLogger("ray.serve")
CALL_PATIENCE_S = 5.0
Word = TypeVar("Word")


class NamedReplicas:
    """What replicas of some pools say, and a way to each of them.

    Args:
        application: The application's name.
        pools: Their pools.
    """

    def __init__(self, application: str, pools: Collection[str]) -> None:
        self._application = application
        self._pools = pools
        self._handles: dict[str, DeploymentHandle] = {}
        self._lock = Lock()
        self._replicas: dict[str, tuple[SeenReplica, ...]] = {}
        if pools:
            REGISTRY.listen(self)

    def connect(self, deployments: Collection[str]) -> None:
        """Routers of these deployments tell of their replicas from now on; blocks."""
        for pool in self._pools:
            if pool in deployments and pool not in self._handles:
                handle = serve.get_deployment_handle(pool, self._application)
                handle._init()
                self._handles[pool] = handle.options(_by_reference=False)

    def of(self, pool: str) -> tuple[SeenReplica, ...]:
        """A pool's replicas, as they said last."""
        with self._lock:
            return self._replicas.get(pool, ())

    def tell(self, pool: str, method: str, replica_id: str, *words: Any) -> bool:
        """Calls a method of one replica; whether it has answered. Blocks.

        Args:
            pool: Where the replica has started.
            method: The method's name.
            replica_id: The replica.
            words: What it is told.
        """
        try:
            call = getattr(self._handles[pool], method)
            call.remote(*words, target=replica_id).result(timeout_s=CALL_PATIENCE_S)
        except UNANSWERED as error:
            LOGGER.warning("pool %s: replica %s was not told: %s", pool, replica_id, type(error).__name__)
            return False
        LOGGER.info("pool %s: replica %s: %s", pool, replica_id, " ".join([method, *map(str, words)]))
        return True

    def on_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        """Called by routers: all replicas of a pool, and what they say."""
        with self._lock:
            self._replicas[pool] = replicas

    def on_accepted(self, attempt_id: str, replica_id: str) -> None:
        """Called by routers; no attempts are sent from here."""

    def on_replica_lost(self, replica_id: str) -> None:
        """Called by routers; the controller says so, too."""


class Told(Generic[Word]):
    """What replicas were told, which holds until they say the same of themselves: that takes as long as a report."""

    def __init__(self) -> None:
        self._words: dict[str, Word] = {}

    def tell(self, replica_id: str, word: Word) -> None:
        """It was told so."""
        self._words[replica_id] = word

    def take_back(self, replica_id: str) -> None:
        """It was not told after all."""
        self._words.pop(replica_id, None)

    def of(self, replica_id: str, said: Word) -> Word:
        """What holds of a replica that says something of itself."""
        word = self._words.get(replica_id, said)
        if word == said:
            self.take_back(replica_id)
        return word
