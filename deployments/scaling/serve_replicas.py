"""The replicas of an application's pools, as Serve's controller has them."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from ray import serve

from cluster.scaler import PoolSize
from deployments.scaling.start_times import StartTimes
from deployments.wire.serve_internals import resize_deployment

LOGGER = logging.getLogger("ray.serve")
READY = ("RUNNING", "UPDATING", "RECOVERING", "PENDING_MIGRATION")
"""Replicas that take requests: Serve may be telling them something new, or be new itself."""


class ServeReplicas:
    """What a scaler sees of pools and does about them. Serve chooses which replica goes.

    Args:
        application: The application's name.
        pools: Those whose sizes may change.

    Attributes:
        wanted: Sizes that the next :meth:`apply` asks for, by pool.
    """

    def __init__(self, application: str, pools: Collection[str]) -> None:
        self._application = application
        self._sizes: dict[str, PoolSize] = {}
        self._starts = {pool: StartTimes() for pool in pools}
        self.wanted: dict[str, int] = {}

    @property
    def sizes(self) -> Mapping[str, PoolSize]:
        """Of the pools that there are, by name, at the last :meth:`refresh`."""
        return self._sizes

    def refresh(self, now_s: float) -> None:
        """Asks Serve's controller; blocks.

        Args:
            now_s: Now.

        Raises:
            RayError: It does not answer.
        """
        application = serve.status().applications.get(self._application)
        deployments = application.deployments if application else {}
        seen = {name: _size({**each.replica_states}) for name, each in deployments.items() if name in self._starts}
        for pool, size in seen.items():
            self._starts[pool].see(size, now_s)
        self._sizes = {pool: replace(size, start_s=self._starts[pool].start_s) for pool, size in seen.items()}

    def size(self, pool: str) -> PoolSize:
        """What a pool had at the last :meth:`refresh`."""
        return self._sizes.get(pool, PoolSize(num_ready=0, num_starting=0, num_draining=0))

    def resize(self, pool: str, num_replicas: int, now_s: float) -> None:
        """A pool is to have so many, from the next :meth:`apply` on."""
        size = self.size(pool)
        self._starts[pool].ask(num_replicas - size.num_ready - size.num_starting, now_s)
        self.wanted[pool] = num_replicas

    def apply(self) -> None:
        """Tells Serve's controller what is wanted; blocks. What it does not take is wanted again by the next look.

        Raises:
            RayError: It does not answer.
        """
        wanted, self.wanted = self.wanted, {}
        for pool, num_replicas in wanted.items():
            size = self.size(pool)
            LOGGER.info(
                "pool %s: %d replicas in the place of %d", pool, num_replicas, size.num_ready + size.num_starting
            )
            resize_deployment(self._application, pool, num_replicas)


def _size(states: Mapping[str, int]) -> PoolSize:
    return PoolSize(
        num_ready=sum(states.get(state, 0) for state in READY),
        num_starting=states.get("STARTING", 0),
        num_draining=states.get("STOPPING", 0),
    )
