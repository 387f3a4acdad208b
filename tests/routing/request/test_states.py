"""Every state meets every step: what the tables have is done, and everything else is refused as the bug it would be."""

import itertools
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import pytest
from msgspec.structs import replace

from policies import InvariantViolation
from routing.request.request import Attempt, Request
from routing.request.stages import UNIFIED
from routing.request.states import (
    ANSWER_TRANSITIONS,
    ATTEMPT_TRANSITIONS,
    REQUEST_TRANSITIONS,
    AnswerState,
    AnswerStep,
    AttemptState,
    AttemptStep,
    RequestState,
    RequestStep,
)
from tests.policy_doubles import a_request
from tests.tables import for_each

MACHINES: list[tuple[str, Any, type[StrEnum], type[StrEnum], StrEnum]] = [
    ("request", REQUEST_TRANSITIONS, RequestState, RequestStep, RequestState.ADMITTED),
    ("answer", ANSWER_TRANSITIONS, AnswerState, AnswerStep, AnswerState.NONE),
    ("attempt", ATTEMPT_TRANSITIONS, AttemptState, AttemptStep, AttemptState.SENT),
]
machines = for_each(("name", "transitions", "states", "steps", "first"), MACHINES, ids=[each[0] for each in MACHINES])


def one_in(state: StrEnum) -> Request | Attempt:
    """A request or an attempt that is in a state, or has its answer in one."""
    request = Request.begin(a_request("q"), UNIFIED)
    if isinstance(state, AttemptState):
        request.enqueue()
        return replace(request.send("a", 0, 0.0), state=state)
    return replace(request, **{"answer" if isinstance(state, AnswerState) else "state": state})


def drawn(transitions: Mapping[tuple[StrEnum, StrEnum], StrEnum], states: Iterable[StrEnum], steps: Any) -> str:
    """The table as text: a row for each state, a column for each step."""
    rows = [["", *(step.value for step in steps)]]
    for state in states:
        cells = (transitions.get((state, step)) for step in steps)
        rows.append([state.value, *("-" if cell is None else cell.value for cell in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


@machines
def test_every_state_meets_every_step(
    name: str, transitions: Any, states: type[StrEnum], steps: type[StrEnum], first: StrEnum
) -> None:
    print(f"\n{name}\n{drawn(transitions, states, steps)}")
    for state, step in itertools.product(states, steps):
        subject = one_in(state)
        take, now = (
            getattr(subject, f"_step{'_answer' * (name == 'answer')}"),
            "answer" if name == "answer" else "state",
        )
        if (state, step) in transitions:
            take(step)
            assert getattr(subject, now) is transitions[state, step]
        else:
            with pytest.raises(InvariantViolation, match=f"q.* is {state.value}: it can't {step.value}"):
                take(step)
            assert getattr(subject, now) is state


@machines
def test_every_state_is_reached_and_every_step_is_taken(
    name: str, transitions: Any, states: type[StrEnum], steps: type[StrEnum], first: StrEnum
) -> None:
    reached, before = {first}, set[StrEnum]()
    while reached != before:
        before, reached = reached, reached | {after for (state, _), after in transitions.items() if state in reached}

    assert reached == set(states)
    assert {step for _, step in transitions} == set(steps)


def test_what_has_ended_stays_ended() -> None:
    left = {state for state, _ in [*REQUEST_TRANSITIONS, *ANSWER_TRANSITIONS, *ATTEMPT_TRANSITIONS]}

    assert left.isdisjoint({RequestState.ANSWERED, AnswerState.TRUNCATED, AttemptState.CLOSED})
