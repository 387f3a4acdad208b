"""Conversations: how many turns, how long users think, and what every turn repeats of the turns before."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import log1p
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import ndtri

from loadtests.schema.checks import require, require_at_least, require_not_negative, require_positive
from loadtests.workloads.content import key_of, unit_ids
from loadtests.workloads.streams import ClassStreams, Floats, Ints


class Turns(Protocol):
    """A distribution of the number of turns in a session."""

    def turns(self, probabilities: Floats) -> Ints:
        """The quantiles at these probabilities (in [0, 1)), at least 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantTurns:
    """Always the same number.

    Args:
        num_turns: How many.

    Raises:
        ConfigError: It is below 1.
    """

    num_turns: int

    def __post_init__(self) -> None:
        require_at_least("num_turns", self.num_turns, 1)

    def turns(self, probabilities: Floats) -> Ints:
        return np.full(len(probabilities), self.num_turns, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricTurns:
    """After each turn the user goes on with the same probability, up to a limit.

    Truncated, not clamped: longer sessions are spread over the shorter ones.

    Args:
        mean_turns: Mean before truncation.
        most_turns: Longest session.

    Raises:
        ConfigError: The mean is not above 1, or the limit is below 1.
    """

    mean_turns: float
    most_turns: int = 100

    def __post_init__(self) -> None:
        require(1 < self.mean_turns < np.inf, "mean_turns", self.mean_turns, "a finite number above 1")
        require_at_least("most_turns", self.most_turns, 1)

    def turns(self, probabilities: Floats) -> Ints:
        log_goes_on = log1p(-1.0 / self.mean_turns)
        within = -np.expm1(log_goes_on * self.most_turns)  # share of sessions that the limit leaves
        unbounded = np.ceil(np.log1p(-probabilities * within) / log_goes_on).astype(np.int64)
        turns: Ints = np.clip(unbounded, 1, self.most_turns)
        return turns


class ThinkTime(Protocol):
    """A distribution of the time from the end of an answer to the next prompt."""

    def durations_s(self, probabilities: Floats) -> Floats:
        """The quantiles at these probabilities (in [0, 1))."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantThink:
    """Always the same.

    Args:
        duration_s: How long.

    Raises:
        ConfigError: It is negative or not finite.
    """

    duration_s: float

    def __post_init__(self) -> None:
        require_not_negative("duration_s", self.duration_s)

    def durations_s(self, probabilities: Floats) -> Floats:
        return np.full(len(probabilities), self.duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialThink:
    """Exponential think times.

    Args:
        mean_s: Mean.

    Raises:
        ConfigError: It is not a finite number above 0.
    """

    mean_s: float

    def __post_init__(self) -> None:
        require_positive("mean_s", self.mean_s)

    def durations_s(self, probabilities: Floats) -> Floats:
        return -self.mean_s * np.log1p(-probabilities)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalThink:
    """Log-normal think times.

    Args:
        median_s: Median.
        sigma: Standard deviation of the natural logarithm.

    Raises:
        ConfigError: Either is not a finite number above 0.
    """

    median_s: float
    sigma: float

    def __post_init__(self) -> None:
        require_positive("median_s", self.median_s)
        require_positive("sigma", self.sigma)

    def durations_s(self, probabilities: Floats) -> Floats:
        durations_s: Floats = self.median_s * np.exp(self.sigma * ndtri(probabilities))
        return durations_s


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
