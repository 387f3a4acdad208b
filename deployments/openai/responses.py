"""Responses of the OpenAI API: whole bodies, and the events of a stream. Encoded by msgspec, a microsecond each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from deployments.openai.event_ids import NO_EVENT_IDS, EventId, EventIds, NoEventIds
from deployments.openai.token_stream import TokenStream
from engines.contract import ChosenLogprob, Chunk
from routing.request.effects import Outcome

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class RankedLogprob(msgspec.Struct, frozen=True):
    """The log probability of a token of the prompt, as vLLM has it."""

    logprob: float
    rank: int
    decoded_token: str


ByToken = Sequence[dict[int, RankedLogprob] | None]
"""Of each token of a prompt; of the first, which nothing comes before, none."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None = None


class TextChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The choice of a completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: Sequence[int] | None = None
    prompt_logprobs: ByToken | None = None


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chat stream adds."""

    role: str | None = None
    content: str | None = None


class DeltaChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The choice of a chat stream's event."""

    index: int
    delta: Delta
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    token_ids: Sequence[int] | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """The assistant's turn."""

    role: str
    content: str


class MessageChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The choice of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: Sequence[int] | None = None


class Extra(msgspec.Struct, frozen=True):
    """What OpenAI's shapes have no place for, in a field of its own.

    Args:
        latency_budget_s: Seconds that the request has spent in each stage so far.
        attempts: Attempts that were made for it, hedges included.
        hedges: How many of them were beside another of the same stage.
    """

    latency_budget_s: dict[str, float]
    attempts: int
    hedges: int


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """A whole response, or one event of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[TextChoice | DeltaChoice | MessageChoice]
    usage: Usage | None = None
    spillway: Extra | None = None
    prompt_logprobs: ByToken | None = None


@dataclass(slots=True, kw_only=True)
class OpenAiAnswer:
    """Turns one request's chunks into OpenAI's shapes.

    Args:
        kind: Which endpoint.
        request_id: The response's id.
        model: The model's id.
        created: Unix time, in whole seconds.
        prompt_tokens: Length of the prompt.
        includes_usage: Whether a stream ends with a usage event.
        top_logprobs: Alternatives to report with each token, when log probabilities were asked for.
        returns_token_ids: Whether choices carry token ids beside text, as vLLM offers it.
        event_ids: Those of a stream's events.
    """

    kind: Literal["completion", "chat"]
    request_id: str
    model: str
    created: int
    prompt_tokens: int
    includes_usage: bool = False
    top_logprobs: int = 0
    returns_token_ids: bool = False
    event_ids: NoEventIds = NO_EVENT_IDS
    _is_begun: bool = False
    _output_tokens: int = 0
    _cached_tokens: int = 0
    _text_length: int = 0
    _chunks: list[Chunk] = field(default_factory=list)

    # -- streamed -----------------------------------------------------------------------------------------------------

    def go_on_after(self, last: EventId) -> None:
        """Its client has all up to there of an answer that another gateway has begun."""
        self.request_id, self.event_ids = last.answer, EventIds(last)
        self._is_begun, self._output_tokens, self._text_length = True, last.tokens, last.chars

    def opening(self) -> bytes:
        """The event before the first token: a chat's role."""
        if self.kind == "completion" or self._is_begun:
            return b""
        return self._event((DeltaChoice(0, Delta(role="assistant", content=""), None, None),))

    def event(self, chunk: Chunk) -> bytes:
        """The event for one chunk."""
        self._count(chunk)
        logprobs = self._logprobs(chunk)
        self._text_length += len(chunk.text)
        ids = chunk.token_ids if self.returns_token_ids else None
        line = self.event_ids.line(chunk)
        if self.kind == "completion":
            choice = TextChoice(0, chunk.text, logprobs, chunk.finish_reason, chunk.stop_reason, ids)
            return line + self._event((choice,))
        return line + self._event((DeltaChoice(0, Delta(content=chunk.text), logprobs, chunk.finish_reason, ids),))

    def closing(self, extra: Extra | None = None) -> bytes:
        """What follows the last chunk of a completed stream."""
        usage = self._usage() if self.includes_usage else None
        last = self._event((), usage, extra) if usage or extra else b""
        return last + DONE

    # -- whole --------------------------------------------------------------------------------------------------------

    def add(self, chunk: Chunk) -> None:
        """Keeps a chunk for :meth:`body`."""
        self._count(chunk)
        self._chunks.append(chunk)

    def body(self, extra: Extra | None = None) -> bytes:
        """The whole response."""
        text = "".join(chunk.text for chunk in self._chunks)
        logprobs = self._whole_logprobs()
        ids = [token for chunk in self._chunks for token in chunk.token_ids] if self.returns_token_ids else None
        last, of_prompt = self._chunks[-1], self._prompt_logprobs()
        name = "text_completion" if self.kind == "completion" else "chat.completion"
        head = self.request_id, name, self.created, self.model
        if self.kind == "completion":
            choice = TextChoice(0, text, logprobs, last.finish_reason, last.stop_reason, ids, of_prompt)
            return _encode(Body(*head, (choice,), self._usage(), extra))
        message = ChatMessage("assistant", text)
        turn = MessageChoice(0, message, logprobs, last.finish_reason, last.stop_reason, ids)
        return _encode(Body(*head, (turn,), self._usage(), extra, of_prompt))

    # -- shared -------------------------------------------------------------------------------------------------------

    def _count(self, chunk: Chunk) -> None:
        if not self._output_tokens:  # what is computed again after an interruption is none of the client's prompt
            self._cached_tokens = chunk.cached_tokens
        self._output_tokens += len(chunk.token_ids)

    def _event(
        self, choices: Sequence[TextChoice | DeltaChoice], usage: Usage | None = None, extra: Extra | None = None
    ) -> bytes:
        name = "text_completion" if self.kind == "completion" else "chat.completion.chunk"
        body = Body(self.request_id, name, self.created, self.model, choices, usage, extra)
        return b"data: " + _encode(body) + b"\n\n"

    def _usage(self) -> Usage:
        total = self.prompt_tokens + self._output_tokens
        details = {"cached_tokens": self._cached_tokens}
        return Usage(self.prompt_tokens, self._output_tokens, total, details)

    def _whole_logprobs(self) -> dict[str, Any] | None:
        entries = tuple(entry for chunk in self._chunks for entry in chunk.logprobs or ())
        return self._shape(entries) if entries else None

    def _prompt_logprobs(self) -> ByToken | None:
        said = next((chunk.prompt_logprobs for chunk in self._chunks if chunk.prompt_logprobs is not None), None)
        return None if said is None else [_by_token(entry) for entry in said]

    def _logprobs(self, chunk: Chunk) -> dict[str, Any] | None:
        return None if chunk.logprobs is None else self._shape(chunk.logprobs)

    def _shape(self, entries: Sequence[ChosenLogprob]) -> dict[str, Any]:
        if self.kind == "completion":
            return _completion_logprobs(entries, self.top_logprobs, self._text_length)
        return {"content": [_chat_logprob(entry, self.top_logprobs) for entry in entries]}


async def read_all(stream: TokenStream, answer: OpenAiAnswer) -> Outcome:
    """Puts everything that a stream has yet to give into an answer."""
    while isinstance(item := await stream.read(), Chunk):
        answer.add(item)
    return item


def _completion_logprobs(entries: Sequence[ChosenLogprob], top: int, offset: int) -> dict[str, Any]:
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.chosen.token)
    return {
        "text_offset": offsets,
        "token_logprobs": [entry.chosen.logprob for entry in entries],
        "tokens": [entry.chosen.token for entry in entries],
        "top_logprobs": [{each.token: each.logprob for each in entry.top[: max(top, 1)]} for entry in entries],
    }


def _by_token(entry: ChosenLogprob | None) -> dict[int, RankedLogprob] | None:
    if entry is None:
        return None
    return {each.token_id: RankedLogprob(each.logprob, each.rank, each.token) for each in entry.top}


def _chat_logprob(entry: ChosenLogprob, top: int) -> dict[str, Any]:
    def shape(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    alternatives = [shape(each.token, each.logprob) for each in entry.top[:top]]
    return {**shape(entry.chosen.token, entry.chosen.logprob), "top_logprobs": alternatives}
