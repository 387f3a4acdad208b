"""A workload: traffic classes side by side, generated as one plan in order of time.

The plan depends on the workload and the seed alone, never on how a request went, so every policy meets the same users.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, count, repeat
from math import inf
from typing import NamedTuple, Protocol, Self

import numpy as np

from cluster.seeds import Seeds
from cluster.sim.traffic import Arrival, PlannedRequest
from loadtests.schema.ranges import (
    require,
    require_at_least,
    require_no_repeats,
    require_not_negative,
    require_positive,
    require_some,
)
from loadtests.workloads.agents import Agents, draw_tasks
from loadtests.workloads.arrivals import LEAST_PER_S, ArrivalProcess, Poisson
from loadtests.workloads.content import key_of, unit_ids
from loadtests.workloads.lengths import Lengths, Limit, correlated, limits_of, require_limit
from loadtests.workloads.sessions import Conversation, Sessions, draw_sessions
from loadtests.workloads.streams import ClassStreams
from policies.views import Priority

EVENLY = (np.arange(1000) + 0.5) / 1000
"""Probabilities over which a mean is taken."""
CONTENT_UNIT_TOKENS = 16
"""Tokens in a unit of the prompts that choices share; shorter ones are taken for different prompts."""
LogicalRequest = tuple[float, int, int, tuple[int, int], float, tuple[int, ...], int, Conversation | None]
"""(when, traffic class, prompt tokens, (output tokens, limit on them), timeout, content, content unit, conversation).

