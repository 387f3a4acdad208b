"""Sheddable requests are preempted for those that wait, keep what they have emitted, and are resumed later."""

from typing import Any

import pytest

from policies import PolicyChoice, Reason, Role
from policies.errors import PolicyMisbehaved
from policies.signals import Admitted, Answering, Ended, Started
from policies.views import Priority
from routing import DispatcherParams, Preemption, Send, SetTimer, Truncate
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import Dialogue, completed, failed, refused
from tests.tables import for_each

PRIORITY = PolicyChoice(name="priority")
SHEDDABLE, CRITICAL = Priority.SHEDDABLE, Priority.CRITICAL


def newest_sheddable(**params: Any) -> PolicyChoice:
    return PolicyChoice(name="newest_sheddable", params=params)


def a_talk(planner: str = "always_unified", *, params: DispatcherParams | None = None, **policy: Any) -> Dialogue:
    return Dialogue(
        planner=planner, queueing=PRIORITY, preemption=newest_sheddable(**policy), params=params, rates=ServiceRates()
    )


def a_full_replica(slots: int = 1, **policy: Any) -> Dialogue:
    """One replica whose slots are all taken by sheddable requests that are answering."""
    talk = a_talk(**policy).replicas(Role.UNIFIED, "a", slots=slots)
    for number in range(slots):
        talk.at(float(number)).arrives(f"bulk{number}", priority=SHEDDABLE)
        talk.first_token(f"bulk{number}.0")
    return talk


def test_a_request_that_finds_no_room_gets_the_place_of_a_sheddable_one() -> None:
    talk = a_full_replica()

    talk.arrives("q")
    assert talk.cancels == ["bulk0.0"]
    assert talk.sends == []

    talk.stops("bulk0.0", output_tokens=7)
    assert talk.sends == ["q.0 unified to a"]
    assert talk.preemptions == [Preemption(request_id="bulk0", attempt_id="bulk0.0", output_tokens=7)]
    assert talk.responses == {}


def test_a_stopped_request_goes_on_from_its_prompt_and_what_it_has_given_out() -> None:
    talk = a_full_replica()
    talk.arrives("q", max_output_tokens=20)
    talk.stops("bulk0.0", output_tokens=7)
    talk.finishes("q.0", output_tokens=20)

    sent = [each for each in talk.answer if isinstance(each, Send)]
    assert [(each.attempt_id, each.prefill_tokens, each.kv_tokens) for each in sent] == [("bulk0.1", 107, 150)]
    talk.first_token("bulk0.1")
    assert talk.commits == ["bulk0.1"]
    talk.finishes("bulk0.1", output_tokens=43)
    assert talk.responses == {"bulk0": completed()}
    assert talk.is_over


def test_policies_hear_once_of_a_request_that_was_stopped_in_the_middle() -> None:
    talk = a_full_replica()
    talk.arrives("q")
    talk.stops("bulk0.0", output_tokens=7)
    talk.finishes("q.0")
    talk.first_token("bulk0.1")
    talk.finishes("bulk0.1", output_tokens=43)

    of_bulk = [each for each in talk.request_signals if each.request.request_id == "bulk0"]
    assert [type(each) for each in of_bulk] == [Admitted, Started, Answering, Ended]
    ended = of_bulk[-1]
    assert isinstance(ended, Ended)
    assert (ended.is_completed, ended.output_tokens, ended.request.prompt_tokens) == (True, 50, 100)
    assert talk.signal_names[:3] == ["Dispatched bulk0.0", "FirstToken bulk0.0", "Cancelled bulk0.0"]


def test_the_one_that_was_sent_last_gives_way_first() -> None:
    talk = a_full_replica(slots=3)

    talk.arrives("q1")
    assert talk.cancels == ["bulk2.0"]
    talk.arrives("q2")
    assert talk.cancels == ["bulk1.0"]


def test_nobody_is_stopped_twice_for_the_same_request() -> None:
    talk = a_full_replica(slots=3)
    talk.arrives("q")

    talk.reports("a", 100)
    assert talk.cancels == []
    talk.arrives("more", priority=SHEDDABLE)
    assert talk.cancels == []


def test_a_sheddable_request_that_waits_stops_nobody() -> None:
    talk = a_full_replica()

    talk.arrives("more", priority=SHEDDABLE)

    assert talk.cancels == []


def test_only_sheddable_requests_are_stopped() -> None:
    talk = a_talk().replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("standard")

    talk.arrives("q", priority=CRITICAL)

    assert talk.cancels == []


