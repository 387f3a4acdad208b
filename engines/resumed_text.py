"""The text of an answer that goes on after an interruption, made as if there had been none.

An engine that is given the answer so far as the end of a prompt begins a new text: what was held back before the
interruption would be lost, and a stop string across it missed. So the engine is told to make no text, and what it
would have made of the whole answer is made here, by its own detokenizer.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from engines.contract import EngineRequest
from policies.errors import RequestInvalid

ANSWERED_TOKENS = "spillway_answered_tokens"
"""Under this name an engine's scheduler is told how many tokens at the end of a prompt are the answer so far."""


class Detokenizer(Protocol):
    """vLLM's incremental detokenizer: tokens in, text out, with an eye on stop strings after ``min_tokens``."""

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Takes tokens in, the last of them perhaps a stop token.

        Returns:
            The stop string that they complete; tokens after it are not counted, and text from it on is dropped.
        """
        ...

    def num_output_tokens(self) -> int:
        """Tokens of the answer so far."""
        ...

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """The whole text (``delta=False``), without what may become a stop string unless the answer is finished."""
        ...


class Completion(Protocol):
    """What an engine says of one request in one output, vLLM's names."""

    text: str
    token_ids: Sequence[int]
    logprobs: Any
    finish_reason: str | None
    stop_reason: int | str | None


class EngineOutput(Protocol):
    """An engine's output for one request."""

    @property
    def outputs(self) -> list[Any]: ...


SomeOutput = TypeVar("SomeOutput", bound=EngineOutput)


class ResumedText:
    """Gives outputs the text that they would have had without the interruption.

    Args:
        detokenizer: New, for the original prompt, with ``min_tokens`` of the whole answer.
        request: The rest of the request.

    Raises:
        RequestInvalid: The answer so far has no such number of characters.
    """

    def __init__(self, detokenizer: Detokenizer, request: EngineRequest) -> None:
        detokenizer.update(request.answered_token_ids, False)
        text_left(detokenizer.get_next_output_text(True, False), request.answered_chars)
        self._detokenizer = detokenizer
        self._num_emitted = request.answered_chars

    def left(self) -> str:
        """Text of the answer so far that is not out and could be, had there been no interruption."""
        text = self._detokenizer.get_next_output_text(False, False)
        left = text[self._num_emitted :]
        self._num_emitted += len(left)
        return left

    def put_right(self, completion: Completion) -> bool:
        """Writes the text, and ends the answer where a stop string does.

        Returns:
            Whether one did: the engine, which knows of none, would go on.
        """
        known_tokens = self._detokenizer.num_output_tokens()
        stop = self._detokenizer.update(list(completion.token_ids), completion.finish_reason == "stop")
        if stop is not None:
            kept_tokens = self._detokenizer.num_output_tokens() - known_tokens
            completion.token_ids = completion.token_ids[:kept_tokens]
            completion.logprobs = completion.logprobs and completion.logprobs[:kept_tokens]
            completion.finish_reason, completion.stop_reason = "stop", stop
        text = self._detokenizer.get_next_output_text(completion.finish_reason is not None, False)
        completion.text = text[self._num_emitted :]
        self._num_emitted = max(self._num_emitted, len(text))
        return stop is not None


async def resumed(outputs: AsyncGenerator[SomeOutput, None], text: ResumedText) -> AsyncGenerator[SomeOutput, None]:
    """The outputs with the text that goes on; a stop string is the last of them, and ends the engine's stream."""
    async with aclosing(outputs):
        async for output in outputs:
            is_stopped = text.put_right(output.outputs[0])
            yield output
            if is_stopped:
                return


def text_left(text: str, answered_chars: int) -> str:
    """What an answer's text goes on with.

    Raises:
        RequestInvalid: It has fewer characters than are said to be out.
    """
    if answered_chars > len(text):
        message = f"answered_chars must be at most the {len(text)} of the answer so far, got {answered_chars}"
        raise RequestInvalid(message, "answered_chars")
    return text[answered_chars:]
