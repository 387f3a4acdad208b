"""The connections of one gateway, to all replicas that it sees."""

import asyncio
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from deployments.data_plane.endpoint import Endpoint
from deployments.data_plane.kept_answers import KeptAnswer
from deployments.data_plane.replica_connection import ReplicaConnection
from deployments.wire.attempt_call import AttemptCall, AttemptListener, AttemptOrder

RECALL_PATIENCE_S = 1.0
"""A replica that stands still does not keep a client that has come back."""


class Caller(Protocol):
    """A way to a replica."""

    def call(self, order: AttemptOrder, listener: AttemptListener) -> AttemptCall:
        """Has the replica run an attempt; what comes of it goes to the listener."""
        ...

    def release(self, handle: bytes) -> None:
        """Has its engine give KV up that a prefill engine holds."""
        ...


class NoConnections:
    """There are none: every attempt goes over Ray's handles."""

    can_recall = False
    """Whether replicas can be asked what they keep of answers."""

    def follow(self, pool: str, replicas: Mapping[str, Mapping[str, Any]]) -> None:
        """A pool has these replicas now."""

    def to(self, replica_id: str) -> Caller | None:
        """The way to a replica; ``None``: there is no such connection, and Ray's handles are left."""
        return None

    def stalled(self, silent_s: float) -> Collection[str]:
        """Replicas that stand still: nobody can say."""
        return ()

    async def recall(self, name: str, is_it: Callable[[KeptAnswer], bool]) -> KeptAnswer | None:
        """What replicas have of an answer that another gateway has begun: nothing, over Ray's handles."""
        return None

    def close(self) -> None:
        """Ends them all."""


class Connections(NoConnections):
    """Connects to each replica as soon as it is seen, so that no request waits for that.

    Args:
        gateway: What this gateway is called there.
        tls: How to encrypt; not at all without.
    """

    can_recall = True

    def __init__(self, gateway: str, tls: ssl.SSLContext | None = None) -> None:
        self._gateway = gateway
        self._tls = tls
        self._connections: dict[str, ReplicaConnection] = {}
        self._pools: dict[str, Sequence[str]] = {}

    def follow(self, pool: str, replicas: Mapping[str, Mapping[str, Any]]) -> None:
        """A pool has these replicas now.

        Args:
            pool: Its name.
            replicas: What each of them has said of itself, by id.
        """
        for replica_id in self._pools.get(pool, ()):
            if replica_id not in replicas and (gone := self._connections.pop(replica_id, None)):
                gone.retire()
        self._pools[pool] = tuple(replicas)
        for replica_id, metadata in replicas.items():
            if replica_id not in self._connections and (endpoint := Endpoint.from_metadata(metadata)):
                self._connections[replica_id] = ReplicaConnection(endpoint, self._gateway, self._tls)

    def to(self, replica_id: str) -> Caller | None:
        connection = self._connections.get(replica_id)
        return connection if connection is not None and connection.is_usable else None

    def stalled(self, silent_s: float) -> Collection[str]:
        """Replicas that say that their engines stand still, or have said nothing for so long."""
        return [replica_id for replica_id, each in self._connections.items() if each.is_stalled(silent_s)]

    async def recall(self, name: str, is_it: Callable[[KeptAnswer], bool]) -> KeptAnswer | None:
        """The first answer of that name that a replica has, and that is the one.

        Args:
            name: What it is kept as.
            is_it: Whether an answer of that name is the one: several attempts may have left some of it.
        """
        asking = [asyncio.ensure_future(each.recall(name)) for each in self._connections.values()]
        try:
            for each in asyncio.as_completed(asking, timeout=RECALL_PATIENCE_S):
                answer = await each
                if answer is not None and is_it(answer):
                    return answer
        except TimeoutError:
            pass
        finally:
            for task in asking:
                task.cancel()
        return None

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
