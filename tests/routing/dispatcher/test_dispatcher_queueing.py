"""Late binding: requests wait in the gateway until a replica has room, and only then is one picked."""

from dataclasses import replace

import pytest

from policies import PolicyChoice, Reason, Role
from policies.queueing import Edf
from policies.views import Priority
from routing import DispatcherParams, reconfigured
from routing.request.refusal import JITTER_FRACTION
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import Dialogue, completed, refused


def test_a_request_waits_when_every_replica_is_full_and_goes_when_a_slot_frees() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")

    talk.arrives("q3")
    assert talk.sends == []
    assert talk.dispatcher.num_waiting_requests == 1
    talk.first_token("q2.0")
    talk.finishes("q2.0")
    assert talk.sends == ["q3.0 unified to b"]
    assert talk.dispatcher.num_waiting_requests == 0


def test_waiting_requests_go_in_order() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", slots=1)
    for request_id in ("q1", "q2", "q3"):
        talk.arrives(request_id)

    talk.finishes("q1.0")
    assert talk.sends == ["q2.0 unified to a"]
    talk.finishes("q2.0")
    assert talk.sends == ["q3.0 unified to a"]


def test_a_decode_waits_for_its_own_role() -> None:
    talk = Dialogue(planner="always_disaggregated")
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")
    talk.finishes("q1.0", output_tokens=1)

    talk.finishes("q2.0", output_tokens=1)
    assert talk.sends == []
    talk.finishes("q1.1")
    assert talk.sends == ["q2.1 decode to d from q2.0"]


def test_waiting_requests_go_to_a_replica_that_joins() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", slots=1)
    for request_id in ("q1", "q2", "q3", "q4"):
        talk.arrives(request_id)

    talk.replicas(Role.UNIFIED, "a", "b", "c", slots=1)

    assert talk.sends == ["q2.0 unified to b", "q3.0 unified to c"]
    assert talk.dispatcher.num_waiting_requests == 1


def test_waiting_requests_are_refused_when_the_last_replica_leaves() -> None:
    talk = Dialogue(params=DispatcherParams(waiting_room_s=0)).replicas(Role.UNIFIED, "a", slots=1)
    for request_id in ("q1", "q2", "q3"):
        talk.arrives(request_id)

    talk.replicas(Role.UNIFIED)

    assert talk.responses == {name: refused(Reason.NO_REPLICA_AVAILABLE, to=name) for name in ("q2", "q3")}
    talk.finishes("q1.0")
    assert talk.is_over


@pytest.mark.parametrize(("before_s", "after_s"), [(30.0, 10.0), (5.0, 10.0)])
def test_a_waiting_room_that_is_reconfigured_closes_at_its_new_time(before_s: float, after_s: float) -> None:
    talk = Dialogue(params=DispatcherParams(waiting_room_s=before_s)).replicas(Role.UNIFIED, "a")
    talk.at(1.0).replicas(Role.UNIFIED)
    talk.tell(reconfigured(replace(talk.spec, params=DispatcherParams(waiting_room_s=after_s))))
    talk.at(2.0).arrives("q", budget_s=60.0)
    assert talk.responses == {}

    (timer,) = [token for token, at_s in talk.timers.items() if at_s == 1.0 + after_s]
    talk.fires(timer)

    assert talk.responses == {"q": refused(Reason.NO_REPLICA_AVAILABLE)}


def test_waiting_requests_are_refused_when_the_last_replica_is_lost() -> None:
    talk = Dialogue(params=DispatcherParams(waiting_room_s=0)).replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")

    talk.fails("q1.0", Reason.REPLICA_LOST)

    assert talk.responses == {
        "q1": refused(Reason.REPLICA_LOST, to="q1"),
        "q2": refused(Reason.NO_REPLICA_AVAILABLE, to="q2"),
    }
    assert talk.is_over


def test_requests_wait_for_a_pool_that_has_lost_its_last_replica_and_go_to_the_next_one() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q1")
    talk.first_token("q1.0")
    talk.fails("q1.0", Reason.REPLICA_LOST, output_tokens=7)
    talk.at(1.0).replicas(Role.UNIFIED)
    talk.at(2.0).arrives("q2")
    assert talk.responses == {}

    talk.at(20.0).replicas(Role.UNIFIED, "b")

    assert talk.sends == ["q1.1 unified to b"], "the answer that has begun goes first, as the fresh one ramps up"
    talk.finishes("q1.1")
    assert (talk.responses, talk.sends) == ({"q1": completed()}, ["q2.0 unified to b"])
    talk.finishes("q2.0")
    assert talk.is_over