def test_nobody_is_stopped_while_there_is_room() -> None:
    talk = a_full_replica(slots=2).replicas(Role.UNIFIED, "a", "b", slots=2)

    talk.arrives("q")

    assert talk.sends == ["q.0 unified to b"]
    assert talk.cancels == []


def test_a_request_gives_way_only_so_often() -> None:
    talk = a_full_replica(most_preemptions=1)
    talk.arrives("q1")
    talk.stops("bulk0.0", output_tokens=7)
    talk.finishes("q1.0")
    talk.first_token("bulk0.1")

    talk.arrives("q2")

    assert talk.cancels == []


def test_the_floor_bounds_what_is_taken_from_sheddable_requests() -> None:
    talk = a_full_replica(slots=4, floor_fraction=0.5)

    stopped = []
    for number in range(4):
        talk.arrives(f"q{number}")
        stopped += talk.cancels
    assert stopped == ["bulk3.0", "bulk2.0"]

    talk.stops("bulk3.0", output_tokens=1)
    talk.stops("bulk2.0", output_tokens=1)
    assert talk.cancels == []
    talk.finishes("q0.0")
    assert talk.cancels == []
    assert talk.sends == ["q2.0 unified to a"]


def test_a_decode_is_not_stopped_while_its_kv_may_be_on_its_way() -> None:
    talk = a_talk("always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", slots=1)
    talk.arrives("bulk", priority=SHEDDABLE)
    talk.finishes("bulk.0", output_tokens=1)
    talk.arrives("q")
    talk.finishes("q.0", output_tokens=1)
    assert talk.cancels == []

    talk.first_token("bulk.1")
    talk.reports("d", 0)
    assert talk.cancels == []
    talk.arrives("another")
    talk.finishes("another.0", output_tokens=1)
    assert talk.cancels == ["bulk.1"]


def test_a_decode_that_was_stopped_begins_again_with_a_prefill() -> None:
    talk = a_talk("always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", slots=1)
    talk.arrives("bulk", priority=SHEDDABLE)
    talk.finishes("bulk.0", output_tokens=1)
    talk.first_token("bulk.1")
    talk.arrives("q")
    talk.finishes("q.0", output_tokens=1)
    assert talk.cancels == ["bulk.1"]

    talk.stops("bulk.1", output_tokens=9)

    assert talk.sends == ["q.1 decode to d from q.0", "bulk.2 prefill to p"]


def test_an_attempt_without_a_first_token_starts_over_with_nothing_lost() -> None:
    talk = a_talk().replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("bulk", priority=SHEDDABLE)
    talk.arrives("q")
    assert talk.cancels == ["bulk.0"]
    talk.stops("bulk.0")
    talk.finishes("q.0")

    sent = [each for each in talk.answer if isinstance(each, Send)]

    assert [(each.attempt_id, each.prefill_tokens) for each in sent] == [("bulk.1", 100)]


def test_what_cannot_go_on_is_not_stopped_once_it_answers() -> None:
    talk = a_talk().replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("bulk", priority=SHEDDABLE, is_resumable=False)
    talk.first_token("bulk.0")

    talk.arrives("q")

    assert talk.cancels == []


def test_an_attempt_that_finishes_before_it_is_stopped_has_answered() -> None:
    talk = a_full_replica()
    talk.arrives("q")

    talk.finishes("bulk0.0")

    assert talk.responses == {"bulk0": completed()}
    assert talk.sends == ["q.0 unified to a"]
    talk.finishes("q.0")
    assert talk.is_over


def test_a_client_that_goes_while_its_request_is_being_stopped_ends_it() -> None:
    talk = a_full_replica()
    talk.arrives("q")
    talk.client_goes("bulk0")
    assert talk.cancels == [], "it is asked once"

    talk.stops("bulk0.0", output_tokens=7)

    assert talk.preemptions == []
    assert talk.sends == ["q.0 unified to a"]
    talk.finishes("q.0")
    assert talk.is_over


def test_a_deadline_that_comes_while_a_stopped_request_waits_breaks_its_answer_off() -> None:
    talk = a_full_replica()
    talk.arrives("q")
    talk.stops("bulk0.0", output_tokens=7)

    talk.fires("bulk0:deadline")

    assert talk.responses == {"bulk0": failed(Reason.DEADLINE_EXCEEDED)}


def test_a_request_that_was_stopped_before_its_first_token_is_refused_at_its_deadline() -> None:
    talk = a_talk().replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("bulk", priority=SHEDDABLE)
    talk.arrives("q", budget_s=100.0)
    talk.stops("bulk.0")

    talk.fires("bulk:deadline")

    assert talk.responses == {"bulk": refused(Reason.DEADLINE_EXCEEDED, to="bulk")}


