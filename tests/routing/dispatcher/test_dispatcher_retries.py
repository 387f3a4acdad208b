"""A request whose attempt was lost before anybody had a token of it waits before it is tried again, or is given up."""

from policies import PolicyChoice, Priority, Reason, Role
from policies.attempt_views import LostAttempt
from routing import DispatcherParams, Retry
from routing.fleet.ejection import PROBATION_S
from routing.request.request import PROGRESS_TOKENS
from tests.policy_doubles import RetryAfter
from tests.routing.dialogue import Dialogue, completed, hedge_after, refused
from tests.tables import for_each

LATER = PolicyChoice(name="tests.policy_doubles:RetryAfter", params={"after_s": 0.5})
NEVER = PolicyChoice(name="never_retry")
RETRY_OF_Q = Retry(request_id="q", attempt_id="q.0", reason=Reason.REPLICA_LOST, after_s=0.5)


def backing_off(
    replica_ids: str = "ab", retrying: PolicyChoice = LATER, params: DispatcherParams | None = None
) -> Dialogue:
    """A request that was lost at 1 s and stands in no line."""
    talk = Dialogue(retrying=retrying, params=params).replicas(Role.UNIFIED, *replica_ids)
    talk.at(1.0).arrives("q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    return talk


def asked(talk: Dialogue) -> list[LostAttempt]:
    policy = talk.policies.retrying
    assert isinstance(policy, RetryAfter)
    return policy.asked


def test_it_lines_up_again_when_its_time_has_come() -> None:
    talk = backing_off()
    assert (talk.sends, talk.responses, talk.retries) == ([], {}, [RETRY_OF_Q])
    assert talk.dispatcher.num_waiting_requests == 0
    assert talk.timers["q:retry"] == 1.5

    talk.at(1.5).fires("q:retry")

    assert talk.sends == ["q.1 unified to b"]
    talk.finishes("q.1")
    assert talk.responses == {"q": completed()}
    assert talk.is_over


def test_a_policy_that_never_retries_leaves_it_to_the_client() -> None:
    talk = backing_off(retrying=NEVER)

    assert talk.responses == {"q": refused(Reason.REPLICA_LOST)}
    assert talk.is_over


def test_a_client_that_goes_meanwhile_takes_its_timer_along() -> None:
    talk = backing_off()

    talk.client_goes("q")

    assert talk.is_over
    assert not {"q:retry", "q:deadline"} & set(talk.timers)


def test_its_deadline_holds_meanwhile() -> None:
    talk = backing_off()

    talk.fires("q:deadline")

    assert talk.responses == {"q": refused(Reason.DEADLINE_EXCEEDED)}
    assert not {"q:retry", "q:deadline"} & set(talk.timers)


def test_a_timer_that_comes_late_does_nothing() -> None:
    talk = backing_off()
    talk.client_goes("q")

    talk.at(1.5).fires("q:retry")

    assert talk.answer == []


def test_one_that_finds_nobody_left_is_refused_for_what_it_was_lost_by() -> None:
    talk = backing_off("a", params=DispatcherParams(waiting_room_s=0))

    talk.at(1.5).fires("q:retry")

    assert talk.responses == {"q": refused(Reason.REPLICA_LOST)}
    assert talk.is_over


def test_the_policy_is_told_how_often_and_what_it_costs() -> None:
    talk = backing_off("abc")
    talk.at(1.5).fires("q:retry")
    talk.fails("q.1", Reason.REPLICA_LOST, was_taken=False)

    assert asked(talk) == [
        LostAttempt(reason=Reason.REPLICA_LOST, num_retries=number, prefill_tokens=100) for number in (0, 1)
    ]


def test_a_decode_that_nobody_had_costs_no_prompt_unless_its_blocks_are_gone() -> None:
    talk = Dialogue(planner="always_disaggregated", retrying=LATER)
    talk.replicas(Role.PREFILL, "p", "q").replicas(Role.DECODE, "d", "e")
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)

    talk.fails("r.1", Reason.REPLICA_LOST, was_taken=False)
    talk.at(0.5).fires("r:retry")
    assert talk.sends == ["r.2 decode to e from r.0"]
    talk.fails("r.2", Reason.KV_TRANSFER_FAILED)
    talk.at(1.0).fires("r:retry")

    assert talk.sends == ["r.3 prefill to q"]
    assert [each.prefill_tokens for each in asked(talk)] == [0, 100]


