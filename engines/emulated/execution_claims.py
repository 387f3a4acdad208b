"""Who computes a prompt that two engines have: the part of the answer that crosses processes.

The engine that has the first attempt keeps the execution claim and listens. The one that has the second connects when
it gets it, names the first attempt in a line of JSON, and says ``ask`` when its turn comes. It is told ``yours``, or
``begun`` once the first one has begun, which may come unasked. The connection lasts until then, or until either
attempt's end, so that whoever dies is missed at once. An engine that can't be reached, or says nothing, has not begun:
somebody has to. One that has said nothing for too long is asked by nobody for a while, and nobody waits for it: no step
begins meanwhile.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Protocol

import msgspec

from engines.contract import TiedRequest
from engines.peer_port import PeerPort, keep_alive

ASK, YOURS, BEGUN = b"ask\n", b"yours\n", b"begun\n"
PATIENCE_S = 1.0
"""How long a connection may take, and then an answer. Longer than an engine's process is ever busy with itself."""
SILENT_FOR_S = 10.0
"""How long an engine that has not answered in time is not asked again: its pairs are computed twice meanwhile, if it
lives. With 10 s one that hangs costs its peers a tenth of their time, at worst."""
FIRST_LINE_S = 10.0
"""How long whoever connects may take to say for what; those who mean it say it at once."""
MAX_ID_LENGTH = 256
"""Characters of an attempt's id; a gateway's have 128 for the request and a number."""


AttemptId = Annotated[str, msgspec.Meta(max_length=MAX_ID_LENGTH)]


class FirstAttempts(Protocol):
    """The attempts that an engine has."""

    def meet(self, request_id: str) -> bool:
        """Another engine has the prompt of an attempt, too; whether the attempt has begun. If not, it says when."""
        ...

    def withdraw(self, request_id: str) -> bool:
        """Has an attempt leave its queue, or never enter it; whether it does, because it has not begun."""
        ...


class ClaimKeeper:
    """Keeps the execution claims of an engine's own attempts.

    Args:
        attempts: Those.
    """

    def __init__(self, attempts: FirstAttempts) -> None:
        self._attempts = attempts
        self._port = PeerPort(self._serve)
        self._waiting: dict[str, asyncio.StreamWriter] = {}

    async def listen(self, host: str) -> None:
        """Opens a free port for those who ask.

        Args:
            host: Address at which other engines reach this one.
        """
        await self._port.listen(host)

    @property
    def address(self) -> str:
        """``host:port``."""
        host, port = self._port.address
        return f"{host}:{port}"

    @property
    def num_waiting(self) -> int:
        """Attempts elsewhere that wait for one here to begin, or for their turn."""
        return len(self._waiting)

    def is_shared(self, request_id: str) -> bool:
        """Whether an attempt elsewhere waits for this one."""
        return request_id in self._waiting

    def tell_begun(self, request_id: str) -> None:
        """An attempt has begun."""
        if writer := self._waiting.get(request_id):
            writer.write(BEGUN)

    def stop(self) -> None:
        """Drops every connection, as the death of the process would."""
        self._port.stop()

    async def close(self) -> None:
        """Stops, and waits until no connection is left."""
        await self._port.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(FIRST_LINE_S):
            request_id = msgspec.json.decode(await reader.readline(), type=AttemptId)
        if self._attempts.meet(request_id):
            writer.write(BEGUN)
            return
        self._waiting[request_id] = writer
        try:
            if await reader.readline() == ASK:
                writer.write(YOURS if self._attempts.withdraw(request_id) else BEGUN)
        finally:
            if self._waiting.get(request_id) is writer:
                del self._waiting[request_id]


class SilentPeers:
    """The engines that have not answered in time, and are not asked."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()

    def add(self, address: str) -> None:
        """An engine has not answered; those for which the time is over are forgotten."""
        now_s = self._loop.time()
        self._until_s = {each: until_s for each, until_s in self._until_s.items() if until_s > now_s}
        self._until_s[address] = now_s + SILENT_FOR_S

    def __contains__(self, address: str) -> bool:
        return self._until_s.get(address, 0.0) > self._loop.time()


class ClaimRequester:
    """Asks for one attempt's execution claim, once.

    Args:
        tied_request: Whom, and for what.
        on_answer: Called once: whether the attempt may begin. Not after :meth:`drop`.
        on_silence: Called in place of it, with the address, when there is no answer in time. Whoever hears it drops all
            who ask there; their attempts may begin.
    """

    def __init__(
        self, tied_request: TiedRequest, on_answer: Callable[[bool], None], on_silence: Callable[[str], None]
    ) -> None:
        self.address = tied_request.address
        self._on_answer = on_answer
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.StreamWriter | None = None
        self._is_asked = False
        self._patience: asyncio.TimerHandle | None = None
        self._task = self._loop.create_task(self._run(tied_request))

    def ask(self) -> None:
        """It is the attempt's turn."""
        self._is_asked = True
        self._patience = self._loop.call_later(PATIENCE_S, self._lose_patience)
        if self._writer is not None:
            self._writer.write(ASK)

    def drop(self) -> None:
        """Nobody wants to know any more."""
        self._task.cancel()
        self._forget_patience()

    async def _run(self, tied_request: TiedRequest) -> None:
        is_begun = False
        try:
            is_begun = await self._talk(tied_request) == BEGUN
        except TimeoutError:
            self._on_silence(self.address)
            return
        except (OSError, ValueError):
            pass
        self._forget_patience()
        self._on_answer(not is_begun)

    async def _talk(self, tied_request: TiedRequest) -> bytes:
        """What the other engine says in the end; nothing if it dies first."""
        host, _, port = tied_request.address.rpartition(":")
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(host, int(port))
        try:
            keep_alive(writer)
            writer.write(msgspec.json.encode(tied_request.request_id) + b"\n")
            if self._is_asked:
                writer.write(ASK)
            self._writer = writer
            return await reader.readline()
        finally:
            writer.close()

    def _lose_patience(self) -> None:
        self._on_silence(self.address)

    def _forget_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
