"""Who holds a prompt's KV blocks and who pulls them: the part of a KV handoff that crosses processes.

A prefill engine listens; a decode engine connects once for each handle, names it in a line of JSON and learns whether
the blocks are still there. The connection lasts as long as the claim does, so that each side notices when the other has
died. No KV travels: how long a transfer takes is the step model's to say.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from engines.contract import KvParams
from engines.peer_port import PeerPort, keep_alive
from policies.errors import KvTransferFailed

GRANTED, GONE, PULLED = b"granted\n", b"gone\n", b"pulled\n"
PULL_PATIENCE_S = 5.0


class _Held:
    """The blocks of one finished prefill."""

    __slots__ = ("free", "lease", "num_pulls", "was_pulled")

    def __init__(self, free: Callable[[], None]) -> None:
        self.free = free
        self.lease: asyncio.TimerHandle | None = None
        self.num_pulls = 0
        self.was_pulled = False


class KvHolder:
    """Holds blocks for decode engines until they were pulled, or nobody has claimed them for the length of a lease.

    A claim stops the lease for as long as its connection lasts. Two decodes may claim the same blocks (one may die, one
    may be a hedge): the blocks go when the last of them is done.

    Args:
        lease_s: How long unclaimed blocks are held, in real seconds.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, _Held] = {}
        self._port = PeerPort(self._serve_pull)
        self.is_dropping = False

    async def listen(self, host: str) -> None:
        """Opens a free port for claims.

        Args:
            host: Address at which decode engines reach this one.
        """
        await self._port.listen(host)

    @property
    def num_held(self) -> int:
        """Finished prefills whose blocks are held."""
        return len(self._held)

    def hold(self, request_id: str, free: Callable[[], None]) -> KvParams:
        """Holds the blocks of a finished prefill; returns where a decode engine finds them.

        Args:
            request_id: Of the prefill.
            free: Called once, when the blocks are not needed any more.
        """
        host, port = self._port.address
        held = self._held[request_id] = _Held(free)
        self._start_lease(request_id, held)
        return {"host": host, "port": port, "request_id": request_id}

    def give_up(self, request_id: str) -> None:
        """Frees blocks that nobody will ask for."""
        if held := self._held.get(request_id):
            self._free(request_id, held)

    def stop(self) -> None:
        """Drops every connection and every lease, as the death of the process would; nothing is freed."""
        for held in self._held.values():
            _cancel(held.lease)
        self._held.clear()
        self._port.stop()

    async def close(self) -> None:
        """Stops, and waits until no connection is left."""
        self.stop()
        await self._port.close()

    async def _serve_pull(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request_id = msgspec.json.decode(await reader.readline(), type=str)
        held = self._held.get(request_id)
        if held is None or self.is_dropping:
            writer.write(GONE)
            return
        _cancel(held.lease)
        held.num_pulls += 1
        writer.write(GRANTED)
        try:
            word = await reader.readline()
            held.was_pulled = held.was_pulled or word == PULLED
        finally:
            held.num_pulls -= 1
            if self._held.get(request_id) is held and not held.num_pulls:
                self._unclaimed(request_id, held)

    def _unclaimed(self, request_id: str, held: _Held) -> None:
        """The last claim is over: by a pull, or because the decode engine died and another may come in its place."""
        if held.was_pulled:
            self._free(request_id, held)
        else:
            self._start_lease(request_id, held)

    def _start_lease(self, request_id: str, held: _Held) -> None:
        held.lease = self._loop.call_later(self._lease_s, self._free, request_id, held)

    def _free(self, request_id: str, held: _Held) -> None:
        _cancel(held.lease)
        del self._held[request_id]
        held.free()


class KvPull:
    """A decode engine's hold on blocks that a prefill engine keeps for it. Make it with :meth:`make`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def make(cls, params: KvParams) -> "KvPull":
        """Claims the blocks that a handle names.

        Raises:
            KvTransferFailed: They are not there any more, or nobody answers.
        """
        request_id = str(params.get("request_id"))
        try:
            async with asyncio.timeout(PULL_PATIENCE_S):
                return await cls._ask(str(params["host"]), int(params["port"]), request_id)
        except (OSError, KeyError, ValueError) as error:  # a time-out is an OSError
            raise KvTransferFailed(f"the prefill engine of {request_id} can't be reached: {error!r}") from error

    @classmethod
    async def _ask(cls, host: str, port: int, request_id: str) -> "KvPull":
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
        return cls(reader, writer)

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Has ``on_lost`` called when the prefill engine dies before :meth:`pulled` or :meth:`drop`."""
        self._watch = asyncio.get_running_loop().create_task(self._wait_for_end(on_lost))

    def pulled(self) -> None:
        """The blocks are here, or will not be needed: the other side may free them."""
        self._writer.write(PULLED)
        self.drop()

    def drop(self) -> None:
        """Ends the claim without a word, as a death would."""
        if self._watch is not None:
            self._watch.cancel()
        self._writer.close()

    async def _wait_for_end(self, on_lost: Callable[[], None]) -> None:
        with suppress(OSError):
            await self._reader.read(1)
        on_lost()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
