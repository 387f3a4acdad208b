"""Agents: tasks in steps of parallel calls, each with all that was said before in its prompt."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from loadtests.schema.ranges import require_at_least, require_not_negative
from loadtests.workloads.content import key_of, unit_ids
from loadtests.workloads.sessions import SessionTurn
from loadtests.workloads.streams import ClassStreams
from loadtests.workloads.turns import ThinkTime, Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """How the agents of a class work on their tasks.

    A task begins with one call. Each later step is a number of calls side by side; it begins when the last answer of
    the step before has come or was refused, after the time that tools take. A call's prompt is the system prompt, all
    that was said in the steps before, and its own message; what is said in its step's other calls it does not know. A
    task ends early when no call of a step was answered.

    Args:
        steps: Steps in a task, the first included.
        calls: Calls in each step but the first; more than 1 is a fan-out, always 1 a tool loop.
        tools: From a step's last answer to the next step.
        system_prompt_tokens: Tokens with which every task of the class begins.
        content_unit_tokens: Tokens that share one content id; a multiple of the engine's KV block.
        max_context_tokens: The task ends before the step with a call whose prompt and answer would exceed this; its
            first call is sent anyway. Agents allow an answer no more than what is left of it. ``None``: no limit.

    Raises:
        ConfigError: A count is negative, or the unit or the limit is below 1.
    """

    steps: Turns
    calls: Turns
    tools: ThinkTime
    system_prompt_tokens: int = 0
    content_unit_tokens: int = 64
    max_context_tokens: int | None = None

    def __post_init__(self) -> None:
        require_not_negative("system_prompt_tokens", self.system_prompt_tokens)
        require_at_least("content_unit_tokens", self.content_unit_tokens, 1)
        if self.max_context_tokens is not None:
            require_at_least("max_context_tokens", self.max_context_tokens, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """One task, drawn as a whole when it begins: a :class:`loadtests.workloads.sessions.Conversation`.

    The answers of a step's calls, one after the other, are what the next step knows; so the first call's text is the
    beginning of that, and the others' are not.

    Args:
        turns: Its calls, step by step.
        steps: Which calls are in each step.
        contexts_tokens: What was said before each step.
        name: Of its text, for content ids.
        content: Ids of the units of all that is said.
        content_unit_tokens: Tokens in a unit.
    """

    turns: tuple[SessionTurn, ...]
    steps: tuple[range, ...]
    contexts_tokens: tuple[int, ...]
    name: tuple[object, ...]
    content: tuple[int, ...]
    content_unit_tokens: int

    def step_of(self, turn_index: int) -> range:
        """The calls of a call's step."""
        return next(step for step in self.steps if turn_index in step)

    def content_of(self, turn_index: int) -> tuple[int, ...]:
        """Ids of a call's prompt and answer: whole units alone."""
        turn, step = self.turns[turn_index], self.step_of(turn_index)
        num_units = (turn.prompt_tokens + turn.output_tokens) // self.content_unit_tokens
        if turn_index == step.start:
            return self.content[:num_units]
        num_known = self.contexts_tokens[self.steps.index(step)] // self.content_unit_tokens
        return self.content[:num_known] + unit_ids(key_of(*self.name, turn_index), num_known, num_units)


def draw_tasks(
    config: Agents,
    streams: ClassStreams,
    class_name: str,
    messages: Iterator[int],
    answers: Iterator[tuple[int, int]],
) -> Iterator[AgentTask]:
    """Endless tasks of one class.

    Args:
        config: How agents work on them.
        streams: The class's random streams.
        class_name: The class, for content ids.
        messages: Tokens of each call's own message.
        answers: Tokens of each answer, and the agent's limit on them.
    """
    counts = (count for block in streams.uniforms("turns") for count in config.steps.turns(block).tolist())
    widths = (width for block in streams.uniforms("calls") for width in config.calls.turns(block).tolist())
    pauses_s = (each for block in streams.uniforms("think") for each in config.tools.durations_s(block).tolist())
    system = unit_ids(key_of(class_name, "system"), 0, config.system_prompt_tokens // config.content_unit_tokens)
    calls = zip(messages, answers, strict=False)
    for number, count in enumerate(counts):
        # All draws of a task are made before any is dropped: a limit on context must not shift the next task's.
        drawn = [
            (next(pauses_s), list(itertools.islice(calls, width)))
            for width in itertools.chain((1,), itertools.islice(widths, count - 1))
        ]
        yield _task(config, (class_name, number), system, drawn)


Drawn = tuple[float, list[tuple[int, tuple[int, int]]]]
"""A step: the pause before it, and its calls."""


def _task(config: Agents, name: tuple[object, ...], system: tuple[int, ...], drawn: list[Drawn]) -> AgentTask:
    most_tokens = config.max_context_tokens or sys.maxsize
    context_tokens, turns = config.system_prompt_tokens, list[SessionTurn]()
    steps, contexts_tokens = list[range](), list[int]()
    for index, (pause_s, calls) in enumerate(drawn):
        if index > 0 and max(context_tokens + message + answer for message, (answer, _) in calls) > most_tokens:
            break
        steps.append(range(len(turns), len(turns) + len(calls)))
        contexts_tokens.append(context_tokens)
        for message_tokens, (output_tokens, allowed_tokens) in calls:
            prompt_tokens = contexts_tokens[-1] + message_tokens
            limit_tokens = max(output_tokens, min(allowed_tokens, most_tokens - prompt_tokens))
            turns.append(SessionTurn(pause_s if index > 0 else 0.0, prompt_tokens, output_tokens, limit_tokens))
            context_tokens += message_tokens + output_tokens
    own = unit_ids(key_of(*name), len(system), context_tokens // config.content_unit_tokens)
    return AgentTask(
        turns=tuple(turns),
        steps=tuple(steps),
        contexts_tokens=tuple(contexts_tokens),
        name=name,
        content=system + own,
        content_unit_tokens=config.content_unit_tokens,
    )