def test_those_that_wait_for_an_empty_pool_are_refused_when_none_has_come_for_so_long() -> None:
    talk = Dialogue(params=DispatcherParams(waiting_room_s=10)).replicas(Role.UNIFIED, "a")
    talk.at(1.0).replicas(Role.UNIFIED)
    talk.at(5.0).arrives("q1")
    assert (talk.responses, talk.dispatcher.num_waiting_requests) == ({}, 1)

    [token] = [each for each in talk.timers if each.endswith(":waiting_room")]
    talk.at(11.0).fires(token)
    assert talk.responses == {"q1": refused(Reason.NO_REPLICA_AVAILABLE, to="q1")}
    talk.at(12.0).arrives("q2")
    assert talk.responses["q2"] == refused(Reason.NO_REPLICA_AVAILABLE, to="q2")
    assert talk.is_over


def test_who_is_refused_in_an_outage_is_told_when_the_last_one_would_have_been_over() -> None:
    params = DispatcherParams(waiting_room_s=10, retry_after_s=2)
    talk = Dialogue(params=params).replicas(Role.UNIFIED, "a")
    talk.at(1.0).replicas(Role.UNIFIED)
    talk.at(61.0).replicas(Role.UNIFIED, "b")
    talk.at(100.0).replicas(Role.UNIFIED)
    talk.at(120.0).arrives("q1")
    assert 40 <= talk.responses["q1"].retry_after_s <= 40 * (1 + JITTER_FRACTION), "the last one took 60 s"
    talk.at(170.0).arrives("q2")
    assert 2 <= talk.responses["q2"].retry_after_s <= 2 * (1 + JITTER_FRACTION), "it takes longer than the last one"


def test_nobody_waits_for_a_pool_that_has_had_no_replica_yet() -> None:
    talk = Dialogue().replicas(Role.UNIFIED)
    talk.arrives("q")
    assert talk.responses == {"q": refused(Reason.NO_REPLICA_AVAILABLE)}


def test_a_request_in_the_waiting_room_keeps_its_deadline_and_its_client_may_leave() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.at(1.0).replicas(Role.UNIFIED)
    talk.arrives("q1")
    talk.arrives("q2")
    talk.fires("q1:deadline")
    assert talk.responses == {"q1": refused(Reason.DEADLINE_EXCEEDED, to="q1")}
    talk.client_goes("q2")
    assert talk.dispatcher.num_waiting_requests == 0
    assert talk.is_over


def test_waiting_requests_go_when_the_suspicion_of_a_replica_is_over() -> None:
    """Nothing else need happen: without the timer they would wait for the one replica that is left."""
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")
    talk.fails("q1.0", Reason.REPLICA_LOST)
    talk.arrives("q3")
    assert talk.sends == []

    talk.fires("q1.0:quarantine")

    assert talk.now_s == 5.0
    assert talk.sends == ["q3.0 unified to a"]


def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    """The quarantine is over, but its timer is late: the newcomer's arrival is the first that is heard of it."""
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")
    talk.fails("q1.0", Reason.REPLICA_LOST)
    talk.arrives("q3")

    talk.at(6.0).arrives("q4")

    assert talk.sends == ["q3.0 unified to a"]


def test_a_request_that_failed_on_the_free_replica_does_not_hold_up_the_others() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", slots=1)
    talk.arrives("long")
    talk.arrives("other")
    talk.fails("long.0", Reason.REPLICA_LOST)
    talk.arrives("q1")
    talk.arrives("q2")
    assert talk.dispatcher.num_waiting_requests == 3

    talk.fires("long.0:quarantine")
    assert talk.sends == ["q1.0 unified to a"]
    talk.finishes("other.0")
    assert talk.sends == ["long.1 unified to b"], "it has kept its place in front of q2"
    talk.finishes("long.1")
    assert talk.sends == ["q2.0 unified to b"]


def test_a_request_is_refused_when_only_replicas_are_left_on_which_it_has_failed() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")
    talk.fails("q1.0", Reason.REPLICA_LOST)

    talk.at(6.0).replicas(Role.UNIFIED, "a")

    assert talk.responses == {"q1": refused(Reason.NO_REPLICA_AVAILABLE, to="q1")}
    talk.finishes("q2.0")
    assert talk.is_over


def test_the_slot_that_a_moved_attempt_leaves_goes_to_a_request_that_waits() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", slots=1)
    for request_id in ("q1", "q2", "q3"):
        talk.arrives(request_id)

    talk.accepts("q1.0", "b")

    assert talk.sends == ["q3.0 unified to a"]


