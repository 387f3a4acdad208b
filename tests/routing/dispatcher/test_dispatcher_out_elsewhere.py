"""What one gateway has found out about a replica, the others go by."""

import math

from policies import PolicyChoice, Reason, Role
from policies.decisions import UNLIMITED_ATTEMPTS, Allow
from routing import DispatcherParams, NewsReceived, ReplicaStalled
from routing.fleet.ejection import LONGEST_TRIAL_S, TRIAL_TOLD_S
from routing.request.news import GatewayNews, SharedWork
from tests.routing.dialogue import DOUBLES, Dialogue

AFTER_ERRORS = PolicyChoice(name=f"{DOUBLES}:EjectAfterErrors")
IN_FULL = PolicyChoice(name=f"{DOUBLES}:EjectAfterErrors", params={"what": "in full"})
NEVER_RETRY = PolicyChoice(name="never_retry")


def one_of_two(*replicas: str, ejection: PolicyChoice = AFTER_ERRORS, slots: int = 8) -> Dialogue:
    """One of two gateways."""
    talk = Dialogue(ejection=ejection, retrying=NEVER_RETRY, num_gateways=2)
    return talk.replicas(Role.UNIFIED, *replicas, slots=slots)


def hears(talk: Dialogue, **until_s: float) -> None:
    talk.tell(NewsReceived(news=GatewayNews(work=SharedWork(out=until_s), at_s=talk.now_s)))


def out_of(talk: Dialogue) -> dict[str, float]:
    return dict(talk.dispatcher.work(talk.now_s).out)


def test_a_gateway_tells_whom_it_has_ejected_and_that_it_tries_it_again_until_it_is_sure() -> None:
    talk = one_of_two("a", "b")
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    assert out_of(talk) == {"a": 10.0}

    talk.at(10.0).fires("a.1:ejection")
    talk.probe_ends("a.1")
    assert out_of(talk) == {"a": 10.0 + TRIAL_TOLD_S}
    talk.at(12.0).arrives("again")
    talk.finishes("again.0")
    assert out_of(talk) == {"a": 12.0 + TRIAL_TOLD_S}, "it takes two at a time by now"

    talk.dispatcher.policies.ejection.decide = lambda *_: [  # type: ignore[method-assign]
        Allow(replica_id="a", max_attempts=UNLIMITED_ATTEMPTS)
    ]
    talk.arrives("last")
    talk.finishes("last.0")
    assert out_of(talk) == {}


def test_a_gateway_without_requests_to_try_a_replica_with_lets_the_others_do_it() -> None:
    talk = one_of_two("a", "b")
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    talk.at(10.0).fires("a.1:ejection")
    talk.probe_ends("a.1")

    talk.at(10.0 + LONGEST_TRIAL_S)

    assert out_of(talk) == {}


def test_a_replica_that_is_back_in_full_is_nobodys_trial() -> None:
    talk = one_of_two("a", "b", ejection=IN_FULL)
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    assert out_of(talk) == {"a": 10.0}

    talk.at(10.0).fires("a.1:ejection")
    talk.probe_ends("a.1")

    assert out_of(talk) == {}


def test_an_engine_that_fails_on_what_another_one_does_is_told_of_for_as_long_as_it_is_spared() -> None:
    talk = Dialogue(num_gateways=2, params=DispatcherParams(quarantine_s=5.0)).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    assert out_of(talk) == {}, "it may be the request's own fault"

    talk.finishes("q.1")
    assert out_of(talk) == {"a": 5.0}
    talk.at(5.0)
    assert out_of(talk) == {}


