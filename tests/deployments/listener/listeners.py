"""Listeners and gateways of one node, for tests: on this event loop, or as processes that can be stopped and killed."""

import asyncio
import math
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import httpx

from deployments.http.client_connections import ClientConnections
from deployments.http.edge_tls import NO_TLS, NoTls
from deployments.http.own_port import OwnPort
from deployments.listener.address import Address
from deployments.listener.listener import Listener, Patience
from engines.peer_port import free_port
from tests.waiting import until_here

Scope = dict[str, Any]
PATIENCE = Patience(refuse_after_s=0.5, bring_s=0.5, end_after_s=60.0)


def new_address() -> Address:
    """One that nobody has."""
    return Address("127.0.0.1", free_port("127.0.0.1"), "tests")


@asynccontextmanager
async def listening(address: Address, patience: Patience = PATIENCE) -> AsyncIterator[Address]:
    """A listener on this event loop."""
    running = asyncio.create_task(Listener(address, patience).run())
    try:
        yield address
    finally:
        running.cancel()
        await asyncio.wait([running])


@asynccontextmanager
async def gateway(
    app: Any, address: Address, connections_per_client: float = math.inf, tls: NoTls = NO_TLS
) -> AsyncIterator[OwnPort]:
    """A gateway on this event loop."""
    port = await OwnPort.open(app, address, 5, lambda: None, ClientConnections(connections_per_client), tls=tls)
    try:
        yield port
    finally:
        await port.close(5.0)


class App:
    """Says who it is, when it may."""

    def __init__(self, name: str, *, may_answer: bool = True) -> None:
        self.name = name
        self.may_answer = asyncio.Event()
        self.num_asked = 0
        if may_answer:
            self.may_answer.set()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.num_asked += 1
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.name.encode()})


async def ask(address: Address, path: str = "/", timeout_s: float = 20.0) -> httpx.Response:
    """One request, over a connection of its own."""
    async with httpx.AsyncClient(verify=False) as client:
        return await client.get(f"http://{address.host}:{address.port}{path}", timeout=timeout_s)


async def say(address: Address, said: Iterable[bytes]) -> bytes:
    """Sends that until the gateway takes no more; all that it answers."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    with suppress(ConnectionError):
        for each in said:
            writer.write(each)
            await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@contextmanager
def process(what: str, address: Address) -> Iterator["subprocess.Popen[bytes]"]:
    """``listener``, or a gateway by that name, as a process."""
    arguments = [what, str(address.port), address.scope]
    with subprocess.Popen([sys.executable, "-m", "tests.deployments.listener.listeners", *arguments]) as started:
        try:
            yield started
        finally:
            started.send_signal(signal.SIGCONT)
            started.kill()


async def _main(what: str, address: Address) -> None:
    if what == "listener":
        await Listener(address, PATIENCE).run()
        return
    async with gateway(App(what), address):
        await until_here(lambda: False, 120.0)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Address("127.0.0.1", int(sys.argv[2]), sys.argv[3])))
