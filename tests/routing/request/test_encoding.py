"""Events and effects can be written down and read back."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Cutoffs, LoadReport, Priority, Reason, RequestView, Role
from policies.coordination import ControlLaw
from routing import (
    Accepted,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    AttemptYielded,
    Cancel,
    CancelTimer,
    Classification,
    ClientGone,
    Commit,
    Cut,
    CutoffsReceived,
    Degraded,
    Demotion,
    Effect,
    Event,
    FirstToken,
    FleetChanged,
    LoadDue,
    Outcome,
    OutcomeKind,
    Outgrew,
    Placement,
    PushLoad,
    Reconfigured,
    Record,
    ReplicaInfo,
    ReplicaReported,
    Respond,
    Send,
    SetTimer,
    TimerFired,
)
from tests.policy_doubles import a_request

INFOS = tuple(
    ReplicaInfo(replica_id=each, pool="decode", role=Role.DECODE, max_ongoing_requests=160, kv_capacity_tokens=10_000)
    for each in "ab"
)
CUTOFFS = Cutoffs(epoch=2, version=7, valid_for_s=0.75, salt=3, by_class=(0.0, 0.25, 0.98), tickets=(2**64 - 1, 0))
LOAD = LoadReport(
    interval_s=0.25,
    demand_s=(0.0, 2.5, 1 / 3),
    first_s=(0.0, 0.5, 0.0),
    num_first=3,
    later_s=(0.0, 1.5, 0.0),
    started_s=1.25,
    saturated_fraction=0.9,
    wait_ratio=1.5,
    num_replicas=4,
    law=ControlLaw(period_s=0.25, target_s=0.5, proportional_gain=0.1, integral_gain_per_s=0.01, salt_period_s=1800.0),
    known=CUTOFFS,
    tickets=(5,),
)
EVENTS: tuple[Event, ...] = (
    Arrived(request=a_request()),
    Accepted(attempt_id="q.0", replica_id="a"),
    FirstToken(attempt_id="q.0"),
    Outgrew(attempt_id="q.0", output_tokens=210),
    AttemptFinished(attempt_id="q.0", output_tokens=50),
    *(AttemptFailed(attempt_id="q.0", reason=reason) for reason in Reason),
    AttemptYielded(attempt_id="q.1"),
    ClientGone(request_id="q"),
    TimerFired(token="q:deadline"),
    FleetChanged(pool="decode", role=Role.DECODE, replicas=INFOS),
    FleetChanged(pool="unified", role=Role.UNIFIED, replicas=()),
    Reconfigured(spec="{}"),
    LoadDue(),
    CutoffsReceived(cutoffs=CUTOFFS),
    ReplicaReported(replica_id="a", prefill_tokens=200, kv_tokens=500, kv_cache_usage=0.1),
)
REFUSED = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.SHED, retry_after_s=2.5, may_retry=False)
DEMOTION = Demotion(request_id="q", attempt_id="q.0", from_lane="quick", to_lane="slow", output_tokens=210)
DEGRADED = Degraded(
    request_id="q",
    priority=Priority.STANDARD,
    max_output_tokens=64,
    asked_output_tokens=500,
    time_box_s=2.5,
    lane="small",
)
PLACEMENT = Placement(request_id="q", attempt_id="q.0", replica_id="a", num_candidates=3, is_hedge=True)
EFFECTS: tuple[Effect, ...] = (
    Send(
        attempt_id="q.0",
        request_id="q",
        stage=Role.PREFILL,
        replica_id="a",
        pool="x",
        prefill_tokens=7,
        kv_tokens=9,
        kv_from=None,
    ),
    Send(
        attempt_id="q.1",
        request_id="q",
        stage=Role.DECODE,
        replica_id="b",
        pool="x",
        prefill_tokens=7,
        kv_tokens=9,
        kv_from="q.0",
    ),
    Cancel(attempt_id="q.0"),
    Cut(attempt_id="q.0"),
    Send(
        attempt_id="q.2",
        request_id="q",
        stage=Role.UNIFIED,
        replica_id="b",
        pool="x",
        prefill_tokens=7,
        kv_tokens=9,
        kv_from=None,
        tied_to="q.1",
    ),
    Commit(request_id="q", attempt_id="q.0"),
    SetTimer(token="q:deadline", at_s=1e9 + 1 / 3),
    CancelTimer(token="q:deadline"),
    PushLoad(report=LOAD),
    *(Respond(request_id="q", outcome=Outcome(kind=kind)) for kind in OutcomeKind),
    Respond(request_id="q", outcome=REFUSED),
    Record(decision=PLACEMENT),
    Record(decision=DEMOTION),
    Record(decision=DEGRADED),
    Record(decision=Classification(request_id="q", lane="quick", uncached_tokens=90, output_tokens=50)),
)
CASES = [(each, Event) for each in EVENTS] + [(each, Effect) for each in EFFECTS]

each_format = pytest.mark.parametrize("form", [msgspec.msgpack, msgspec.json], ids=["msgpack", "json"])


def assert_it_comes_back(form: Any, value: Event | Effect, union: Any) -> None:
    """Equal, of the same type, and encoded again to the same bytes."""
    encoded = form.encode(value)
    decoded = form.decode(encoded, type=union)

    assert type(decoded) is type(value)
    assert decoded == value
    assert form.encode(decoded) == encoded


@pytest.mark.parametrize(("union", "examples"), [(Event, EVENTS), (Effect, EFFECTS)], ids=["events", "effects"])
def test_there_is_an_example_of_each(union: Any, examples: tuple[object, ...]) -> None:
    assert {type(each) for each in examples} == set(get_args(union))


@each_format
@pytest.mark.parametrize(("value", "union"), CASES, ids=[repr(value)[:60] for value, _ in CASES])
def test_it_comes_back_as_it_was(form: Any, value: Event | Effect, union: Any) -> None:
    assert_it_comes_back(form, value, union)


@each_format
@given(
    request_id=st.text(),
    tokens=st.integers(min_value=0, max_value=2**63 - 1),
    time_s=st.floats(allow_nan=False, allow_infinity=False),
)
def test_text_and_numbers_come_back_to_the_last_digit(form: Any, request_id: str, tokens: int, time_s: float) -> None:
    request = RequestView(
        request_id=request_id, prompt_tokens=tokens, max_output_tokens=tokens, arrival_s=time_s, deadline_s=-time_s
    )

    assert_it_comes_back(form, Arrived(request=request), Event)
    assert_it_comes_back(form, SetTimer(token=request_id, at_s=time_s), Effect)


@pytest.mark.parametrize(("value", "union"), CASES, ids=[repr(value)[:60] for value, _ in CASES])
def test_nobody_can_write_to_it(value: Any, union: Any) -> None:
    with pytest.raises(AttributeError):
        setattr(value, next(iter(value.__struct_fields__), "anything"), None)


@each_format
def test_it_is_written_down_under_its_name(form: Any) -> None:
    assert form.decode(form.encode(FirstToken(attempt_id="q.0"))) == {"type": "FirstToken", "attempt_id": "q.0"}
