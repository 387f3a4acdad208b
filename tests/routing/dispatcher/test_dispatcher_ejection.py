"""A replica that is out gets nothing, is waited for by nobody, and comes back slowly."""

from dataclasses import replace

import pytest

from policies import PolicyChoice, Reason, Role
from policies.errors import PolicyMisbehaved
from routing import reconfigured
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import DOUBLES, Dialogue, completed, hedge_after, refused
from tests.tables import for_each

NEVER_RETRY = PolicyChoice(name="never_retry")
AFTER_ERRORS = PolicyChoice(name=f"{DOUBLES}:EjectAfterErrors")


def a_talk(*replicas: str, slots: int = 8) -> Dialogue:
    """Nothing is learned of but errors."""
    return Dialogue(ejection=AFTER_ERRORS, retrying=NEVER_RETRY).replicas(Role.UNIFIED, *replicas, slots=slots)


def a_talk_without(replica_id: str = "a", *others: str, slots: int = 8) -> Dialogue:
    """One of the replicas has just been ejected."""
    talk = a_talk(replica_id, *(others or ("b",)), slots=slots)
    talk.arrives("first")
    talk.fails("first.0", Reason.ENGINE_ERROR)
    assert talk.ejections == [f"{replica_id} out"]
    return talk


def test_a_replica_that_is_out_gets_nothing_until_its_time_is_over() -> None:
    talk = a_talk_without("a")
    assert talk.timers["a.1:ejection"] == 10.0

    talk.arrives("q1")
    talk.arrives("q2")
    talk.at(9.0).arrives("q3")
    assert talk.load.keys() == {"b"}
    talk.fires("a.1:ejection")
    talk.probe_ends("a.1")
    assert talk.ejections == ["a back"]
    talk.arrives("q4")

    assert talk.sends == ["q4.0 unified to a"]


def test_the_failed_request_is_answered_as_ever() -> None:
    talk = a_talk("a", "b")
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)

    assert talk.responses == {"q": refused(Reason.ENGINE_ERROR)}
    assert talk.is_over


def test_what_is_on_a_replica_that_is_out_goes_on() -> None:
    talk = a_talk("a", "b")
    talk.arrives("q1")
    talk.first_token("q1.0")
    talk.arrives("q2")
    talk.fails("q2.0", Reason.ENGINE_ERROR)
    assert talk.ejections == ["b out"]
    talk.arrives("q3")
    talk.arrives("q4")
    talk.fails("q3.0", Reason.ENGINE_ERROR)

    assert talk.ejections == [], "the last one stays, whatever the policy says"
    talk.finishes("q1.0")
    assert talk.responses == {"q1": completed()}


def test_a_replica_that_is_back_takes_few_attempts_at_first() -> None:
    talk = a_talk_without("a", "b", slots=3)
    talk.fires("a.1:ejection")
    talk.probe_ends("a.1")
    for name in ("q1", "q2", "q3", "q4"):
        talk.arrives(name)
    assert talk.load["a"][0] == 1
    assert talk.load["b"][0] == 3

    talk.arrives("q5")
    assert talk.sends == [], "nobody has room"
    talk.finishes("q1.0")

    assert talk.sends == ["q5.0 unified to a"]
    talk.arrives("q6")
    assert talk.sends == ["q6.0 unified to a"], "two at a time by now"


def test_those_who_wait_go_when_a_first_token_lets_a_replica_take_more() -> None:
    choice = PolicyChoice(name="outlier", params={"signs": ["failures"], "max_failures": 1})
    talk = Dialogue(ejection=choice, retrying=NEVER_RETRY, rates=ServiceRates(new_token_s=0.001)).replicas(
        Role.UNIFIED, "a", "b", slots=2
    )
    talk.arrives("first")
    talk.fails("first.0", Reason.ENGINE_ERROR)
    talk.fires("a.1:ejection")
    talk.probe_ends("a.1")
    for name in ("q1", "q2", "q3", "q4"):
        talk.arrives(name)
    assert talk.sends == []

    talk.first_token("q1.0")

    assert talk.sends == ["q4.0 unified to a"]


def test_one_that_comes_back_is_sent_what_waits() -> None:
    talk = a_talk_without("a", "b", slots=1)
    talk.arrives("q1")
    talk.arrives("q2")
    assert talk.sends == []

    talk.fires("a.1:ejection")
    talk.probe_ends("a.1")

    assert talk.sends == ["q2.0 unified to a"]


