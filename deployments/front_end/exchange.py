"""One HTTP request, and the requests that the dispatcher gets for it: one for each prompt and each choice."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from deployments.openai.errors import ApiError
from deployments.openai.token_stream import TokenStream
from engines.contract import NO_ADAPTER, Adapter, Sampling
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


Submit = Callable[[list[int], Sampling], Answering]


class Exchange:
    """One HTTP request on its way through vLLM's layer, which knows nothing of it.

    Args:
        submit: Hands a prompt to the dispatcher; raises ``ApiError`` where none can be served.
        adapter: The LoRA adapter that it asks for, if any.
    """

    def __init__(self, submit: Submit, adapter: Adapter = NO_ADAPTER) -> None:
        self.submit = submit
        self.adapter = adapter
        self.has_begun = False
        self.failure: ApiError | None = None

    def begin(self) -> None:
        """A first token is there."""
        self.has_begun = True

    def failed(self, answering: Answering, outcome: Outcome) -> ApiError:
        """What is to be raised: one of its requests got no answer, or no whole one."""
        self.failure = answering.error(outcome)
        return self.failure


EXCHANGE: ContextVar[Exchange] = ContextVar("exchange")
"""The one that vLLM's layer is called for."""
