"""One HTTP request, and the requests that the dispatcher gets for it: one for each prompt and each choice."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from deployments.openai.errors import ApiError
from deployments.openai.token_stream import TokenStream
from engines.contract import NO_ADAPTER, NO_POOLING, ONE_STEP, Adapter, Pooling, Sampling
from routing.request.effects import Outcome


@dataclass(frozen=True, slots=True)
class Answering:
    """The answer to one request of the dispatcher's.

    Args:
        stream: What comes of it.
        error: What the client is told when it got no answer, or no whole one.
    """

    stream: TokenStream
    error: Callable[[Outcome], ApiError]


class Submit(Protocol):
    """Hands a prompt to the dispatcher."""

    def __call__(self, token_ids: list[int], sampling: Sampling, pooling: Pooling = NO_POOLING, /) -> Answering:
        """Raises ``ApiError`` where it can't be served."""
        ...


class Exchange:
    """One HTTP request on its way through vLLM's layer, which knows nothing of it.

    Args:
        submit: Hands a prompt to the dispatcher.
        adapter: The LoRA adapter that it asks for, if any.
    """

    def __init__(self, submit: Submit, adapter: Adapter = NO_ADAPTER) -> None:
        self.submit = submit
        self.adapter = adapter
        self.has_begun = False
        self.failure: ApiError | None = None
        self._turn = asyncio.Lock()
        self._num_vectors, self._num_wanted = 0, 0
        self._has_all = asyncio.Event()

    def want_vector(self) -> None:
        """One more is asked for; before the first of them is waited for."""
        self._num_wanted += 1

    async def has_vector(self) -> None:
        """One more is there. Returns when all are: vLLM's layer looks at each that waits whenever one comes."""
        self._num_vectors += 1
        if self._num_vectors == self._num_wanted:
            self._has_all.set()
        await self._has_all.wait()

    async def in_turn(self, turn: asyncio.Lock, token_ids: list[int], pooling: Pooling) -> Answering:
        """Hands one of many prompts over, and lets others of the event loop have a turn before the next one.

        Args:
            turn: Whose it is among all exchanges of the gateway, each of which has one prompt there at a time.
            token_ids: The prompt.
            pooling: What becomes of it.

        Raises:
            ApiError: It can't be served, or one before it could not.
        """
        async with self._turn, turn:
            if self.failure is not None:
                raise self.failure
            try:
                answering = self.submit(token_ids, ONE_STEP, pooling)
            except ApiError as error:
                self.failure = error
                raise
            await asyncio.sleep(0)
            return answering

    def begin(self) -> None:
        """A first token is there."""
        self.has_begun = True

    def failed(self, answering: Answering, outcome: Outcome) -> ApiError:
        """What is to be raised: one of its requests got no answer, or no whole one."""
        self.failure = answering.error(outcome)
        return self.failure


EXCHANGE: ContextVar[Exchange] = ContextVar("exchange")
"""The one that vLLM's layer is called for."""