def test_a_hedge_does_not_go_to_a_replica_that_is_out() -> None:
    talk = Dialogue(ejection=AFTER_ERRORS, retrying=NEVER_RETRY, hedging=hedge_after(0.5)).replicas(
        Role.UNIFIED, "a", "b"
    )
    talk.arrives("first")
    talk.fails("first.0", Reason.ENGINE_ERROR)
    talk.arrives("q")
    talk.fires("q.0:hedge")

    assert talk.sends == []


def test_a_policy_that_learns_nothing_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    monkeypatch.setattr(talk.policies.ejection, "decide", None)

    talk.arrives("q")
    talk.first_token("q.0")
    talk.finishes("q.0")

    assert talk.is_over


def test_when_the_others_have_left_the_one_that_is_out_comes_back_in_full() -> None:
    talk = a_talk_without("a", "b", "c")

    talk.replicas(Role.UNIFIED, "a", "c")
    assert talk.ejections == []
    talk.replicas(Role.UNIFIED, "a")

    assert talk.ejections == ["a back"]
    assert "a.1:ejection" not in talk.timers
    for name in ("q1", "q2", "q3"):
        talk.arrives(name)
        assert talk.sends == [f"{name}.0 unified to a"]


def test_when_the_others_are_lost_the_one_that_is_out_takes_over() -> None:
    talk = Dialogue(ejection=AFTER_ERRORS).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("first")
    talk.fails("first.0", Reason.ENGINE_ERROR)
    talk.arrives("q")
    talk.fails("q.0", Reason.REPLICA_LOST)

    assert talk.ejections == ["a back"]
    assert talk.sends == ["q.1 unified to a"]


def test_a_pool_has_its_own_last_one() -> None:
    talk = Dialogue(planner="always_disaggregated", retrying=NEVER_RETRY, ejection=AFTER_ERRORS)
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d1", "d2")
    talk.arrives("q1")
    talk.fails("q1.0", Reason.ENGINE_ERROR)
    assert talk.ejections == []
    talk.arrives("q2")
    talk.finishes("q2.0")
    talk.fails("q2.1", Reason.ENGINE_ERROR)

    assert talk.ejections == ["d1 out"]


def test_a_replica_that_has_left_is_not_announced_when_its_time_is_over() -> None:
    talk = a_talk_without("a", "b")
    talk.replicas(Role.UNIFIED, "b")
    assert talk.dispatcher.gauges(talk.now_s)["ejected_replicas:unified"] == 0.0

    talk.fires("a.1:ejection")
    talk.probe_ends("a.1")

    assert talk.ejections == []


def test_what_a_replica_that_has_left_still_says_is_no_reason() -> None:
    talk = a_talk("a", "b")
    talk.arrives("q")
    talk.replicas(Role.UNIFIED, "b")
    talk.fails("q.0", Reason.ENGINE_ERROR)

    assert talk.ejections == []


def test_a_gauge_says_how_many_of_each_pool_are_out() -> None:
    talk = a_talk_without("a", "b", "c")
    assert talk.dispatcher.gauges(talk.now_s)["ejected_replicas:unified"] == 1.0

    talk.fires("a.1:ejection")
    talk.probe_ends("a.1")

    assert talk.dispatcher.gauges(talk.now_s)["ejected_replicas:unified"] == 0.0


def test_another_policy_knows_nothing_of_who_is_on_its_way_back() -> None:
    talk = a_talk_without("a", "b")
    talk.fires("a.1:ejection")
    talk.probe_ends("a.1")

    policies = replace(talk.spec.policies, ejection=PolicyChoice(name="never_eject"))
    talk.tell(reconfigured(replace(talk.spec, policies=policies)))
    for name in ("q1", "q2", "q3", "q4"):
        talk.arrives(name)

    assert talk.load["a"][0] == 2


def test_the_same_policy_goes_on_with_what_it_knows() -> None:
    talk = a_talk_without("a", "b")
    talk.fires("a.1:ejection")
    talk.probe_ends("a.1")

    talk.tell(reconfigured(talk.spec))
    for name in ("q1", "q2", "q3", "q4"):
        talk.arrives(name)

    assert talk.load["a"][0] == 1


@for_each("what", ["stranger", "for ever", "no attempts"])
def test_a_policy_that_says_what_can_not_be_is_named(what: str) -> None:
    choice = PolicyChoice(name=f"{DOUBLES}:EjectAfterErrors", params={"what": what})
    talk = Dialogue(ejection=choice, retrying=NEVER_RETRY).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")

    with pytest.raises(PolicyMisbehaved, match="EjectAfterErrors"):
        talk.fails("q.0", Reason.ENGINE_ERROR)

    assert talk.load.keys() == {"a", "b"}
