"""A claim on KV that another engine holds, as a connection: the part of a KV handoff that crosses processes.

A prefill engine listens; a decode engine connects once for each handle, names it in a line of JSON and learns whether
the KV is still there. The connection lasts as long as the claim does, so that each side notices when the other has
died. No KV travels: how long a transfer takes is the engine model's to say, and what a claim means as well.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from engines.contract import KvParams
from engines.model.engine_model import Messages
from engines.model.messages import ClaimKv, KvClaimed, KvClaimEnded, KvGone, KvHolderLost, KvPulled, Message
from engines.peer_port import PeerPort, keep_alive
from policies.errors import KvTransferFailed

GRANTED, GONE, PULLED = b"granted\n", b"gone\n", b"pulled\n"
CLAIM_PATIENCE_S = 5.0

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Tell = Callable[[Message], Messages]


class KvPort:
    """Where decode engines claim the KV that this engine holds.

    Args:
        tell: Tells the engine model something; returns its answers.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._port = PeerPort(self._serve)

    async def listen(self, host: str) -> None:
        """Opens a free port for claims.

        Args:
            host: Address at which decode engines reach this one.
        """
        await self._port.listen(host)

    @property
    def num_connections(self) -> int:
        """Connections that are open."""
        return self._port.num_connections

    def params(self, request_id: str) -> KvParams:
        """Where a decode engine finds the KV of a finished prefill."""
        host, port = self._port.address
        return {"host": host, "port": port, "request_id": request_id}

    def stop(self) -> None:
        """Drops every connection, as the death of the process would."""
        self._port.stop()

    async def close(self) -> None:
        """Stops, and waits until no connection is left."""
        await self._port.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request_id = msgspec.json.decode(await reader.readline(), type=str)
        if KvClaimed(request_id) not in self._tell(ClaimKv(request_id)):
            writer.write(GONE)
            return
        writer.write(GRANTED)
        is_pulled = False
        try:
            is_pulled = await reader.readline() == PULLED
        finally:
            self._tell(KvPulled(request_id) if is_pulled else KvClaimEnded(request_id))


class KvClaims:
    """The claims of this engine's decodes, a connection each.

    Args:
        tell: Tells the engine model something.
    """

    def __init__(self, tell: Callable[[Message], object]) -> None:
        self._tell = tell
        self._claims: dict[str, _KvClaim] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_open(self) -> int:
        """Claims that are asked for or not over."""
        return len(self._tasks)

    def make(self, request_id: str, params: KvParams) -> None:
        """Claims the KV that a handle names, for a decode; the model is told the answer, and when the holder dies."""
        claim = self._claims[request_id] = _KvClaim(request_id, params, self._tell)
        self._tasks.add(claim.task)
        claim.task.add_done_callback(lambda task: self._forget(request_id, task))

    def end(self, request_id: str, *, is_pulled: bool) -> None:
        """A claim is over: the KV is here or is not needed, and the other side may free it; or not a word is said."""
        if claim := self._claims.pop(request_id, None):
            claim.end(is_pulled=is_pulled)

    def stop(self) -> None:
        """Ends every claim without a word, as the death of the process would."""
        for request_id in list(self._claims):
            self.end(request_id, is_pulled=False)

    async def close(self) -> None:
        """Stops, and waits until no connection is left."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _forget(self, request_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        claim = self._claims.get(request_id)
        if claim is not None and claim.task is task:
            del self._claims[request_id]


async def release_kv(params: KvParams) -> None:
    """Has KV freed that a handle names, as after a pull; not a word where it is gone or nobody answers."""
    with suppress(KvTransferFailed):
        _, writer = await _claimed(params)
        writer.write(PULLED)
        writer.close()


class _KvClaim:
    def __init__(self, request_id: str, params: KvParams, tell: Callable[[Message], object]) -> None:
        self._request_id = request_id
        self._tell = tell
        self._writer: asyncio.StreamWriter | None = None
        self.task = asyncio.get_running_loop().create_task(self._last(params))

    def end(self, *, is_pulled: bool) -> None:
        if is_pulled and self._writer is not None:
            self._writer.write(PULLED)
        self.task.cancel()

    async def _last(self, params: KvParams) -> None:
        """From the connection to its end."""
        try:
            reader, self._writer = await _claimed(params)
        except KvTransferFailed as error:
            self._tell(KvGone(self._request_id, str(error)))
            return
        try:
            self._tell(KvClaimed(self._request_id))
            with suppress(OSError):
                await reader.read(1)
            self._tell(KvHolderLost(self._request_id))
        finally:
            self._writer.close()


async def _claimed(params: KvParams) -> Connection:
    """The connection of a claim that was granted.

    Raises:
        KvTransferFailed: The KV is not there any more, or nobody answers.
    """
    request_id = str(params.get("request_id"))
    try:
        async with asyncio.timeout(CLAIM_PATIENCE_S):
            return await _ask(str(params["host"]), int(params["port"]), request_id)
    except (OSError, KeyError, ValueError) as error:  # a time-out is an OSError
        raise KvTransferFailed(f"the prefill engine of {request_id} can't be reached: {error!r}") from error


async def _ask(host: str, port: int, request_id: str) -> Connection:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        keep_alive(writer)
        writer.write(msgspec.json.encode(request_id) + b"\n")
        answer = await reader.readline()
    except BaseException:
        writer.close()
        raise
    if answer != GRANTED:
        writer.close()
        raise KvTransferFailed(f"the KV blocks of {request_id} are gone")
    return reader, writer
