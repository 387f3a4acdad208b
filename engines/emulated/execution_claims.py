"""Which of two engines computes a prompt that both have: the connections between them.

The engine model decides (:mod:`engines.model.engine_model`); here are the connections, and patience with silent peers.

The engine that has the first attempt keeps the execution claim and listens. The one that has the second connects when
it gets it, names the first attempt in a line of JSON, and says ``ask`` when its turn comes. It is told ``yours``, or
``begun`` once the first one has begun, which may come unasked. The connection lasts until then, or until either
attempt's end, so that a death is noticed at once. An engine that can't be reached, or says nothing, counts as one that
has not begun: the other one begins. One that has said nothing for too long is not asked, and not waited for, for a
while: no step begins meanwhile.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec

from engines.contract import TiedRequest
from engines.model.engine_model import Messages
from engines.model.messages import AskClaim, Begun, GrantClaim, Meet, Message
from engines.peer_port import PeerPort, keep_alive

ASK, YOURS, BEGUN = b"ask\n", b"yours\n", b"begun\n"
PATIENCE_S = 1.0
"""How long a connection may take, and then an answer. Longer than an engine's process is ever busy with itself."""
SILENT_FOR_S = 10.0
"""How long an engine that has not answered in time is not asked again: its pairs are computed twice meanwhile, if it
lives. With 10 s one that hangs costs its peers a tenth of their time, at worst."""
FIRST_LINE_S = 10.0
"""How long a connection may take to say what it is for; a peer says it at once."""
MAX_ID_LENGTH = 256
"""Characters of an attempt's id; a gateway's have 128 for the request and a number."""


AttemptId = Annotated[str, msgspec.Meta(max_length=MAX_ID_LENGTH)]


class ClaimKeeper:
    """Where the engines of second attempts ask for the execution claims of an engine's own attempts.

    Args:
        tell: Tells the engine model something; returns its answers.
    """

    def __init__(self, tell: Callable[[Message], Messages]) -> None:
        self._tell = tell
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

    @property
    def num_connections(self) -> int:
        """Connections that are open."""
        return self._port.num_connections

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
        if Begun(request_id) in self._tell(Meet(request_id)):
            writer.write(BEGUN)
            return
        self._waiting[request_id] = writer
        try:
            is_asked = await reader.readline() == ASK
        finally:
            if self._waiting.get(request_id) is writer:
                del self._waiting[request_id]
        if is_asked:
            may_begin = GrantClaim(request_id) in self._tell(AskClaim(request_id))
            writer.write(YOURS if may_begin else BEGUN)


class ClaimRequesters:
    """The second attempts that an engine has, each with the engine of the first one to ask.

    Args:
        tell: Tells the engine model something.
    """

    def __init__(self, tell: Callable[[Message], object]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._requesters: dict[str, ClaimRequester] = {}
        self._silent_until_s: dict[str, float] = {}

    def is_silent(self, address: str) -> bool:
        """Whether an engine has not answered in time, and is not asked."""
        return self._silent_until_s.get(address, 0.0) > self._loop.time()

    def connect(self, request_id: str, tied_request: TiedRequest) -> None:
        """A second attempt is here."""
        answer = partial(self._answer, request_id)
        self._requesters[request_id] = ClaimRequester(tied_request, answer, self._end_silence)

    def ask(self, request_id: str) -> None:
        """It is its turn; where the answer has just come, nothing is asked."""
        if requester := self._requesters.get(request_id):
            requester.ask()

    def drop(self, request_id: str) -> None:
        """It is over, if there was one, and no answer is waited for."""
        if requester := self._requesters.pop(request_id, None):
            requester.drop()

    def stop(self) -> None:
        """Nothing is asked any more."""
        for request_id in list(self._requesters):
            self.drop(request_id)

    def _answer(self, request_id: str, may_begin: bool) -> None:
        del self._requesters[request_id]
        self._tell(GrantClaim(request_id) if may_begin else Begun(request_id))

    def _end_silence(self, address: str) -> None:
        """An engine that has not answered one of them is not waited for any more, and not asked for some time."""
        now_s = self._loop.time()
        self._silent_until_s = {each: until_s for each, until_s in self._silent_until_s.items() if until_s > now_s}
        self._silent_until_s[address] = now_s + SILENT_FOR_S
        for request_id, requester in list(self._requesters.items()):
            if requester.address == address and request_id in self._requesters:
                requester.drop()
                self._answer(request_id, may_begin=True)


class ClaimRequester:
    """Asks for one attempt's execution claim, once.

    Args:
        tied_request: Whom, and for what.
        on_answer: Called once: whether the attempt may begin. Not after :meth:`drop`.
        on_silence: Called in place of it, with the address, when there is no answer in time. Its receiver drops all
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
        """The answer is not needed any more."""
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
