"""What this process's routers know, passed on to this process's gateway.

Ray copies a request router's own module by value into the process that routes, so its globals are copies; this module
is imported normally and therefore exists once per process. Routers write here from whichever thread they run in;
a listener has its own thread's loop call it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from policies.views import Role
from routing.request.events import ReplicaInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReplica:
    """One running replica as Serve's controller describes it.

    Args:
        replica_id: Serve's unique id.
        node_id: Where it runs.
        max_ongoing_requests: Its limit.
        deployment: Serve's deployment that it is one of: the pool in which it has started.
        metadata: What it said once, when it became ready.
        stats: What it said last.
    """

    replica_id: str
    node_id: str
    max_ongoing_requests: int
    deployment: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def claims_at(self) -> str:
        """Where other replicas ask for the claims of its attempts, if its engine has any."""
        return str(self.metadata.get("claims_at", ""))

    @property
    def is_warm(self) -> bool:
        """Whether it takes no requests until it is needed."""
        return bool(self.stats.get("is_warm"))

    @property
    def is_canary(self) -> bool:
        """Whether its engine tries other arguments than its pool's."""
        return bool(self.stats.get("is_canary"))

    @property
    def serves(self) -> str:
        """The pool that it serves, or will when it is not warm any more: its own unless it says otherwise."""
        return str(self.stats.get("serves") or self.deployment)

    def info(self, pool: str, role: Role) -> ReplicaInfo:
        """What a dispatcher is told of it once."""
        return ReplicaInfo(
            replica_id=self.replica_id,
            role=role,
            pool=pool,
            max_ongoing_requests=self.max_ongoing_requests,
            kv_capacity_tokens=int(self.metadata.get("kv_capacity_tokens", 0)),
            failure_domain=self.node_id,
            place=tuple(self.metadata.get("place", ())),
            max_adapters=int(self.metadata.get("max_adapters", 0)),
        )


class RouterListener(Protocol):
    """The gateway's ear. Called from the routers' threads."""

    def on_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        """All replicas of a pool, whenever the list or what they report changes."""
        ...

    def on_accepted(self, attempt_id: str, replica_id: str) -> None:
        """A replica took an attempt."""
        ...

    def on_replica_lost(self, replica_id: str) -> None:
        """A call to a replica found it dead."""
        ...


class FleetRegistry:
    """Passes on what routers see; a listener that comes late is told what it missed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._replicas: dict[str, tuple[SeenReplica, ...]] = {}
        self._listeners: list[RouterListener] = []

    def listen(self, listener: RouterListener) -> None:
        """Tells the listener all there is to know, and everything new from here on."""
        with self._lock:
            self._listeners.append(listener)
            for pool, replicas in self._replicas.items():
                listener.on_replicas(pool, replicas)

    def publish_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        """Called by a router when Serve's controller has told it something new."""
        with self._lock:
            if self._replicas.get(pool) == replicas:
                return
            self._replicas[pool] = replicas
            for listener in self._listeners:
                listener.on_replicas(pool, replicas)

    def publish_accepted(self, attempt_id: str, replica_id: str) -> None:
        """Called by a router when a replica took an attempt."""
        for listener in self._listeners:
            listener.on_accepted(attempt_id, replica_id)

    def publish_lost(self, replica_id: str) -> None:
        """Called by a router when a call found a replica dead."""
        for listener in self._listeners:
            listener.on_replica_lost(replica_id)


REGISTRY = FleetRegistry()
"""The one of this process."""
