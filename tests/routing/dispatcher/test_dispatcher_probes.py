"""A replica whose engine has failed, or was slow, is tried with a request of the gateway's own before a client's."""

from dataclasses import replace

import pytest

from policies import PolicyChoice, Reason, Role
from policies.decisions import UNLIMITED_ATTEMPTS, Eject, EjectionReason
from routing import CancelProbe, DispatcherParams, ReplicaStalled, ReplicaUnstalled, TimerFired, reconfigured
from routing.fleet.ejection import PROBATION_S
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import DOUBLES, Dialogue
from tests.tables import for_each

AFTER_ERRORS = PolicyChoice(name=f"{DOUBLES}:EjectAfterErrors")
NEVER_RETRY = PolicyChoice(name="never_retry")
SLOW = PolicyChoice(name=f"{DOUBLES}:EjectAfterErrors", params={"what": "for tokens"})
OUT_S, PROBE_S = 10.0, 2.0
RATES = ServiceRates(step_s=0.005, new_token_s=2e-5)


def a_talk_without_a(
    *others: str, probe_s: float = PROBE_S, ejection: PolicyChoice = AFTER_ERRORS, rates: ServiceRates | None = None
) -> Dialogue:
    """One replica has been ejected at 0 s, for ten seconds, because its engine failed."""
    params = DispatcherParams(probe_s=probe_s)
    talk = Dialogue(ejection=ejection, retrying=NEVER_RETRY, params=params, rates=rates)
    talk.replicas(Role.UNIFIED, "a", *(others or ("b",)))
    talk.arrives("first")
    talk.fails("first.0", Reason.ENGINE_ERROR)
    assert talk.ejections == ["a out"]
    return talk


def spared(talk: Dialogue, name: str = "q") -> str:
    """The engine of a fails on what that of b does, and a is spared; the timer that ends that."""
    talk.arrives(name)
    assert talk.sends == [f"{name}.0 unified to a"]
    talk.fails(f"{name}.0", Reason.ENGINE_ERROR)
    talk.finishes(f"{name}.1")
    return max((at_s, token) for token, at_s in talk.timers.items() if token.endswith(":quarantine"))[1]


def gets_requests(talk: Dialogue, replica_id: str) -> bool:
    """Whether the replica gets one of as many requests as there are replicas; they are all answered."""
    names = [f"{talk.now_s}-{number}" for number in range(4)]
    for name in names:
        talk.arrives(name)
    has_some = replica_id in talk.load
    for name in names:
        talk.finishes(f"{name}.0")
    return has_some


def test_one_that_was_ejected_for_failures_is_probed_when_its_time_is_over_and_back_when_that_went_well() -> None:
    talk = a_talk_without_a()
    talk.fires("a.1:ejection")
    assert (talk.probes, talk.ejections) == (["a.1 on a"], [])
    assert not gets_requests(talk, "a")

    talk.at(10.5).probe_ends("a.1")

    assert talk.ejections == ["a back"]
    assert "a.1:probe" not in talk.timers
    assert gets_requests(talk, "a")


def test_one_whose_probe_fails_is_out_for_as_long_again_and_probed_again() -> None:
    talk = a_talk_without_a()
    talk.fires("a.1:ejection")

    talk.at(10.5).probe_ends("a.1", is_well=False)

    assert talk.timers["a.1:ejection"] == 10.5 + OUT_S
    assert not gets_requests(talk, "a")
    talk.fires("a.1:ejection")
    assert talk.probes == ["a.2 on a"]


def test_a_probe_that_takes_too_long_has_failed() -> None:
    talk = a_talk_without_a()
    talk.fires("a.1:ejection")

    talk.fires("a.1:probe")

    assert (talk.now_s, talk.cancelled_probes) == (OUT_S + PROBE_S, ["a.1"])
    assert not gets_requests(talk, "a")
    talk.probe_ends("a.1")
    assert talk.ejections == [], "it comes too late"
    talk.fires("a.1:ejection")
    assert talk.probes == ["a.2 on a"]


