"""From arrival to the last token, when nothing goes wrong."""

import pytest

from policies import InvariantViolation, PolicyChoice, Reason, Role
from routing import Arrived, CancelTimer, DispatcherParams, Placement, Record, Respond, Send, SetTimer
from tests.policy_doubles import a_request
from tests.routing.dialogue import DOUBLES, Dialogue, completed, refused
from tests.tables import for_each


def test_a_unified_request_is_one_attempt_on_one_replica() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")

    talk.arrives("q")
    assert talk.sends == ["q.0 unified to a"]
    talk.accepts("q.0", "a")
    assert talk.answer == []
    talk.first_token("q.0")
    assert talk.commits == ["q.0"]
    talk.finishes("q.0")
    assert talk.responses == {"q": completed()}
    assert talk.is_over


def test_effects_come_in_the_order_in_which_they_are_to_be_carried_out() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")

    talk.arrives("q", budget_s=30.0)
    assert talk.answer == [
        SetTimer(token="q:deadline", at_s=30.0),
        Record(decision=Placement(request_id="q", attempt_id="q.0", replica_id="a", num_candidates=1, is_hedge=False)),
        Send(
            attempt_id="q.0",
            request_id="q",
            stage=Role.UNIFIED,
            replica_id="a",
            pool="unified",
            prefill_tokens=100,
            kv_tokens=150,
            kv_from=None,
            engine_priority=2**32,
        ),
    ]
    talk.first_token("q.0")
    talk.finishes("q.0")
    assert talk.answer == [CancelTimer(token="q:deadline"), Respond(request_id="q", outcome=completed())]


def test_a_decode_follows_a_finished_prefill_and_pulls_its_blocks() -> None:
    talk = Dialogue(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")

    talk.arrives("q")
    assert talk.sends == ["q.0 prefill to p"]
    talk.finishes("q.0", output_tokens=1)
    assert talk.sends == ["q.1 decode to d from q.0"]
    talk.first_token("q.1")
    assert talk.commits == ["q.1"]
    talk.finishes("q.1")
    assert talk.responses == {"q": completed()}
    assert talk.is_over


def test_the_first_token_of_a_prefill_commits_to_nothing() -> None:
    talk = Dialogue(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    talk.arrives("q")

    talk.first_token("q.0")

    assert talk.answer == []


def test_an_attempt_that_finishes_without_a_first_token_still_commits() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")

    talk.finishes("q.0", output_tokens=0)

    assert talk.commits == ["q.0"]
    assert talk.responses == {"q": completed()}


def test_a_request_is_refused_when_no_replica_is_up() -> None:
    talk = Dialogue()

    talk.arrives("q")

    assert talk.responses == {"q": refused(Reason.NO_REPLICA_AVAILABLE)}
    assert talk.is_over


def test_a_request_is_refused_when_no_replica_is_up_after_its_prefill() -> None:
    talk = Dialogue(planner="always_disaggregated", params=DispatcherParams(waiting_room_s=0))
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    talk.arrives("q")
    talk.replicas(Role.PREFILL).replicas(Role.DECODE)

    talk.finishes("q.0", output_tokens=1)

    assert talk.responses == {"q": refused(Reason.NO_REPLICA_AVAILABLE)}
    assert talk.is_over


def test_admission_can_refuse_a_request_before_any_work() -> None:
    talk = Dialogue(admission=PolicyChoice(name=f"{DOUBLES}:AdmitNone")).replicas(Role.UNIFIED, "a")

    talk.arrives("q")

    assert talk.answer == [Respond(request_id="q", outcome=refused(Reason.ADMISSION_REJECTED, 3.0))]
    assert talk.is_over


def test_shedding_is_asked_before_admission() -> None:
    talk = Dialogue(
        shedding=PolicyChoice(name=f"{DOUBLES}:ShedAll"), admission=PolicyChoice(name=f"{DOUBLES}:AdmitNone")
    )

    talk.arrives("q")

    assert talk.answer == [Respond(request_id="q", outcome=refused(Reason.SHED, 7.0))]
    assert talk.is_over


def test_a_request_that_arrives_twice_is_a_bug() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.tell(Arrived(request=a_request("q")))

    with pytest.raises(InvariantViolation, match="request q arrived twice"):
        talk.tell(Arrived(request=a_request("q")))


@for_each("attempt_id", ["q.0", "q.7", "other.0"], ids=["ended", "never_sent", "unknown_request"])
def test_late_and_doubled_events_change_nothing(attempt_id: str) -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.first_token("q.0")
    talk.finishes("q.0")

    for say in (talk.first_token, talk.finishes, talk.stops):
        say(attempt_id)
        assert talk.answer == []
    talk.accepts(attempt_id, "a")
    assert talk.answer == []
    talk.client_goes("q")
    assert talk.answer == []
    assert talk.is_over


def test_a_doubled_first_token_commits_once() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")

    talk.first_token("q.0")
    talk.first_token("q.0")

    assert talk.answer == []
    assert talk.signal_names == ["Dispatched q.0", "FirstToken q.0"]