def test_nothing_is_picked_while_a_request_waits() -> None:
    """The pick is made when the slot frees, so it knows the load of that moment."""
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")
    talk.arrives("q3")
    assert talk.placements == []

    talk.finishes("q1.0")

    assert [(each.attempt_id, each.replica_id, each.num_candidates) for each in talk.placements] == [("q3.0", "a", 1)]


def windowed(tokens: int) -> Dialogue:
    return Dialogue(params=DispatcherParams(prefill_window_tokens=tokens)).replicas(Role.UNIFIED, "a")


def test_a_replica_gets_no_more_prompt_tokens_at_a_time_than_its_window() -> None:
    talk = windowed(150)
    for request_id in ("q1", "q2", "q3"):
        talk.arrives(request_id, prompt_tokens=100)
    assert talk.dispatcher.num_waiting_requests == 1

    talk.first_token("q1.0")

    assert talk.sends == ["q3.0 unified to a"]


def test_a_prompt_longer_than_the_window_goes_by_itself() -> None:
    talk = windowed(150)

    talk.arrives("q1", prompt_tokens=10_000)
    assert talk.sends == ["q1.0 unified to a"]
    talk.arrives("q2", prompt_tokens=1)
    assert talk.sends == []


def test_whoever_waits_for_another_gateways_prompts_goes_when_the_replica_reports_them_done() -> None:
    talk = windowed(150)
    talk.reports("a", kv_tokens=400, prefill_tokens=400)
    talk.arrives("q")
    assert talk.sends == []

    talk.reports("a", kv_tokens=0, prefill_tokens=0)

    assert talk.sends == ["q.0 unified to a"]


def test_who_waits_can_be_seen_by_class_and_line() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("under way")
    for at_s, priority in ((1.0, Priority.STANDARD), (2.0, Priority.CRITICAL), (3.0, Priority.STANDARD)):
        talk.at(at_s).arrives(f"{at_s:g}", priority=priority)

    gauges = talk.dispatcher.gauges(10.0)

    seen = {
        priority: tuple(gauges[f"queue_{name}:{priority}:unified"] for name in ("requests", "oldest_age_seconds"))
        for priority in Priority
    }
    assert seen == {"critical": (1, 8.0), "standard": (2, 9.0), "sheddable": (0, 0.0)}


def test_the_work_of_who_waits_is_that_of_the_stage_they_wait_for() -> None:
    talk = Dialogue(rates=ServiceRates(new_token_s=0.001)).replicas(Role.UNIFIED, "a", slots=1)
    for request_id in ("under way", "q1", "q2"):
        talk.arrives(request_id)
    (line,) = [each for each in talk.dispatcher.policies.queues.values() if len(each)]

    gauges = talk.dispatcher.gauges(0.0)

    work_s = 2 * line.peek(0.0).geometry.work_s(Role.UNIFIED)
    assert work_s > 0.0
    assert gauges["queue_work_seconds:standard:unified"] == pytest.approx(work_s)


def test_a_tenant_whose_answer_was_shorter_than_expected_gets_the_difference_back() -> None:
    talk = Dialogue(queueing=PolicyChoice(name="vtc")).replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("under way")
    talk.arrives("long?", tenant="one", max_output_tokens=1000)
    for request_id, tenant in (("one", "one"), ("other", "other"), ("another", "other")):
        talk.arrives(request_id, tenant=tenant)

    order = []
    for attempt_id, output_tokens in (("under way.0", 50), ("long?.0", 10), ("other.0", 50), ("one.0", 50)):
        talk.finishes(attempt_id, output_tokens)
        order += talk.sends

    assert [each.split(".")[0] for each in order] == ["long?", "other", "one", "another"]


def test_a_queue_is_told_the_stage_that_its_requests_wait_for() -> None:
    talk = Dialogue(
        planner="always_disaggregated",
        queueing=PolicyChoice(name="edf"),
        rates=ServiceRates(new_token_s=0.001, context_token_s=0.001),
    ).replicas(Role.PREFILL, "p", slots=1)
    talk.replicas(Role.DECODE, "d", slots=1)
    for request_id in ("under way", "q1", "q2"):
        talk.arrives(request_id)
    queue = talk.policies.queues[Role.PREFILL]
    request = queue.peek(0.0)

    assert len(queue) == 2
    assert isinstance(queue, Edf)
    other = replace(request, request_id="new", arrival_s=1.0)
    assert queue.work_ahead_s(other) == pytest.approx(2 * request.geometry.prefill_s)
    assert request.geometry.decode_s > 0.0