@for_each(
    ("what", "prompt_tokens", "output_tokens"),
    [("for first tokens", 2048, 1), ("for tokens", 8, 64)],
    ids=["first", "all"],
)
def test_one_that_was_slow_has_to_show_that_it_is_slow_no_longer(
    what: str, prompt_tokens: int, output_tokens: int
) -> None:
    slow = PolicyChoice(name=f"{DOUBLES}:EjectAfterErrors", params={"what": what})
    talk = a_talk_without_a(ejection=slow, rates=RATES)
    talk.fires("a.1:ejection")
    (probe,) = talk.last_probes
    expected_s = RATES.prefill_s(prompt_tokens, prompt_tokens)
    expected_s += (output_tokens - 1) * RATES.token_s(1, prompt_tokens + output_tokens)

    assert (probe.prompt_tokens, probe.output_tokens) == (prompt_tokens, output_tokens)
    assert talk.timers["a.1:probe"] == pytest.approx(OUT_S + 2.5 * expected_s + 0.05)
    assert not gets_requests(talk, "a")

    talk.at(OUT_S + 1.1 * expected_s).probe_ends("a.1")
    assert talk.ejections == ["a back"]


def test_one_that_is_slow_still_is_out_for_as_long_again() -> None:
    talk = a_talk_without_a(ejection=SLOW, rates=RATES)
    talk.fires("a.1:ejection")

    talk.fires("a.1:probe")

    assert (talk.cancelled_probes, talk.ejections) == (["a.1"], [])
    assert talk.timers["a.1:ejection"] == talk.now_s + OUT_S
    assert not gets_requests(talk, "a")


def test_one_whose_profile_is_too_good_has_to_answer_at_all_after_three_probes() -> None:
    talk = a_talk_without_a(ejection=SLOW, rates=RATES)
    for number in (1, 2, 3):
        talk.fires("a.1:ejection")
        assert talk.last_probes[0].output_tokens == 64
        talk.fires(f"a.{number}:probe")

    talk.fires("a.1:ejection")

    assert talk.last_probes[0].output_tokens == 1
    talk.probe_ends("a.4")
    assert talk.ejections == ["a back"]


def test_a_probe_waits_for_what_a_slow_replica_has_still_to_do() -> None:
    talk = a_talk_without_a(ejection=SLOW, rates=RATES)
    talk.reports("a", 0, prefill_tokens=5000)
    talk.fires("a.1:ejection")
    alone = a_talk_without_a(ejection=SLOW, rates=RATES)
    alone.fires("a.1:ejection")

    assert talk.timers["a.1:probe"] - alone.timers["a.1:probe"] == pytest.approx(2.5 * RATES.queue_s(5000))


def test_where_nobody_has_said_how_fast_engines_are_one_that_was_slow_has_to_answer_at_all() -> None:
    talk = a_talk_without_a(ejection=SLOW)
    talk.fires("a.1:ejection")

    assert (talk.last_probes[0].output_tokens, talk.timers["a.1:probe"]) == (1, OUT_S + PROBE_S)


def test_one_that_was_slow_and_then_failed_has_to_show_both() -> None:
    talk = a_talk_without_a(ejection=SLOW, rates=RATES)
    talk.dispatcher._ejector.spare_erring("a", "q.0", 1.0, 1.0)
    talk.fires("a.1:ejection")

    assert [each.output_tokens for each in talk.last_probes] == [64]


def test_one_that_was_spared_for_errors_is_probed_too() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    token = spared(talk)
    talk.fires(token)
    assert talk.probes == ["a.1 on a"]
    assert not gets_requests(talk, "a")

    talk.at(5.5).probe_ends("a.1", is_well=False)
    assert not gets_requests(talk, "a")
    talk.at(10.5).fires("a.1:quarantine")
    talk.probe_ends("a.2")

    assert gets_requests(talk, "a")


def test_one_that_is_both_spared_and_ejected_is_probed_once_when_both_are_over() -> None:
    """An engine fails, another one does what it did not, and the policy ejects it for that."""
    talk = Dialogue(ejection=AFTER_ERRORS, params=DispatcherParams(quarantine_s=2.0))
    talk.replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    assert talk.ejections == ["a out"]
    talk.finishes("q.1")
    [quarantine] = [each for each in talk.timers if each.endswith(":quarantine")]

    talk.fires(quarantine)
    assert talk.probes == []
    talk.fires("a.1:ejection")
    assert talk.probes == ["a.1 on a"]
    talk.probe_ends("a.1", is_well=False)
    talk.fires("a.1:ejection")
    talk.probe_ends("a.2")
    assert talk.ejections == ["a back"]
    talk.at(talk.now_s + 1.0).arrives("r")
    assert talk.probes == []


