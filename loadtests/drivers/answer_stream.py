"""Reads one streamed completion: server-sent events in, when tokens came and how the stream ended out."""

import math
from typing import Annotated, Any

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
SmallCount = Annotated[int, msgspec.Meta(ge=0, lt=2**15)]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None

    @property
    def has_tokens(self) -> bool:
        return bool(self.text or self.token_ids or (self.delta is not None and self.delta.content))


class _PromptDetails(msgspec.Struct):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct):
    completion_tokens: Count = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Spillway(msgspec.Struct):
    latency_budget_s: dict[str, Seconds] = {}
    attempts: SmallCount | None = None
    hedges: SmallCount = 0


class _Event(msgspec.Struct):
    """What is read of an event; all else that servers put in theirs is left alone."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    spillway: _Spillway | None = None


_decode = msgspec.json.Decoder(_Event).decode


def _event_of(data: bytes) -> _Event:
    try:
        return _decode(data)
    except RecursionError as error:
        raise msgspec.ValidationError("JSON that is nested too deep") from error


class AnswerStream:
    """One answer as it arrives.

    A token is there when its event carries text or, where the server was asked for them, token ids: text may be held
    back in the middle of a character. An event with neither, such as a chat's role, is no token.

    Attributes:
        first_s: When the first token came; NaN while there is none.
        last_s: When the last token so far came; NaN likewise.
        longest_gap_s: The longest time between two of them; NaN while there are not two.
        events: Events that carried tokens.
        token_ids: Token ids that came, where the server was asked for them.
        output_tokens: As the server's usage says; 0 until it does.
        cached_tokens: Prompt tokens found in a prefix cache, as the usage says.
        stages_s: Seconds by stage that the service says that it spent; empty where it says nothing.
        attempts: Attempts that the service made for it, hedges included; ``None`` where it says nothing.
        hedges: How many of them were beside another; 0 likewise.
        error: The body of an error event; ``None`` without one.
        is_done: Whether the stream has said that it is complete.
        last_event_id: Of the last event that came, where the service gives any: what its client has.
    """

    def __init__(self) -> None:
        self.first_s = self.last_s = self.longest_gap_s = math.nan
        self.events = self.token_ids = self.output_tokens = self.cached_tokens = 0
        self.stages_s: dict[str, float] = {}
        self.attempts: int | None = None
        self.hedges = 0
        self.error: dict[str, Any] | None = None
        self.is_done = False
        self.last_event_id = self._event_id = ""
        self._rest = b""

    def has_length(self, num_tokens: int) -> bool:
        """Whether so many tokens came: as the usage says, and by their ids where there were any."""
        told = self.output_tokens or self.token_ids or self.events
        return told == num_tokens and self.token_ids in (0, num_tokens)

    @property
    def is_over(self) -> bool:
        """Whether what comes now changes nothing; some servers keep the connection open after an error."""
        return self.is_done or self.error is not None

    def feed(self, data: bytes, now_s: float) -> None:
        """Takes in bytes as they came from the connection; an event may be split anywhere.

        Raises:
            ValueError: An event is none of a completion; says where and why.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and not self.is_over:
                self._take_in(line[5:].strip(), now_s)
                self.last_event_id = self._event_id
            elif line.startswith(b"id:"):
                self._event_id = line[3:].strip().decode("ascii", "replace")

    def break_off(self) -> None:
        """The connection has broken; what came of an event that is not whole comes again with the rest."""
        self._rest, self._event_id = b"", self.last_event_id

    def _take_in(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        event = _event_of(data)
        if event.error is not None:
            self.error = event.error if isinstance(event.error, dict) else {"message": str(event.error)}
            return
        if any(choice.has_tokens for choice in event.choices):
            self._time(now_s)
            self.events += 1
            self.token_ids += sum(len(choice.token_ids or ()) for choice in event.choices)
        self._count(event)

    def _time(self, now_s: float) -> None:
        if self.events:
            gap_s = now_s - self.last_s
            self.longest_gap_s = gap_s if self.events == 1 else max(gap_s, self.longest_gap_s)
        else:
            self.first_s = now_s
        self.last_s = now_s

    def _count(self, event: _Event) -> None:
        if event.spillway is not None:
            self.stages_s = event.spillway.latency_budget_s
            self.attempts, self.hedges = event.spillway.attempts, event.spillway.hedges
        if event.usage is not None:
            self.output_tokens = event.usage.completion_tokens
            details = event.usage.prompt_tokens_details
            self.cached_tokens = (details.cached_tokens or 0) if details is not None else 0
