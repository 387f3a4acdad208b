"""Both ends of the data plane on one event loop, with a real socket between them."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from deployments.data_plane.attempt_server import AttemptServer
from deployments.data_plane.endpoint import Endpoint
from deployments.data_plane.replica_connection import ConnectionState, ReplicaConnection
from deployments.wire.attempt_call import AttemptOrder
from deployments.wire.inner_hop import Item
from engines.contract import Chunk
from policies import Reason, Role
from tests.waiting import until_here

END = Chunk(".", (9,), "stop")


def an_order(attempt_id: str, request: bytes = b"") -> AttemptOrder:
    return AttemptOrder(attempt_id, Role.UNIFIED, request)


@dataclass
class Heard:
    """What a listener has heard of one attempt."""

    items: list[Item] = field(default_factory=list)
    failures: list[Reason] = field(default_factory=list)
    was_taken: bool = True

    def receive(self, item: Item) -> None:
        self.items.append(item)

    def fail(self, reason: Reason, *, was_taken: bool = True) -> None:
        self.failures.append(reason)
        self.was_taken = was_taken

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.items if isinstance(item, Chunk))


@dataclass
class Engine:
    """What runs attempts on the replica's end: each gives what the test puts in, until it is a verdict.

    Attributes:
        orders: Of all attempts, by id.
        given: How many items of each were taken.
        stopped: Attempts that were closed before their verdict.
        released: Handles of KV that was given up.
    """

    orders: dict[str, AttemptOrder] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)
    _coming: dict[str, asyncio.Queue[Item | Exception | None]] = field(default_factory=dict)

    def gives(self, attempt_id: str, *items: Item | Exception | None) -> None:
        """An exception is raised; ``None`` is the end without a verdict."""
        for item in items:
            self._of(attempt_id).put_nowait(item)

    def _of(self, attempt_id: str) -> asyncio.Queue[Item | Exception | None]:
        return self._coming.setdefault(attempt_id, asyncio.Queue())

    async def release_kv(self, handle: bytes) -> None:
        self.released.append(handle)

    async def run(self, order: AttemptOrder) -> AsyncIterator[Item]:
        self.orders[order.attempt_id] = order
        has_ended = False
        try:
            while (item := await self._of(order.attempt_id).get()) is not None:
                if isinstance(item, Exception):
                    raise item
                self.given[order.attempt_id] = self.given.get(order.attempt_id, 0) + 1
                has_ended = isinstance(item, Chunk) and item.finish_reason is not None
                yield item
                if has_ended:
                    return
            has_ended = True
        finally:
            if not has_ended:
                self.stopped.append(order.attempt_id)


@dataclass
class Ends:
    """A replica's end, and a gateway's that is connected to it."""

    engine: Engine
    server: AttemptServer
    connection: ReplicaConnection

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None, *, waits: bool = True
    ) -> "AsyncIterator[Ends]":
        engine = Engine()
        server = await AttemptServer.start(engine.run, engine.release_kv, "127.0.0.1", tls and tls[0])
        connection = ReplicaConnection(server.endpoint, "gateway-a", tls and tls[1])
        if waits:
            await until_here(lambda: connection.state is ConnectionState.READY)
        yield cls(engine, server, connection)
        connection.close()
        await server.close()

    def endpoint(self, key: bytes) -> Endpoint:
        """The replica's, with another key."""
        return self.server.endpoint._replace(key=key)
