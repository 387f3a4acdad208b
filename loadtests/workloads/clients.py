"""Clients: they send the plan, try again when they are refused, and go on with their conversations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import msgspec

from cluster.seeds import Seeds
from cluster.sim.traffic import Arrival, PlannedRequest
from loadtests.schema.ranges import require, require_at_least, require_not_negative
from loadtests.workloads.content import uniform_of
from loadtests.workloads.sessions import Conversation
from loadtests.workloads.workload import Plans, request_id
from policies.decisions import Reason
from routing.request.effects import Outcome, OutcomeKind


class IdentifiedBy(StrEnum):
    """By what a service can tell that a request is a retry."""

    COUNT = "count"
    KEY = "key"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """What a client does after a refusal or a failure.

    The n-th retry comes ``min(cap, backoff * factor^(n-1))`` after the end of the request before it, times a draw from
    [1 - jitter, 1 + jitter), but not before the ``Retry-After`` that it honours. A prompt that the service called
    invalid is never sent again.

    Args:
        max_requests: Requests in all; 1: no retry.
        backoff_s: Pause before the first retry.
        factor: By how much each pause is longer than the one before.
        cap_s: Longest pause before jitter.
        jitter_fraction: Width of the jitter; 0: all clients keep the same rhythm.
        honours_retry_after: Whether a refusal's ``retry_after_s`` is waited for.
        honours_no_retry: Whether a refusal that says that a retry has no chance is the end.
        retry_on: Outcomes after which a client requests again: ``refused``, ``failed``, ``cancelled``.
        identified_by: What tells a retry from a new request: ``count``, how often its client has sent the same before,
            as the openai package says; ``key``, an idempotency key of the logical request; or ``nothing``.

    Raises:
        ConfigError: A value is out of its range.
    """

    max_requests: int = 1
    backoff_s: float = 0.5
    factor: float = 2.0
    cap_s: float = 30.0
    jitter_fraction: float = 0.5
    honours_retry_after: bool = True
    honours_no_retry: bool = True
    retry_on: tuple[OutcomeKind, ...] = (OutcomeKind.REFUSED, OutcomeKind.FAILED)
    identified_by: IdentifiedBy = IdentifiedBy.COUNT

    def __post_init__(self) -> None:
        require_at_least("max_requests", self.max_requests, 1)
        require_not_negative("backoff_s", self.backoff_s)
        require_at_least("factor", self.factor, 1.0)
        require_not_negative("cap_s", self.cap_s)
        require(0 <= self.jitter_fraction <= 1, "jitter_fraction", self.jitter_fraction, "0 to 1")
        allowed = tuple(kind for kind in OutcomeKind if kind is not OutcomeKind.COMPLETED)
        require(set(self.retry_on) <= set(allowed), "retry_on", self.retry_on, " or ".join(allowed))

    def identified(self, request: PlannedRequest) -> PlannedRequest:
        """A logical request's first request as its client sends it."""
        if self.identified_by is not IdentifiedBy.KEY:
            return request
        return msgspec.structs.replace(request, idempotency_key=f"logical-{request.logical_request}")

    def repeated(self, request: PlannedRequest) -> PlannedRequest:
        """The next request for the same."""
        number = request.retry_index + 1
        return msgspec.structs.replace(
            request,
            request_id=request_id(request.logical_request, number),
            retry_index=number,
            retry_count=number if self.identified_by is IdentifiedBy.COUNT else 0,
        )

    def wants_retry(self, request: PlannedRequest, outcome: Outcome) -> bool:
        """Whether this request's end is followed by a retry."""
        has_a_retry_left = request.retry_index + 1 < self.max_requests
        has_a_chance = outcome.reason is not Reason.INVALID_REQUEST and (outcome.may_retry or not self.honours_no_retry)
        return has_a_retry_left and has_a_chance and outcome.kind in self.retry_on

    def pause_s(self, request: PlannedRequest, outcome: Outcome, draw: float) -> float:
        """From the end of this request to the next; ``draw`` is from [0, 1)."""
        try:
            grown_s = self.backoff_s * self.factor**request.retry_index
        except OverflowError:
            grown_s = self.cap_s
        jitter = 1.0 + self.jitter_fraction * (2.0 * draw - 1.0)
        pause_s = min(self.cap_s, grown_s) * jitter
        return max(pause_s, outcome.retry_after_s) if self.honours_retry_after else pause_s