A plain tuple, because a million are made by ``zip``; with a conversation the other values are its first turn's.
"""


class TrafficSource(Protocol):
    """Whatever yields one traffic class's logical requests: a :class:`TrafficClass` or a trace."""

    @property
    def name(self) -> str:
        """The traffic class."""
        ...

    @property
    def priority(self) -> Priority:
        """Class of its requests."""
        ...

    @property
    def tenant(self) -> str:
        """Who pays for them."""
        ...

    @property
    def kills_for_s(self) -> float:
        """How long the place of a replica stays empty that has died of one of its prompts; 0: none does."""
        ...

    def scaled(self, factor: float) -> Self:
        """The same users, ``factor`` times as many a second."""
        ...

    def steady(self, until_s: float) -> Self:
        """The same users at the constant rate that is expected of them from 0 to ``until_s``, with nothing between them
        but chance.
        """
        ...

    def requests_per_s(self, until_s: float) -> float:
        """Logical requests per second that are expected from 0 to ``until_s``, all turns of conversations included."""
        ...

    def logical_requests(self, index: int, seeds: Seeds, until_s: float) -> Iterator[LogicalRequest]:
        """What its users want before ``until_s``, in order of time; ``index`` is the traffic class's number."""
        ...

    def adapters_of(self, seeds: Seeds) -> Iterator[str]:
        """The LoRA adapter of each of them, in the same order; endless, empty where they ask for none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Which LoRA adapters the users of a class ask for: each user for one, the popular ones more often.

    Args:
        number: Adapters that there are.
        skew: The ``k``-th is asked for in proportion to ``1 / k**skew`` (Zipf's law); 0: all alike.

    Raises:
        ConfigError: Out of range.
    """

    number: int
    skew: float = 1.0

    def __post_init__(self) -> None:
        require_at_least("number", self.number, 1)
        require_not_negative("skew", self.skew)

    def names(self, streams: ClassStreams, class_name: str) -> Iterator[str]:
        """The adapter of each user, endless."""
        shares = 1.0 / np.arange(1, self.number + 1) ** self.skew
        bounds = np.cumsum(shares / shares.sum())
        for block in streams.uniforms("adapters"):
            for number in np.minimum(np.searchsorted(bounds, block, side="right"), self.number - 1).tolist():
                yield f"{class_name}-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """Users of one kind.

    Args:
        name: Names the class in tables, SLOs and random streams.
        arrivals: When requests come; with sessions, when sessions begin.
        prompt_tokens: Lengths of prompts; with sessions, of each turn's new message.
        output_tokens: Lengths of answers.
        length_correlation: How far long prompts have long answers: correlation of the normal draws behind both, -1 to
            1. 0: they know nothing of each other. In a conversation, of each turn's message and its answer.
        timeout_s: How long a client waits for a whole answer, each request anew.
        max_output_tokens: What clients allow; ``"exact"`` or lengths.
        sessions: How they hold conversations; ``None``: every request is alone and shares no text.
        agents: How they work on tasks, in place of conversations.
        from_s: When the class begins to arrive; its arrival process counts from here.
        for_s: For how long it arrives.
        priority: How much its requests matter when there is not room for all.
        tenant: Who pays for them.
        adapters: LoRA adapters that they ask for; ``None``: none.
        kills_for_s: A replica that has computed a prompt of theirs dies of it, and its place stays empty for so long.
            0: nobody does.
        choices: Answers to its prompt that each arrival asks for at once: so many requests with one prompt.

    Raises:
        ConfigError: The name is empty, a duration is not above 0, the limit is another word than ``"exact"``, or there
            are two of sessions, agents and several choices.
    """

    name: str
    arrivals: ArrivalProcess
    prompt_tokens: Lengths
    output_tokens: Lengths
    timeout_s: float
    max_output_tokens: Limit = "exact"
    sessions: Sessions | None = None
    agents: Agents | None = None
    from_s: float = 0.0
    for_s: float = inf
    priority: Priority = Priority.STANDARD
    tenant: str = ""
    length_correlation: float = 0.0
    adapters: Adapters | None = None
    kills_for_s: float = 0.0
    choices: int = 1

    def __post_init__(self) -> None:
        require(self.name != "", "name", self.name, "a word that is not empty")
        require(-1 <= self.length_correlation <= 1, "length_correlation", self.length_correlation, "-1 to 1")
        require_positive("timeout_s", self.timeout_s)
        require_limit(self.max_output_tokens)
        require_not_negative("from_s", self.from_s)
        require(self.for_s > 0, "for_s", self.for_s, "a number above 0")
        require(self.sessions is None or self.agents is None, "agents", self.agents, "nothing: the class has sessions")
        require_at_least("choices", self.choices, 1)
        is_alone = self.sessions is None and self.agents is None
        require(self.choices == 1 or is_alone, "choices", self.choices, "1: the class has conversations")

    def scaled(self, factor: float) -> Self:
        return replace(self, arrivals=self.arrivals.scaled(factor))

    def steady(self, until_s: float) -> Self:
        arrivals = Poisson(rate_per_s=max(self._arrivals_per_s(until_s), LEAST_PER_S))
        return replace(self, arrivals=arrivals, from_s=0.0, for_s=inf)

    def requests_per_s(self, until_s: float) -> float:
        return self._arrivals_per_s(until_s) * self._mean_turns()

    def _mean_turns(self) -> float:
        """Logical requests of one arrival."""
        if self.agents is not None:
            steps, calls = (float(each.turns(EVENLY).mean()) for each in (self.agents.steps, self.agents.calls))
            return 1.0 + (steps - 1.0) * calls
        return float(self.choices) if self.sessions is None else float(self.sessions.turns.turns(EVENLY).mean())

    def _arrivals_per_s(self, until_s: float) -> float:
        lasts_s = min(self.for_s, max(0.0, until_s - self.from_s))
        return self.arrivals.mean_per_s(lasts_s) * lasts_s / until_s if lasts_s else 0.0

    def logical_requests(self, index: int, seeds: Seeds, until_s: float) -> Iterator[LogicalRequest]:
        streams = ClassStreams(seeds, self.name)
        times_s = _arrivals_between(self.arrivals, streams, self.from_s, min(until_s, self.from_s + self.for_s))
        prompts = chain.from_iterable(
            self.prompt_tokens.tokens(block).tolist() for block in streams.uniforms("prompt_tokens")
        )
        answers = chain.from_iterable(self._answers(streams))
        if self.choices > 1:
            return self._fan_outs(times_s, index, prompts, answers)
        conversations = self._conversations(streams, prompts, answers)
        if conversations is None:
            alone = repeat(()), repeat(0), repeat(None)
            return zip(times_s, repeat(index), prompts, answers, repeat(self.timeout_s), *alone, strict=False)
        return (self._begin(at_s, index, each) for at_s, each in zip(times_s, conversations, strict=False))

    def _fan_outs(
        self, times_s: Iterator[float], index: int, prompts: Iterator[int], answers: Iterator[tuple[int, int]]
    ) -> Iterator[LogicalRequest]:
        """Requests side by side with one prompt, and each with an answer of its own."""
        for number, at_s, prompt_tokens in zip(count(), times_s, prompts, strict=False):
            num_units = prompt_tokens // CONTENT_UNIT_TOKENS
            prompt = unit_ids(key_of(self.name, number), 0, num_units)
            for choice in range(self.choices):
                answer = next(answers)
                all_units = (prompt_tokens + answer[0]) // CONTENT_UNIT_TOKENS
                own = unit_ids(key_of(self.name, number, choice), num_units, all_units)
                yield at_s, index, prompt_tokens, answer, self.timeout_s, prompt + own, CONTENT_UNIT_TOKENS, None

    def adapters_of(self, seeds: Seeds) -> Iterator[str]:
        return repeat("") if self.adapters is None else self.adapters.names(ClassStreams(seeds, self.name), self.name)

    def _conversations(
        self, streams: ClassStreams, prompts: Iterator[int], answers: Iterator[tuple[int, int]]
    ) -> Iterator[Conversation] | None:
        if self.agents is not None:
            return draw_tasks(self.agents, streams, self.name, prompts, answers)
        return draw_sessions(self.sessions, streams, self.name, prompts, answers) if self.sessions is not None else None

    def _answers(self, streams: ClassStreams) -> Iterator[Iterator[tuple[int, int]]]:
        limits = streams.uniforms("max_output_tokens")
        prompts = streams.uniforms("prompt_tokens")
        for block in streams.uniforms("output_tokens"):
            draws = correlated(block, next(prompts), self.length_correlation) if self.length_correlation else block
            lengths = self.output_tokens.tokens(draws)
            yield zip(lengths.tolist(), limits_of(self.max_output_tokens, lengths, limits).tolist(), strict=True)

    def _begin(self, at_s: float, index: int, session: Conversation) -> LogicalRequest:
        first = session.turns[0]
        answer = first.output_tokens, first.max_output_tokens
        unit_tokens = session.content_unit_tokens
        return at_s, index, first.prompt_tokens, answer, self.timeout_s, session.content_of(0), unit_tokens, session


class Planned(NamedTuple):
    """The first request of a logical request and, when it opens a session, the session whose further turns it leads
    to.
    """

    arrival: Arrival
    session: Conversation | None


class Plans(Protocol):
    """Whatever says who wants what when: a :class:`Workload`, or a part of one."""

    @property
    def duration_s(self) -> float:
        """Nothing is scheduled at this time or later."""
        ...

    def plan(self, seeds: Seeds) -> Iterator[Planned]:
        """The first requests of all logical requests in order of time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that users want in a run.

    Args:
        classes: Traffic classes; a request's ``traffic_class`` is the index in here.
        duration_s: Nothing is scheduled at this time or later.

    Raises:
        ConfigError: There is no class, two have the same name, or the duration is not above 0.
    """

    classes: tuple[TrafficSource, ...]
    duration_s: float

    def __post_init__(self) -> None:
        require_some("classes", self.classes)
        require_no_repeats("classes", (each.name for each in self.classes))
        require(self.duration_s > 0, "duration_s", self.duration_s, "a number above 0")

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the traffic classes in the order of their indices."""
        return tuple(each.name for each in self.classes)

    def plan(self, seeds: Seeds) -> Iterator[Planned]:
        """The first requests of all logical requests in order of time, generated as they are read.

        Logical requests are numbered in that order. A session takes one number for each of its turns when it begins, so
        a turn's number is the same whatever happens in the run: the session's first number plus the turn's index.
        """
        sources = [each.logical_requests(index, seeds, self.duration_s) for index, each in enumerate(self.classes)]
        number = 0
        owners = [(each.priority, each.tenant) for each in self.classes]
        adapters = [each.adapters_of(seeds) for each in self.classes]
        kills_for_s = [each.kills_for_s for each in self.classes]
        for at_s, index, prompt_tokens, answer, timeout_s, content, unit_tokens, session in heapq.merge(*sources):
            request = PlannedRequest(
                request_id=request_id(number, 0),
                logical_request=number,
                traffic_class=index,
                scheduled_s=at_s,
                prompt_tokens=prompt_tokens,
                output_tokens=answer[0],
                max_output_tokens=answer[1],
                timeout_s=timeout_s,
                content=content,
                content_unit_tokens=unit_tokens,
                priority=owners[index][0],
                tenant=owners[index][1],
                session_id="" if session is None else f"session-{number}",
                session=-1 if session is None else number,
                adapter=next(adapters[index]),
                kills_for_s=kills_for_s[index],
            )
            yield Planned(Arrival(at_s, request), session)
            number += 1 if session is None else len(session.turns)


def request_id(logical_request: int, retry_index: int) -> str:
    """Names one request of one logical request."""
    return f"{logical_request}-{retry_index}"


def _arrivals_between(process: ArrivalProcess, streams: ClassStreams, from_s: float, until_s: float) -> Iterator[float]:
    """Arrivals of a process that begins at ``from_s``, up to ``until_s``."""
    for block in process.times_s(streams):
        times_s = block + from_s
        inside = int(np.searchsorted(times_s, until_s, side="left"))
        yield from times_s[:inside].tolist()
        if inside < len(times_s):
            return
