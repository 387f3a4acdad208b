"""The client goes, or the deadline comes: one answer, and every slot comes back."""

from policies import Reason, Role
from routing import Cancel, CancelTimer, DispatcherParams, Respond
from tests.routing.dialogue import Dialogue, cancelled, completed, failed, refused


def disaggregated() -> Dialogue:
    return Dialogue(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", slots=1)


def test_a_client_that_goes_while_waiting_leaves_the_queue() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", slots=1)
    for request_id in ("q1", "q2", "q3"):
        talk.arrives(request_id)

    talk.client_goes("q2")
    assert talk.responses == {"q2": cancelled()}
    assert talk.cancels == []
    talk.finishes("q1.0")
    assert talk.sends == ["q3.0 unified to a"]


def test_a_client_that_goes_during_its_prefill_gives_the_slot_back_when_the_prefill_has_ended() -> None:
    talk = disaggregated()
    talk.arrives("q")

    talk.client_goes("q")
    assert talk.cancels == ["q.0"]
    assert talk.responses == {"q": cancelled()}
    assert talk.load["p"] == (1, 100)
    talk.stops("q.0")
    assert talk.answer == []
    assert talk.is_over


def test_a_prefill_that_finishes_after_the_client_has_gone_leads_to_no_decode() -> None:
    talk = disaggregated()
    talk.arrives("q")
    talk.client_goes("q")

    talk.finishes("q.0", output_tokens=1)

    assert talk.answer == []
    assert talk.is_over


def test_a_client_that_goes_between_prefill_and_decode_leaves_the_decode_queue() -> None:
    talk = disaggregated()
    talk.arrives("q1")
    talk.finishes("q1.0", output_tokens=1)
    talk.arrives("q2")
    talk.finishes("q2.0", output_tokens=1)
    assert talk.dispatcher.num_waiting_requests == 1

    talk.client_goes("q2")
    assert talk.responses == {"q2": cancelled()}
    talk.finishes("q1.1")
    assert talk.sends == []
    assert talk.is_over


def test_a_client_that_goes_in_mid_stream_is_answered_once() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.first_token("q.0")

    talk.client_goes("q")
    assert talk.answer == [
        CancelTimer(token="q:deadline"),
        Cancel(attempt_id="q.0"),
        Respond(request_id="q", outcome=cancelled()),
    ]
    talk.client_goes("q")
    assert talk.answer == []
    talk.finishes("q.0")
    assert talk.answer == []
    assert talk.is_over


def test_the_slot_of_a_cancelled_attempt_goes_to_a_request_that_waits() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")
    talk.client_goes("q1")
    assert talk.sends == []

    talk.stops("q1.0")

    assert talk.sends == ["q2.0 unified to a"]


def test_the_first_token_of_a_cancelled_attempt_commits_to_nothing() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.client_goes("q")

    talk.first_token("q.0")

    assert talk.answer == []


def test_a_cancelled_attempt_that_is_lost_is_not_repeated_but_its_replica_is_suspected() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q1")
    talk.client_goes("q1")

    talk.fails("q1.0", Reason.REPLICA_LOST)
    assert talk.sends == []
    talk.arrives("q2")
    assert talk.sends == ["q2.0 unified to b"]


def test_a_request_whose_deadline_comes_while_it_waits_is_refused() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("q1")
    talk.arrives("q2", budget_s=2.0)

    talk.fires("q2:deadline")

    assert talk.now_s == 2.0
    assert talk.responses == {"q2": refused(Reason.DEADLINE_EXCEEDED, to="q2")}
    assert talk.dispatcher.num_waiting_requests == 0


def test_a_request_whose_deadline_comes_before_the_first_token_is_refused_and_its_attempt_stopped() -> None:
    talk = Dialogue(params=DispatcherParams(retry_after_s=9.0)).replicas(Role.UNIFIED, "a")
    talk.arrives("q")

    talk.fires("q:deadline")
    assert talk.cancels == ["q.0"]
    assert talk.responses == {"q": refused(Reason.DEADLINE_EXCEEDED, 9.0)}
    talk.stops("q.0")
    assert talk.is_over


def test_a_request_whose_deadline_comes_after_the_first_token_has_failed() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.first_token("q.0")

    talk.fires("q:deadline")

    assert talk.cancels == ["q.0"]
    assert talk.responses == {"q": failed(Reason.DEADLINE_EXCEEDED)}


def test_a_deadline_that_comes_after_the_answer_is_ignored() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("gone")
    talk.client_goes("gone")
    talk.arrives("done")
    talk.finishes("done.0")

    talk.fires("gone:deadline")
    assert talk.answer == []
    talk.fires("done:deadline")
    assert talk.answer == []


def test_the_deadline_timer_is_cancelled_with_the_answer() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    assert talk.timers == {"q:deadline": 60.0}

    talk.finishes("q.0")

    assert talk.timers == {}


def test_a_request_id_with_colons_and_dots_is_no_problem() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("chat:1.0:hedge")
    assert talk.sends == ["chat:1.0:hedge.0 unified to a"]

    talk.fires("chat:1.0:hedge:deadline")

    assert talk.responses == {"chat:1.0:hedge": refused(Reason.DEADLINE_EXCEEDED, to="chat:1.0:hedge")}


def test_a_client_that_goes_after_completion_changes_nothing() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.finishes("q.0")
    assert talk.responses == {"q": completed()}

    talk.client_goes("q")

    assert talk.answer == []
