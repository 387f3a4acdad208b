"""Admission at the other end of the line: a request may have to wait although there is room, or be refused there."""

from policies import PolicyChoice, Reason, Role
from policies.signals import Admitted, Answering, Ended, Started
from tests.policy_doubles import StartsOneAtATime
from tests.routing.dialogue import Dialogue, completed, refused
from tests.tables import for_each

ONE_AT_A_TIME = PolicyChoice(name="tests.policy_doubles:StartsOneAtATime")


def one_at_a_time(planner: str = "always_unified") -> Dialogue:
    return Dialogue(planner=planner, admission=ONE_AT_A_TIME)


def test_a_request_that_may_not_start_waits_until_another_has_ended() -> None:
    talk = one_at_a_time().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q1")
    talk.arrives("q2")
    talk.arrives("q3")
    assert talk.sends == []

    talk.first_token("q1.0")
    assert talk.sends == []
    talk.finishes("q1.0")
    assert talk.sends == ["q2.0 unified to a"]
    talk.finishes("q2.0")
    assert talk.sends == ["q3.0 unified to a"]
    talk.finishes("q3.0")
    assert talk.is_over


def test_a_prefill_starts_when_a_decode_has_ended() -> None:
    talk = one_at_a_time("always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    talk.arrives("q1")
    talk.arrives("q2")
    talk.finishes("q1.0", output_tokens=1)
    assert talk.sends == ["q1.1 decode to d from q1.0"]

    talk.finishes("q1.1")

    assert talk.sends == ["q2.0 prefill to p"]


@for_each("how", ["client", "deadline"])
def test_whoever_waits_to_start_starts_when_the_other_is_given_up(how: str) -> None:
    talk = one_at_a_time().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q1", budget_s=5.0)
    talk.arrives("q2")

    if how == "client":
        talk.client_goes("q1")
    else:
        talk.at(5.0).fires("q1:deadline")

    assert talk.sends == ["q2.0 unified to b"]


def test_the_head_of_a_line_is_asked_again_when_a_replica_reports() -> None:
    """What it waits for may have ended at another gateway, of which nobody else would tell."""
    talk = one_at_a_time().replicas(Role.UNIFIED, "a")
    talk.arrives("q1")
    talk.arrives("q2")
    admission = talk.policies.admission
    assert isinstance(admission, StartsOneAtATime)
    admission._under_way.clear()

    talk.reports("a", kv_tokens=0)

    assert talk.sends == ["q2.0 unified to a"]


def test_a_request_that_is_refused_at_the_start_was_never_sent_and_the_next_one_goes() -> None:
    talk = one_at_a_time().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q1")
    talk.arrives("q2")
    talk.arrives("q3", max_output_tokens=1)
    talk.arrives("q4")

    talk.finishes("q1.0")

    assert talk.sends == ["q2.0 unified to a"]
    assert talk.responses == {"q1": completed(), "q3": refused(Reason.DEADLINE_UNREACHABLE, 4.0, to="q3")}
    talk.finishes("q2.0")
    assert talk.sends == ["q4.0 unified to a"]


def test_admission_sees_who_waits_and_who_is_under_way() -> None:
    talk = one_at_a_time().replicas(Role.UNIFIED, "a", "b")
    for request_id in ("q1", "q2", "q3"):
        talk.arrives(request_id)

    admission = talk.policies.admission
    assert isinstance(admission, StartsOneAtATime)
    assert admission.seen == [("q1", 0, 0), ("q2", 0, 1), ("q3", 1, 1)]


def test_a_request_that_failed_over_is_not_asked_to_start_again() -> None:
    talk = one_at_a_time().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q1")

    talk.fails("q1.0", Reason.REPLICA_LOST)

    assert talk.sends == ["q1.1 unified to b"]


def test_policies_hear_of_a_requests_life() -> None:
    talk = Dialogue(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    talk.arrives("q")
    talk.at(1.0).finishes("q.0", output_tokens=1)
    talk.at(2.0).first_token("q.1")
    talk.at(3.0).finishes("q.1", output_tokens=7)

    admitted, started, answering, ended = talk.request_signals
    request = talk.request_signals[0].request
    assert admitted == Admitted(request=request, at_s=0.0)
    assert started == Started(request=request, at_s=0.0)
    assert answering == Answering(request=request, at_s=2.0)
    assert ended == Ended(request=request, is_completed=True, output_tokens=7, at_s=3.0)


def test_policies_hear_of_a_request_that_never_started() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")
    talk.client_goes("q2")

    of_q2 = [each for each in talk.request_signals if each.request.request_id == "q2"]
    assert [type(each) for each in of_q2] == [Admitted, Ended]
    assert isinstance(of_q2[1], Ended)
    assert not of_q2[1].is_completed