def test_an_answer_that_has_begun_goes_on_at_once() -> None:
    talk = Dialogue(retrying=LATER).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.first_token("q.0")

    talk.fails("q.0", Reason.REPLICA_LOST, output_tokens=3)

    assert talk.sends == ["q.1 unified to b"]
    assert asked(talk) == []


def test_nobody_is_asked_while_another_attempt_is_under_way() -> None:
    talk = Dialogue(retrying=LATER, hedging=hedge_after(0.5)).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.fires("q.0:hedge")

    talk.fails("q.0", Reason.REPLICA_LOST)

    assert asked(talk) == []
    talk.finishes("q.1")
    assert talk.responses == {"q": completed()}


def test_past_max_attempts_nobody_is_asked() -> None:
    talk = Dialogue(retrying=LATER, params=DispatcherParams(max_attempts=1)).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")

    talk.fails("q.0", Reason.REPLICA_LOST)

    assert talk.responses == {"q": refused(Reason.REPLICA_LOST)}
    assert asked(talk) == []


def test_the_policy_is_asked_whether_an_error_of_an_engine_is_tried_elsewhere_and_once_only() -> None:
    talk = Dialogue(retrying=LATER).replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    assert [each.reason for each in asked(talk)] == [Reason.ENGINE_ERROR]

    talk.at(1.0).fires("q:retry")
    talk.fails("q.1", Reason.ENGINE_ERROR)

    assert talk.responses == {"q": refused(Reason.ENGINE_ERROR, may_retry=False)}
    assert len(asked(talk)) == 1


@for_each("retrying", [LATER, NEVER])
def test_an_answer_that_goes_on_elsewhere_goes_on_again_at_once_when_that_is_lost_too(retrying: PolicyChoice) -> None:
    """It has had no token of its second attempt, but its client is reading."""
    talk = Dialogue(retrying=retrying).replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q")
    talk.first_token("q.0")
    talk.fails("q.0", Reason.REPLICA_LOST, output_tokens=PROGRESS_TOKENS)

    talk.fails("q.1", Reason.REPLICA_LOST)

    assert talk.sends == ["q.2 unified to c"]
    assert talk.retries == []


def test_an_answer_that_goes_on_has_its_prompt_computed_again_where_blocks_are_gone() -> None:
    talk = Dialogue(planner="always_disaggregated", retrying=LATER, params=DispatcherParams(max_attempts=9))
    talk.replicas(Role.PREFILL, "p", "q").replicas(Role.DECODE, "d", "e")
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)
    talk.first_token("r.1")
    talk.fails("r.1", Reason.REPLICA_LOST, output_tokens=3)
    talk.finishes("r.2", output_tokens=1)

    talk.fails("r.3", Reason.KV_TRANSFER_FAILED)

    (sent,) = talk.sends
    assert sent.startswith("r.4 prefill")
    assert talk.retries == []


def test_a_preempted_rival_does_not_bring_it_into_line_once_more() -> None:
    """It waits to be tried again when the attempt that was preempted ends."""
    talk = Dialogue(
        retrying=LATER, preemption=PolicyChoice(name="newest_sheddable"), hedging=hedge_after(0.1)
    ).replicas(Role.UNIFIED, "a", "b", "c", slots=1)
    talk.arrives("q", priority=Priority.SHEDDABLE)
    talk.at(0.1).fires("q.0:hedge")
    talk.arrives("x")
    talk.arrives("y")
    (preempted,) = talk.cancels
    lost = "q.0" if preempted == "q.1" else "q.1"
    talk.at(0.2).fails(lost, Reason.REPLICA_LOST)
    assert talk.timers["q:retry"] == 0.7

    talk.stops(preempted)

    assert "q:retry" not in talk.timers, "it has its place in the line, as anybody who gave way"
    assert talk.sends == [f"y.0 unified to {'b' if preempted == 'q.1' else 'a'}"]
    assert talk.dispatcher.num_waiting_requests == 1
    talk.client_goes("q")
    assert talk.dispatcher.num_waiting_requests == 0