def test_losses_and_stalls_are_not_told_because_everybody_sees_them() -> None:
    talk = one_of_two("a", "b", "c")
    talk.arrives("q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    talk.tell(ReplicaStalled(replica_id="b"))

    assert out_of(talk) == {}


def test_a_replica_that_is_out_elsewhere_gets_nothing_for_as_long() -> None:
    talk = one_of_two("a", "b")

    hears(talk, a=7.0)
    talk.arrives("q")
    assert talk.sends == ["q.0 unified to b"]
    assert talk.timers["a.1:out_elsewhere"] == 7.0

    talk.at(7.0).arrives("later")
    assert talk.sends == ["later.0 unified to a"]


def test_requests_that_wait_are_looked_at_when_it_is_back() -> None:
    talk = one_of_two("a", "b", slots=1)
    hears(talk, a=7.0)
    talk.arrives("q1")
    talk.arrives("q2")
    assert talk.sends == []

    talk.at(7.0).fires("a.1:out_elsewhere")

    assert talk.sends == ["q2.0 unified to a"]


def test_what_is_told_again_and_again_sets_a_timer_now_and_then() -> None:
    talk = one_of_two("a", "b")
    for tick in range(20):
        talk.at(0.05 * tick)
        hears(talk, a=0.05 * tick + TRIAL_TOLD_S)

    assert len([each for each in talk.timers if each.endswith("out_elsewhere")]) == 4
    talk.arrives("q")
    assert talk.sends == ["q.0 unified to b"]


def test_what_it_was_told_it_does_not_tell() -> None:
    talk = one_of_two("a", "b")
    hears(talk, a=7.0)

    assert out_of(talk) == {}


def test_a_gateway_goes_by_itself_where_it_has_a_say() -> None:
    talk = one_of_two("a", "b")
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)

    hears(talk, a=100.0)
    talk.at(10.0).fires("a.1:ejection")
    talk.probe_ends("a.1")
    talk.arrives("again")

    assert talk.sends == ["again.0 unified to a"]


def test_together_they_put_no_more_than_half_of_a_pool_out() -> None:
    talk = one_of_two("a", "b", "c", "d")

    hears(talk, a=7.0, b=7.0, c=7.0)

    assert [each.replica_id for each in talk.dispatcher.fleet.live(Role.UNIFIED, 0.0)] == ["c", "d"]


def test_the_last_one_is_never_out_for_what_others_say() -> None:
    talk = one_of_two("a")

    hears(talk, a=7.0, gone=math.inf)
    talk.arrives("q")

    assert talk.sends == ["q.0 unified to a"]


def test_it_comes_back_when_all_others_of_its_pool_are_lost() -> None:
    talk = one_of_two("a", "b")
    hears(talk, a=300.0)
    talk.arrives("q")
    assert talk.sends == ["q.0 unified to b"]

    talk.fails("q.0", Reason.REPLICA_LOST)
    talk.arrives("next")

    assert talk.sends == ["next.0 unified to a"]
    hears(talk, a=300.0)
    talk.arrives("again")
    assert talk.sends == ["again.0 unified to a"], "the last one stays, whatever others say"


def test_it_comes_back_when_all_others_of_its_pool_leave() -> None:
    talk = one_of_two("a", "b")
    hears(talk, a=300.0)

    talk.replicas(Role.UNIFIED, "a")
    talk.arrives("q")

    assert talk.sends == ["q.0 unified to a"]


def test_one_that_was_lost_here_too_does_not_come_back_for_that() -> None:
    talk = one_of_two("a", "b")
    talk.arrives("q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    hears(talk, a=2.0)
    talk.arrives("p")
    talk.fails("p.0", Reason.REPLICA_LOST)

    talk.arrives("next")

    assert talk.sends == []


def test_nobody_is_forgotten_beside_a_replica_that_was_out_for_a_little_longer() -> None:
    talk = one_of_two("a", "b", slots=1)
    hears(talk, a=0.5)
    talk.arrives("first")
    talk.arrives("waits")
    talk.at(0.2)
    hears(talk, a=0.7)

    talk.at(0.5).fires("a.1:out_elsewhere")
    assert talk.sends == []
    assert talk.timers["a.2:out_elsewhere"] == 0.7
    talk.at(0.7).fires("a.2:out_elsewhere")

    assert talk.sends == ["waits.0 unified to a"]