OFFICIAL_CLIENTS: Mapping[str, Retries] = MappingProxyType(
    {"openai": Retries(max_requests=3, backoff_s=0.4375, cap_s=7.0, jitter_fraction=1 / 7)}
)
"""What clients do that others have written, unless they are told otherwise.

``openai``: two retries after pauses of 0.5 s, then twice as long, at most 8 s, times a draw from [0.75, 1): the jitter
here is to both sides, of pauses an eighth shorter. It waits for ``Retry-After`` and heeds ``x-should-retry``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedRequest:
    """A turn that was never sent, because an earlier turn of its session failed: one row of the run's table.

    Args:
        logical request: Its number.
        session: Number of the session's first logical request.
        traffic_class: Index of its class.
        scheduled_s: When it would have been sent, had all turns after the failed one been answered at once.
        abandoned_s: When the session ended.
        prompt_tokens: Length of its prompt.
    """

    logical_request: int
    session: int
    traffic_class: int
    scheduled_s: float
    abandoned_s: float
    prompt_tokens: int


@dataclass(slots=True)
class _OpenStep:
    """Turns of a conversation that were sent at the same time; the next ones wait for all of them."""

    conversation: Conversation
    turns: range
    num_open: int
    is_answered: bool = False


class Clients:
    """All clients of a run: a :class:`cluster.sim.traffic.Traffic` over a workload.

    Holds conversations that are under way and nothing else: a request says all that its retry needs.

    Args:
        workload: What users want.
        seeds: The run's random streams.
        retries: What clients do after a refusal or a failure.

    Attributes:
        abandoned: Turns that were never sent because an earlier one failed for good.
        turns_after_end: Turns that were not sent because they would have come after the workload's end; nobody
            offered them, so they are no misses.
    """

    def __init__(self, workload: Plans, seeds: Seeds, retries: Retries | None = None) -> None:
        self._workload = workload
        self._seeds = seeds
        self._retries = retries or Retries()
        self._jitter_key = seeds.stream("retries").getrandbits(64)
        self._steps: dict[int, _OpenStep] = {}  # by the conversation's number
        self.abandoned: list[AbandonedRequest] = []
        self.turns_after_end = 0

    @property
    def num_sessions(self) -> int:
        """Conversations under way."""
        return len(self._steps)

    def arrivals(self) -> Iterator[Arrival]:
        for arrival, session in self._workload.plan(self._seeds):
            if session is not None:
                self._open(arrival.request.session, session, 0)
            yield Arrival(arrival.at_s, self._retries.identified(arrival.request))

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        is_answered = outcome.kind is OutcomeKind.COMPLETED
        if not is_answered and self._retries.wants_retry(request, outcome):
            return (self._retry(request, outcome, now_s),)
        step = self._steps.get(request.session)
        if step is None:
            return ()
        step.num_open -= 1
        step.is_answered = step.is_answered or is_answered
        if step.num_open:
            return ()
        del self._steps[request.session]
        if step.is_answered:
            return self._next_step(request, step, now_s)
        self._give_up(request, step, now_s)
        return ()

    def _open(self, number: int, conversation: Conversation, first_turn: int) -> range:
        turns = conversation.step_of(first_turn)
        self._steps[number] = _OpenStep(conversation, turns, len(turns))
        return turns

    def _retry(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Arrival:
        again = self._retries.repeated(request)
        draw = uniform_of(self._jitter_key, again.logical_request, again.retry_index)
        return Arrival(now_s + self._retries.pause_s(request, outcome, draw), again)

    def _next_step(self, request: PlannedRequest, ended: _OpenStep, now_s: float) -> Sequence[Arrival]:
        conversation, first_turn = ended.conversation, ended.turns.stop
        if first_turn == len(conversation.turns):
            return ()
        at_s = now_s + conversation.turns[first_turn].think_s
        if at_s >= self._workload.duration_s:
            self.turns_after_end += len(conversation.turns) - first_turn
            return ()
        turns = self._open(request.session, conversation, first_turn)
        following = (_turn(request, conversation, index, at_s) for index in turns)
        return tuple(Arrival(at_s, self._retries.identified(each)) for each in following)

    def _give_up(self, request: PlannedRequest, failed: _OpenStep, now_s: float) -> None:
        conversation, at_s = failed.conversation, now_s
        for index in range(failed.turns.stop, len(conversation.turns)):
            turn = conversation.turns[index]
            at_s += turn.think_s if conversation.step_of(index).start == index else 0.0
            if at_s >= self._workload.duration_s:
                self.turns_after_end += 1
                continue
            self.abandoned.append(
                AbandonedRequest(
                    logical_request=request.session + index,
                    session=request.session,
                    traffic_class=request.traffic_class,
                    scheduled_s=at_s,
                    abandoned_s=now_s,
                    prompt_tokens=turn.prompt_tokens,
                )
            )


def _turn(opening: PlannedRequest, conversation: Conversation, index: int, at_s: float) -> PlannedRequest:
    """The first request of a turn, by any request of its conversation."""
    turn, logical_request = conversation.turns[index], opening.session + index
    return msgspec.structs.replace(
        opening,
        request_id=request_id(logical_request, 0),
        logical_request=logical_request,
        retry_index=0,
        retry_count=0,
        scheduled_s=at_s,
        prompt_tokens=turn.prompt_tokens,
        output_tokens=turn.output_tokens,
        max_output_tokens=turn.max_output_tokens,
        content=conversation.content_of(index),
    )