def test_one_that_is_ejected_while_it_is_spared_is_probed_once_too() -> None:
    talk = Dialogue(ejection=PolicyChoice(name=f"{DOUBLES}:EjectAfterErrors", params={"what": "for tokens"}))
    talk.replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.arrives("r")
    talk.arrives("s")
    assert talk.load["a"][0] == 2
    talk.fails("q.0", Reason.ENGINE_ERROR)
    talk.finishes("q.1")
    [quarantine] = [each for each in talk.timers if each.endswith(":quarantine")]
    talk.at(1.0).fails("s.0", Reason.ENGINE_ERROR)

    talk.fires(quarantine)
    assert talk.probes == []
    ejection = max((at_s, token) for token, at_s in talk.timers.items() if token.endswith(":ejection"))[1]
    talk.fires(ejection)
    assert talk.probes == ["a.1 on a"]


def test_one_that_is_ejected_while_it_is_probed_is_out_for_that_time_and_no_longer() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", "c")
    talk.fires(spared(talk))
    assert talk.probes == ["a.1 on a"]
    ejector = talk.dispatcher._ejector
    slow = Eject(replica_id="a", reason=EjectionReason.FIRST_TOKENS, for_s=OUT_S, attempts_then=UNLIMITED_ATTEMPTS)
    assert CancelProbe(probe_id="a.1") in ejector._eject(slow, "unified", talk.now_s)
    assert not gets_requests(talk, "a")

    talk.at(talk.now_s + OUT_S)

    assert gets_requests(talk, "a")


def test_other_gateways_wait_until_the_probe_has_ended() -> None:
    talk = Dialogue(num_gateways=2).replicas(Role.UNIFIED, "a", "b")
    token = spared(talk)
    talk.fires(token)
    assert dict(talk.dispatcher.work(5.0).out) == {"a": 5.0 + PROBE_S}

    talk.probe_ends("a.1", is_well=False)
    assert dict(talk.dispatcher.work(5.0).out) == {"a": 10.0}
    talk.fires("a.1:quarantine")
    talk.probe_ends("a.2")

    assert dict(talk.dispatcher.work(talk.now_s).out) == {}


def test_one_error_is_enough_in_the_minute_after_a_probe() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.fires(spared(talk))
    talk.probe_ends("a.1")

    talk.at(5.0 + PROBATION_S - 1.0).arrives("r")
    talk.fails("r.0", Reason.ENGINE_ERROR)

    assert not gets_requests(talk, "a")


def test_the_last_one_of_a_pool_is_back_whatever_its_probe_says() -> None:
    talk = a_talk_without_a()
    talk.fires("a.1:ejection")
    talk.replicas(Role.UNIFIED, "a")
    assert (talk.ejections, talk.cancelled_probes) == (["a back"], ["a.1"])
    assert gets_requests(talk, "a")


def test_a_replica_that_has_gone_is_probed_no_more() -> None:
    talk = a_talk_without_a("b", "c")
    talk.fires("a.1:ejection")
    talk.replicas(Role.UNIFIED, "b", "c")

    talk.probe_ends("a.1", is_well=False)
    assert talk.answer == []
    talk.fires("a.1:probe")
    assert talk.ejections == []


def test_one_that_stands_still_meanwhile_is_out_for_that() -> None:
    talk = a_talk_without_a("b", "c")
    talk.fires("a.1:ejection")

    talk.tell(ReplicaStalled(replica_id="a"))
    assert talk.cancelled_probes == ["a.1"]
    talk.probe_ends("a.1")

    assert not gets_requests(talk, "a")


def test_one_that_was_spared_is_back_in_time_where_probes_have_been_turned_off() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    token = spared(talk)
    talk.tell(reconfigured(replace(talk.spec, params=DispatcherParams(probe_s=0.0))))

    talk.fires(token)

    assert talk.probes == []
    assert gets_requests(talk, "a")


def test_a_timer_that_is_a_bit_early_begins_the_probe() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    token = spared(talk)
    talk.now_s = 4.999

    talk.tell(TimerFired(token=token))

    assert talk.probes == ["a.1 on a"]
    talk.at(5.0)
    assert not gets_requests(talk, "a")


def test_when_the_others_have_left_one_that_is_probed_is_back_at_once() -> None:
    talk = Dialogue(params=DispatcherParams(waiting_room_s=0.0)).replicas(Role.UNIFIED, "a", "b")
    talk.fires(spared(talk))

    talk.replicas(Role.UNIFIED, "a")

    assert talk.cancelled_probes == ["a.1"]
    assert gets_requests(talk, "a")


