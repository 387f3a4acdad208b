"""The replicas of an application's pools, as Serve's controller has them."""

import logging
from collections.abc import Mapping

from ray import serve

from cluster.scaled_pools import PoolSize, ScaledPool, role_pairs, starting_to_serve
from deployments.scaling.named_replicas import NamedReplicas
from deployments.scaling.role_changes import RoleChanges
from deployments.scaling.start_times import StartTimes
from deployments.scaling.warm_replicas import WarmReplicas
from deployments.wire.serve_internals import resize_deployment

LOGGER = logging.getLogger("ray.serve")
READY = ("RUNNING", "UPDATING", "RECOVERING", "PENDING_MIGRATION")
"""Replicas that take requests: Serve may be telling them something new, or be new itself."""


class ServeReplicas:
    """What a scaler sees of pools and does about them.

    Serve chooses which replica goes; which is warm, or changes its role, is chosen here.

    Args:
        application: The application's name.
        pools: Those whose sizes may change.

    Attributes:
        wanted: Sizes that the next :meth:`apply` asks for, by pool.
    """

    def __init__(self, application: str, pools: Mapping[str, ScaledPool]) -> None:
        self._application = application
        self._pools = pools
        self._states: dict[str, Mapping[str, int]] = {}
        self._in_service: dict[str, int] = {}
        self._pairs = role_pairs(pools)
        warm = [name for name, its in pools.items() if its.autoscaling.warm_replicas]
        self._named = NamedReplicas(application, [*warm, *self._pairs])
        self._warm = WarmReplicas(self._named, warm)
        self._roles = RoleChanges(self._named, self._pairs)
        self._starts = {pool: StartTimes() for pool in pools}
        self.wanted: dict[str, int] = {}

    @property
    def sizes(self) -> Mapping[str, PoolSize]:
        """Of the pools that there are, by name, at the last :meth:`refresh`."""
        return {pool: self.size(pool) for pool in self._states}

    def refresh(self, now_s: float) -> None:
        """Asks Serve's controller; blocks.

        Args:
            now_s: Now.

        Raises:
            RayError: It does not answer.
        """
        application = serve.status().applications.get(self._application)
        deployments = application.deployments if application else {}
        self._states = {name: {**each.replica_states} for name, each in deployments.items() if name in self._pools}
        for pool, states in self._states.items():
            self._starts[pool].see(_num_ready(states), states.get("STARTING", 0), now_s)
        self._named.connect(self._states)

    def size(self, pool: str) -> PoolSize:
        """What a pool had at the last :meth:`refresh`."""
        states, roles = self._states.get(pool, {}), self._roles.roles(pool)
        num_warm, num_waking = self._warm.num_warm(pool), self._warm.num_waking(pool)
        at_home = _num_ready(states) - num_warm - num_waking - roles.lent - roles.returning
        num_ready = max(0, at_home + roles.borrowed_ready)
        wanted_warm = self._pools[pool].autoscaling.num_warm(self._in_service.get(pool, num_ready))
        to_serve = starting_to_serve(states.get("STARTING", 0), num_warm, wanted_warm)
        return PoolSize(
            num_ready=num_ready,
            num_starting=num_waking + to_serve + roles.num_changing,
            num_draining=states.get("STOPPING", 0),
            num_warm=num_warm,
            num_changing=roles.num_changing,
            start_s=self._starts[pool].start_s,
        )

    def resize(self, pool: str, num_replicas: int, now_s: float) -> None:
        """A pool is to have so many in service, from the next :meth:`apply` on."""
        states, roles = self._states.get(pool, {}), self._roles.roles(pool)
        too_many_borrowed = roles.borrowed - num_replicas
        if too_many_borrowed > 0:  # Serve can let go those of a pool's own deployment
            self._roles.change(pool, self._pairs[pool], too_many_borrowed)
        num_more = self._num_held(pool, num_replicas) - _num_ready(states) - states.get("STARTING", 0)
        self._starts[pool].ask(num_more, now_s)
        self.wanted[pool] = num_replicas

    def change_roles(self, pool: str, other: str, number: int, now_s: float) -> None:
        """So many of those that serve a pool will serve the other one, from the next :meth:`apply` on."""
        self._roles.change(pool, other, number)

    def _num_held(self, pool: str, num_replicas: int) -> int:
        """Replicas that Serve is to have: those that serve the pool and have started in it, those that serve another
        one, and those that are warm.
        """
        roles = self._roles.roles(pool)
        at_home = max(0, num_replicas - roles.borrowed)
        return at_home + roles.lent + self._pools[pool].autoscaling.num_warm(num_replicas)

    def apply(self) -> None:
        """Tells Serve's controller and replicas what is wanted; blocks. What does not come about is wanted again by the
        next look.

        Raises:
            RayError: It does not answer.
        """
        wanted, self.wanted = self.wanted, {}
        self._roles.tell()
        for pool, num_replicas in wanted.items():
            size = self.size(pool)
            LOGGER.info("pool %s: %d replicas in the place of %d", pool, num_replicas, size.num_replicas)
            self._warm.wake(pool, num_replicas - size.num_replicas)
            self._warm.rest(pool, size.num_ready - num_replicas)
            resize_deployment(self._application, pool, self._num_held(pool, num_replicas))
            self._in_service[pool] = num_replicas


def _num_ready(states: Mapping[str, int]) -> int:
    return sum(states.get(state, 0) for state in READY)
