"""Conversations: how many turns, how long users think, and what every turn repeats of the turns before."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from loadtests.schema.ranges import require_at_least, require_not_negative
from loadtests.workloads.content import key_of, unit_ids
from loadtests.workloads.streams import ClassStreams
from loadtests.workloads.turns import ThinkTime, Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """How the users of a class hold conversations.

    Each turn's prompt is the system prompt, all earlier prompts and answers, and the new message.

    Args:
        turns: Turns in a session, the first included.
        think: From the end of one turn's answer to the next turn.
        system_prompt_tokens: Tokens with which every session of the class begins.
        content_unit_tokens: Tokens that share one content id; a multiple of the engine's KV block.
        max_context_tokens: The session ends before the turn whose prompt and answer would exceed this; its first turn
            is sent anyway. Clients allow an answer no more than what is left of it. ``None``: no limit.

    Raises:
        ConfigError: A count is negative, or the unit or the limit is below 1.
    """

    turns: Turns
    think: ThinkTime
    system_prompt_tokens: int = 0
    content_unit_tokens: int = 64
    max_context_tokens: int | None = None

    def __post_init__(self) -> None:
        require_not_negative("system_prompt_tokens", self.system_prompt_tokens)
        require_at_least("content_unit_tokens", self.content_unit_tokens, 1)
        if self.max_context_tokens is not None:
            require_at_least("max_context_tokens", self.max_context_tokens, 1)


class SessionTurn(NamedTuple):
    """One turn.

    ``think_s`` is the pause before it, 0 for the first; ``prompt_tokens`` counts the history.
    """

    think_s: float
    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int


class Conversation(Protocol):
    """What one user wants in several requests, drawn as a whole: a :class:`Session`, or an agent's task."""

    @property
    def turns(self) -> tuple[SessionTurn, ...]:
        """Its requests, in the order in which they are numbered."""
        ...

    @property
    def content_unit_tokens(self) -> int:
        """Tokens that share one content id."""
        ...

    def content_of(self, turn_index: int) -> tuple[int, ...]:
        """Ids of a turn's prompt and answer."""
        ...

    def step_of(self, turn_index: int) -> range:
        """The turns that are sent at the same time as this one, itself included; the next ones wait for all of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One conversation, drawn as a whole when it begins, so that no answer's time changes what is said later.

    Args:
        turns: Its turns, at least one.
        content: Ids of the whole text's units, the last turn's answer included.
        content_unit_tokens: Tokens in a unit.
    """

    turns: tuple[SessionTurn, ...]
    content: tuple[int, ...]
    content_unit_tokens: int

    def content_of(self, turn_index: int) -> tuple[int, ...]:
        """Ids of a turn's prompt and answer: whole units alone, because a unit that is cut short is other text."""
        turn = self.turns[turn_index]
        return self.content[: (turn.prompt_tokens + turn.output_tokens) // self.content_unit_tokens]

    def step_of(self, turn_index: int) -> range:
        """The turn alone."""
        return range(turn_index, turn_index + 1)


def draw_sessions(
    config: Sessions,
    streams: ClassStreams,
    class_name: str,
    messages: Iterator[int],
    answers: Iterator[tuple[int, int]],
) -> Iterator[Session]:
    """Endless sessions of one class.

    Args:
        config: How they are held.
        streams: The class's random streams.
        class_name: The class, for content ids.
        messages: Tokens of each new message.
        answers: Tokens of each answer, and the client's limit on them.
    """
    counts = (count for block in streams.uniforms("turns") for count in config.turns.turns(block).tolist())
    pauses_s = (each for block in streams.uniforms("think") for each in config.think.durations_s(block).tolist())
    system = unit_ids(key_of(class_name, "system"), 0, config.system_prompt_tokens // config.content_unit_tokens)
    for number, count in enumerate(counts):
        # All draws of a session are made before any is dropped: a limit on context must not shift the next session's.
        drawn = itertools.islice(zip(pauses_s, messages, answers, strict=False), count)
        turns = tuple(_fitting(config, list(drawn)))
        num_units = (turns[-1].prompt_tokens + turns[-1].output_tokens) // config.content_unit_tokens
        own = unit_ids(key_of(class_name, number), len(system), num_units)
        yield Session(turns=turns, content=system + own, content_unit_tokens=config.content_unit_tokens)


def _fitting(config: Sessions, drawn: list[tuple[float, int, tuple[int, int]]]) -> Iterator[SessionTurn]:
    history_tokens = config.system_prompt_tokens
    context_tokens = config.max_context_tokens or sys.maxsize
    for index, (think_s, message_tokens, (output_tokens, max_output_tokens)) in enumerate(drawn):
        prompt_tokens = history_tokens + message_tokens
        history_tokens = prompt_tokens + output_tokens
        if index > 0 and history_tokens > context_tokens:
            return
        limit_tokens = max(output_tokens, min(max_output_tokens, context_tokens - prompt_tokens))
        yield SessionTurn(think_s if index > 0 else 0.0, prompt_tokens, output_tokens, limit_tokens)