def test_the_last_one_of_a_pool_is_not_probed() -> None:
    talk = Dialogue(params=DispatcherParams(waiting_room_s=0.0)).replicas(Role.UNIFIED, "a", "b")
    token = spared(talk)
    talk.at(1.0).replicas(Role.UNIFIED, "a")

    talk.fires(token)

    assert talk.probes == []
    assert gets_requests(talk, "a")


def test_one_that_leaves_during_a_probe_and_returns_is_well() -> None:
    """It has an attempt, so that it is remembered meanwhile."""
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("first")
    talk.arrives("open")
    talk.arrives("q")
    assert talk.sends == ["q.0 unified to a"]
    talk.fails("q.0", Reason.ENGINE_ERROR)
    talk.finishes("q.1")
    talk.fires(next(each for each in talk.timers if each.endswith(":quarantine")))
    assert talk.probes == ["a.1 on a"]

    talk.replicas(Role.UNIFIED, "b")
    assert talk.cancelled_probes == ["a.1"]
    talk.replicas(Role.UNIFIED, "a", "b")

    assert gets_requests(talk, "a")


def test_one_that_fails_after_it_has_left_is_not_probed_and_well_when_it_returns() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    for name in ("open", "other", "q"):
        talk.arrives(name)
    assert talk.sends == ["q.0 unified to a"]
    talk.replicas(Role.UNIFIED, "b")

    talk.fails("q.0", Reason.ENGINE_ERROR)
    talk.finishes("q.1")
    for timer in [each for each in talk.timers if each.endswith(":quarantine")]:
        talk.fires(timer)

    assert talk.probes == []
    talk.replicas(Role.UNIFIED, "a", "b")
    assert gets_requests(talk, "a")


def test_one_that_stands_still_for_a_moment_stays_out_for_what_it_was_out_for() -> None:
    talk = a_talk_without_a()
    talk.at(1.0).tell(ReplicaStalled(replica_id="a"))
    talk.at(1.5).tell(ReplicaUnstalled(replica_id="a"))
    assert not gets_requests(talk, "a")

    talk.fires("a.1:ejection")

    assert talk.probes == ["a.1 on a"]
    talk.probe_ends("a.1", is_well=True)
    assert gets_requests(talk, "a")


def test_one_that_stood_still_when_its_time_was_over_is_probed_when_it_moves() -> None:
    talk = a_talk_without_a()
    talk.at(1.0).tell(ReplicaStalled(replica_id="a"))
    talk.fires("a.1:ejection")
    assert talk.probes == []

    talk.at(OUT_S + 5.0).tell(ReplicaUnstalled(replica_id="a"))

    assert talk.probes == ["a.1 on a"]
    assert not gets_requests(talk, "a")


def test_a_probe_during_which_a_replica_stood_still_is_made_again() -> None:
    talk = a_talk_without_a()
    talk.fires("a.1:ejection")
    talk.tell(ReplicaStalled(replica_id="a"))
    assert talk.cancelled_probes == ["a.1"]
    talk.tell(ReplicaUnstalled(replica_id="a"))
    assert talk.probes == ["a.2 on a"]


def test_one_that_was_spared_and_stood_still_has_its_probe_yet() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    timer = spared(talk)
    talk.tell(ReplicaStalled(replica_id="a"))
    talk.tell(ReplicaUnstalled(replica_id="a"))
    assert not gets_requests(talk, "a")
    talk.fires(timer)
    assert talk.probes == ["a.1 on a"]
    talk.tell(ReplicaStalled(replica_id="a"))
    talk.tell(ReplicaUnstalled(replica_id="a"))
    assert talk.probes == ["a.2 on a"]


def test_the_last_one_that_moves_again_is_asked_whatever_it_was_out_for() -> None:
    talk = a_talk_without_a()
    talk.tell(ReplicaStalled(replica_id="a"))
    talk.replicas(Role.UNIFIED, "a")
    talk.tell(ReplicaUnstalled(replica_id="a"))
    talk.arrives("q")
    assert talk.sends == ["q.0 unified to a"]


def test_where_probes_are_turned_off_clients_requests_show_whether_it_is_well() -> None:
    talk = a_talk_without_a(probe_s=0.0)
    talk.fires("a.1:ejection")
    assert (talk.probes, talk.ejections) == ([], ["a back"])


def test_probes_may_be_turned_off_while_a_replica_is_out() -> None:
    talk = a_talk_without_a()
    talk.tell(reconfigured(replace(talk.spec, params=DispatcherParams(probe_s=0.0))))

    talk.fires("a.1:ejection")

    assert (talk.probes, talk.ejections) == ([], ["a back"])