def test_one_that_stands_in_line_again_does_not_give_way_a_second_time() -> None:
    """An attempt that was preempted ends when its request, tried again at once, waits already."""
    talk = Dialogue(
        preemption=PolicyChoice(name="newest_sheddable"),
        hedging=hedge_after(0.1),
        queueing=PolicyChoice(name="priority"),
    ).replicas(Role.UNIFIED, "a", "b", "c", slots=1)
    talk.arrives("q", priority=Priority.SHEDDABLE)
    talk.at(0.1).fires("q.0:hedge")
    talk.arrives("x")
    talk.arrives("y")
    (preempted,) = talk.cancels
    talk.at(0.2).fails("q.0" if preempted == "q.1" else "q.1", Reason.REPLICA_LOST)
    assert talk.dispatcher.num_waiting_requests == 2

    talk.stops(preempted)

    assert talk.preemptions == []
    assert talk.dispatcher.num_waiting_requests == 1
    talk.client_goes("q")
    assert (talk.dispatcher.num_waiting_requests, talk.dispatcher.gauges(0.2)["queue_requests:sheddable:unified"]) == (
        0,
        0,
    )


def test_where_nobody_else_is_left_by_then_the_one_whose_blocks_were_gone_will_do() -> None:
    talk = Dialogue(planner="always_disaggregated", retrying=LATER)
    talk.replicas(Role.PREFILL, "p", "q").replicas(Role.DECODE, "d")
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)
    talk.fails("r.1", Reason.KV_TRANSFER_FAILED)
    talk.replicas(Role.PREFILL, "p")

    talk.at(0.5).fires("r:retry")

    assert talk.sends == ["r.2 prefill to p"]


def errs_and_is_cleared(talk: Dialogue, name: str) -> None:
    """An engine, a's, fails on a request that the other one does."""
    talk.arrives(name)
    assert talk.sends == [f"{name}.0 unified to a"]
    talk.fails(f"{name}.0", Reason.ENGINE_ERROR)
    assert talk.sends == [f"{name}.1 unified to b"]
    talk.first_token(f"{name}.1")
    talk.finishes(f"{name}.1")


def out_until_s(talk: Dialogue) -> float:
    return max(at_s for token, at_s in talk.timers.items() if token.endswith(":quarantine"))


def test_an_engine_that_fails_again_and_again_is_out_for_longer_each_time() -> None:
    talk = Dialogue(params=DispatcherParams(quarantine_s=5.0)).replicas(Role.UNIFIED, "a", "b")
    errs_and_is_cleared(talk, "first")
    assert out_until_s(talk) == 5.0
    for at_s, until_s in ((5.0, 15.0), (15.0, 35.0), (35.0, 55.0)):
        errs_and_is_cleared(talk.at(at_s), f"at {at_s}")
        assert out_until_s(talk) == until_s


def test_of_an_engine_that_has_failed_of_late_one_error_is_enough() -> None:
    """Nobody waits until another one has done what it did not: meanwhile it would get all that comes, being idle."""
    talk = Dialogue(params=DispatcherParams(quarantine_s=5.0)).replicas(Role.UNIFIED, "a", "b")
    errs_and_is_cleared(talk, "first")

    talk.at(6.0).arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    talk.arrives("next")

    assert talk.sends == ["next.0 unified to b"]


def test_what_it_had_when_it_was_spared_does_not_count_once_more() -> None:
    talk = Dialogue(params=DispatcherParams(quarantine_s=5.0)).replicas(Role.UNIFIED, "a", "b")
    for name in ("p", "q", "r", "s"):
        talk.arrives(name)
    assert talk.load["a"][0] == 2
    talk.fails("p.0", Reason.ENGINE_ERROR)
    talk.finishes("p.1")
    talk.fails("r.0", Reason.ENGINE_ERROR)
    talk.finishes("r.1")

    assert out_until_s(talk) == 5.0


def test_who_has_not_failed_for_a_minute_begins_anew() -> None:
    talk = Dialogue(params=DispatcherParams(quarantine_s=5.0)).replicas(Role.UNIFIED, "a", "b")
    errs_and_is_cleared(talk, "first")

    errs_and_is_cleared(talk.at(5.0 + PROBATION_S), "much later")

    assert out_until_s(talk) == 10.0 + PROBATION_S


def test_the_last_engine_that_is_left_is_not_spared() -> None:
    talk = Dialogue(params=DispatcherParams(quarantine_s=5.0)).replicas(Role.UNIFIED, "a", "b")
    errs_and_is_cleared(talk, "first")
    talk.at(6.0).replicas(Role.UNIFIED, "a")

    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    talk.arrives("next")

    assert talk.sends == ["next.0 unified to a"]