def test_what_is_lost_after_it_went_on_is_tried_elsewhere_and_then_breaks_off() -> None:
    talk = a_full_replica()
    talk.arrives("q")
    talk.stops("bulk0.0", output_tokens=7)
    talk.finishes("q.0")
    talk.replicas(Role.UNIFIED, "a", "b", slots=1)

    talk.fails("bulk0.1", Reason.REPLICA_LOST)
    assert talk.sends == ["bulk0.2 unified to b"]
    talk.fails("bulk0.2", Reason.INVALID_REQUEST)
    assert talk.responses == {"bulk0": failed(Reason.INVALID_REQUEST)}
    assert talk.is_over


def test_attempts_before_a_preemption_do_not_count_against_the_limit() -> None:
    talk = a_talk(params=DispatcherParams(max_attempts=2, quarantine_s=0.0)).replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("bulk", priority=SHEDDABLE)
    talk.first_token("bulk.0")
    talk.arrives("q")
    talk.stops("bulk.0", output_tokens=7)
    talk.finishes("q.0")
    talk.replicas(Role.UNIFIED, "a", "b", slots=1)

    talk.fails("bulk.1", Reason.REPLICA_LOST)

    assert talk.sends == ["bulk.2 unified to b"]


def test_a_window_that_a_long_prompt_fills_is_made_free() -> None:
    params = DispatcherParams(prefill_window_tokens=1000)
    talk = a_talk(params=params).replicas(Role.UNIFIED, "a")
    talk.arrives("answering", priority=SHEDDABLE)
    talk.first_token("answering.0")
    talk.arrives("long", priority=SHEDDABLE, prompt_tokens=5000)

    talk.arrives("q")

    assert talk.cancels == ["long.0"], "the one that is answering holds no prompt tokens"


def boxed() -> Dialogue:
    """A replica with one slot, and a sheddable request of 5 s that is answering."""
    box = PolicyChoice(name="tests.policy_doubles:DegradeTo", params={"output_time_limit_s": 5.0})
    talk = Dialogue(queueing=PRIORITY, preemption=newest_sheddable(), degradation=box)
    talk.replicas(Role.UNIFIED, "a", slots=1).arrives("bulk", priority=SHEDDABLE)
    talk.first_token("bulk.0")
    return talk


def test_an_answer_whose_time_was_up_while_it_waited_ends_when_it_goes_on() -> None:
    talk = boxed()
    talk.arrives("q", priority=CRITICAL)
    talk.stops("bulk.0", output_tokens=7)
    talk.fires("bulk:output_time_limit")
    assert talk.answer == []
    talk.finishes("q.0")

    talk.first_token("bulk.1")
    assert [each for each in talk.answer if isinstance(each, Truncate)] == [Truncate(attempt_id="bulk.1")]
    talk.finishes("bulk.1", output_tokens=1)
    assert talk.responses == {"bulk": completed()}
    assert talk.is_over


def test_an_answer_that_goes_on_in_its_time_has_one_timer() -> None:
    talk = boxed()
    talk.arrives("q", priority=CRITICAL)
    talk.stops("bulk.0", output_tokens=7)
    talk.finishes("q.0")
    talk.first_token("bulk.1")

    assert [each for each in talk.answer if isinstance(each, SetTimer)] == []
    talk.finishes("bulk.1")
    assert "bulk:output_time_limit" not in talk.timers


def test_an_answer_that_is_being_ended_is_not_stopped() -> None:
    talk = boxed()
    talk.fires("bulk:output_time_limit")

    talk.arrives("q", priority=CRITICAL)

    assert talk.cancels == []
    talk.finishes("bulk.0", output_tokens=9)
    assert talk.sends == ["q.0 unified to a"]


@for_each("fault", ["twice", "too many"])
def test_a_policy_that_names_what_cannot_be_stopped_has_misbehaved(fault: str) -> None:
    name = {"twice": "tests.policy_doubles:NamesOneTwice", "too many": "tests.policy_doubles:NamesEverybody"}[fault]
    talk = Dialogue(preemption=PolicyChoice(name=name), queueing=PRIORITY).replicas(Role.UNIFIED, "a", slots=2)
    talk.arrives("bulk0", priority=SHEDDABLE)
    talk.arrives("bulk1", priority=SHEDDABLE)

    with pytest.raises(PolicyMisbehaved, match="at most 1 of slots"):
        talk.arrives("q")
