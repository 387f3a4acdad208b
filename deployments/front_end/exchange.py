"""One HTTP request, and the requests that the dispatcher gets for it: one for each prompt and each choice."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

from deployments.openai.token_stream import TokenStream
from engines.contract import Chunk, Sampling
from routing.request.effects import Outcome, OutcomeKind


class Answering:
    """The answer to one request of the dispatcher's.

    Args:
        stream: What comes of it.
        error: What the client is told when it got no answer, or no whole one.
    """

    def __init__(self, stream: TokenStream, error: Callable[[Outcome], Exception]) -> None:
        self._stream = stream
        self.error = error
        self._ahead: asyncio.Task[Chunk | Outcome] | None = None

    def read_ahead(self) -> "asyncio.Task[Chunk | Outcome]":
        """The next chunk or the outcome, which :meth:`read` gives again."""
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._stream.read())
        return self._ahead

    async def read(self) -> Chunk | Outcome:
        """The next chunk or, after the last one, the outcome."""
        if self._ahead is None:
            return await self._stream.read()
        item = await self._ahead
        self._ahead = None
        return item

    def close(self) -> None:
        """Nobody reads on."""
        if self._ahead is not None:
            self._ahead.cancel()


Submit = Callable[[list[int], Sampling], Answering]


class Exchange:
    """One HTTP request on its way through vLLM's layer, which knows nothing of it.

    Args:
        submit: Hands a prompt to the dispatcher; raises ``ApiError`` where none can be served.
    """

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._answers: list[Answering] = []
        self.failure: Exception | None = None

    def submit(self, token_ids: list[int], sampling: Sampling) -> Answering:
        """Hands a prompt to the dispatcher."""
        answering = self._submit(token_ids, sampling)
        self._answers.append(answering)
        return answering

    def failed(self, answering: Answering, outcome: Outcome) -> Exception:
        """What is to be raised: one of its requests got no answer, or no whole one."""
        self.failure = answering.error(outcome)
        return self.failure

    async def begun(self) -> None:
        """Waits for the first token of any of its answers.

        Raises:
            Exception: What the client is told: a request was refused, or failed, before there was one.
        """
        ahead = {answering.read_ahead(): answering for answering in self._answers}
        if not ahead:
            return
        done, _ = await asyncio.wait(ahead, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            item = task.result()
            if isinstance(item, Outcome) and item.kind is not OutcomeKind.COMPLETED:
                raise self.failed(ahead[task], item)

    def close(self) -> None:
        """Nobody reads what has not been read."""
        for answering in self._answers:
            answering.close()


EXCHANGE: ContextVar[Exchange] = ContextVar("exchange")
"""The one that vLLM's layer is called for."""
