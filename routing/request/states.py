"""The states of a request, of its answer and of an attempt, and every way from one to another.

Each machine is one table. A step that its table does not have is a bug, never an outcome: it raises
``InvariantViolation``. ``docs/explanation/architecture.md`` draws the tables.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NoReturn

from policies.errors import InvariantViolation


class RequestState(StrEnum):
    """Where a request is.

    ``ADMITTED``: let in, and in no queue yet. ``WAITING``: in the queue of its stage. ``RUNNING``: an attempt of its
    stage is open, and what becomes of that decides what is next. ``FOLLOWING``: it waits, in no queue, until another
    one with its prompt has got further. ``BACKING_OFF``: it was lost, and a timer enqueues it
    again. ``ANSWERED``: its client has the verdict; attempts may still have to end.
    """

    ADMITTED = "admitted"
    WAITING = "waiting"
    RUNNING = "running"
    FOLLOWING = "following"
    BACKING_OFF = "backing off"
    ANSWERED = "answered"


class RequestStep(StrEnum):
    """What happens to a request."""

    ENQUEUE = "enqueue"
    SEND = "send"
    FOLLOW = "follow"
    BACK_OFF = "back off"
    ANSWER = "answer"


class AnswerState(StrEnum):
    """How much of its answer a client has, or is about to get.

    ``NONE``: nothing, so that the request can still be refused. ``BEGUN``: a part. ``OVERDUE``: a part, and the time
    for the rest is up while no attempt gives it. ``TRUNCATED``: all that it will get.
    """

    NONE = "none"
    BEGUN = "begun"
    OVERDUE = "overdue"
    TRUNCATED = "truncated"


class AnswerStep(StrEnum):
    """What happens to an answer: ``TIME_UP`` finds no attempt that gives it, ``TRUNCATE`` finds one."""

    COMMIT = "commit"
    TIME_UP = "time up"
    TRUNCATE = "truncate"


class AttemptState(StrEnum):
    """Where an attempt is.

    ``SENT``: without a first token. ``STREAMING``: with one. ``PREEMPTING``, ``PREEMPTING_STREAMING``: asked to end
    because its slot is wanted; what it says until then counts, and its request is resumed. ``STALLED``: asked to end
    because its replica stands still, or the one that its KV comes from; its request is recovered as after a loss.
    ``SUPERSEDING``: asked to end because another attempt has won. ``CANCELLING``: asked to end because it is not
    needed. ``CLOSED``: its slot is given back.
    """

    SENT = "sent"
    STREAMING = "streaming"
    PREEMPTING = "preempting"
    PREEMPTING_STREAMING = "preempting, streaming"
    STALLED = "stalled"
    SUPERSEDING = "superseding"
    CANCELLING = "cancelling"
    CLOSED = "closed"


class AttemptStep(StrEnum):
    """What happens to an attempt."""

    FIRST_TOKEN = "first token"
    PREEMPT = "preempt"
    STALL = "stall"
    SUPERSEDE = "supersede"
    CANCEL = "cancel"
    CLOSE = "close"


REQUEST_TRANSITIONS: Mapping[tuple[RequestState, RequestStep], RequestState] = MappingProxyType(
    {
        (RequestState.ADMITTED, RequestStep.ENQUEUE): RequestState.WAITING,
        (RequestState.WAITING, RequestStep.SEND): RequestState.RUNNING,
        (RequestState.RUNNING, RequestStep.SEND): RequestState.RUNNING,
        (RequestState.RUNNING, RequestStep.ENQUEUE): RequestState.WAITING,
        (RequestState.RUNNING, RequestStep.BACK_OFF): RequestState.BACKING_OFF,
        (RequestState.BACKING_OFF, RequestStep.ENQUEUE): RequestState.WAITING,
        (RequestState.ADMITTED, RequestStep.FOLLOW): RequestState.FOLLOWING,
        (RequestState.WAITING, RequestStep.FOLLOW): RequestState.FOLLOWING,
        (RequestState.RUNNING, RequestStep.FOLLOW): RequestState.FOLLOWING,
        (RequestState.BACKING_OFF, RequestStep.FOLLOW): RequestState.FOLLOWING,
        (RequestState.FOLLOWING, RequestStep.FOLLOW): RequestState.FOLLOWING,
        (RequestState.FOLLOWING, RequestStep.ENQUEUE): RequestState.WAITING,
        (RequestState.WAITING, RequestStep.ANSWER): RequestState.ANSWERED,
        (RequestState.RUNNING, RequestStep.ANSWER): RequestState.ANSWERED,
        (RequestState.BACKING_OFF, RequestStep.ANSWER): RequestState.ANSWERED,
        (RequestState.FOLLOWING, RequestStep.ANSWER): RequestState.ANSWERED,
    }
)
ANSWER_TRANSITIONS: Mapping[tuple[AnswerState, AnswerStep], AnswerState] = MappingProxyType(
    {
        (AnswerState.NONE, AnswerStep.COMMIT): AnswerState.BEGUN,
        (AnswerState.BEGUN, AnswerStep.COMMIT): AnswerState.BEGUN,
        (AnswerState.BEGUN, AnswerStep.TIME_UP): AnswerState.OVERDUE,
        (AnswerState.BEGUN, AnswerStep.TRUNCATE): AnswerState.TRUNCATED,
        (AnswerState.OVERDUE, AnswerStep.COMMIT): AnswerState.OVERDUE,
        (AnswerState.OVERDUE, AnswerStep.TIME_UP): AnswerState.OVERDUE,
        (AnswerState.OVERDUE, AnswerStep.TRUNCATE): AnswerState.TRUNCATED,
    }
)
ATTEMPT_TRANSITIONS: Mapping[tuple[AttemptState, AttemptStep], AttemptState] = MappingProxyType(
    {
        (AttemptState.SENT, AttemptStep.FIRST_TOKEN): AttemptState.STREAMING,
        (AttemptState.SENT, AttemptStep.PREEMPT): AttemptState.PREEMPTING,
        (AttemptState.SENT, AttemptStep.STALL): AttemptState.STALLED,
        (AttemptState.SENT, AttemptStep.SUPERSEDE): AttemptState.SUPERSEDING,
        (AttemptState.SENT, AttemptStep.CANCEL): AttemptState.CANCELLING,
        (AttemptState.SENT, AttemptStep.CLOSE): AttemptState.CLOSED,
        (AttemptState.STREAMING, AttemptStep.PREEMPT): AttemptState.PREEMPTING_STREAMING,
        (AttemptState.STREAMING, AttemptStep.STALL): AttemptState.STALLED,
        (AttemptState.STREAMING, AttemptStep.SUPERSEDE): AttemptState.SUPERSEDING,
        (AttemptState.STREAMING, AttemptStep.CANCEL): AttemptState.CANCELLING,
        (AttemptState.STREAMING, AttemptStep.CLOSE): AttemptState.CLOSED,
        (AttemptState.PREEMPTING, AttemptStep.FIRST_TOKEN): AttemptState.PREEMPTING_STREAMING,
        (AttemptState.PREEMPTING, AttemptStep.CANCEL): AttemptState.CANCELLING,
        (AttemptState.PREEMPTING, AttemptStep.CLOSE): AttemptState.CLOSED,
        (AttemptState.PREEMPTING_STREAMING, AttemptStep.CANCEL): AttemptState.CANCELLING,
        (AttemptState.PREEMPTING_STREAMING, AttemptStep.CLOSE): AttemptState.CLOSED,
        (AttemptState.STALLED, AttemptStep.CANCEL): AttemptState.CANCELLING,
        (AttemptState.STALLED, AttemptStep.CLOSE): AttemptState.CLOSED,
        (AttemptState.SUPERSEDING, AttemptStep.CLOSE): AttemptState.CLOSED,
        (AttemptState.CANCELLING, AttemptStep.CLOSE): AttemptState.CLOSED,
    }
)

UNDER_WAY = frozenset({AttemptState.SENT, AttemptState.STREAMING})
"""The attempt's end has not been asked for."""
PREEMPTED = frozenset({AttemptState.PREEMPTING, AttemptState.PREEMPTING_STREAMING})
"""Its request is resumed when it has ended."""
WITHOUT_TOKEN = frozenset({AttemptState.SENT, AttemptState.PREEMPTING})
"""Its first token would count."""
GIVEN_UP = frozenset({AttemptState.SUPERSEDING, AttemptState.CANCELLING})
"""What it says does not count any more."""


def refuse(subject: str, state: StrEnum, step: StrEnum) -> NoReturn:
    """A table has no such step from that state.

    Raises:
        InvariantViolation: Always.
    """
    raise InvariantViolation(f"{subject} is {state.value}: it can't {step.value}")
