"""A replica that has just started gets one attempt at a time, then twice as many in each stage."""

from dataclasses import replace

from policies import Role
from routing import DispatcherParams, reconfigured
from tests.routing.dialogue import Dialogue

STAGE_S = 0.5


def a_talk(*replica_ids: str, slots: int = 8, stage_s: float = STAGE_S) -> Dialogue:
    return Dialogue(params=DispatcherParams(ramp_stage_s=stage_s)).replicas(Role.UNIFIED, *replica_ids, slots=slots)


def a_talk_with_a_fresh_replica(slots: int = 8, stage_s: float = STAGE_S) -> Dialogue:
    """``a`` is full, ``b`` has just started, and ten more wait or go there."""
    talk = a_talk("a", slots=slots, stage_s=stage_s)
    for number in range(slots + 10):
        talk.arrives(f"q{number}")
    return talk.replicas(Role.UNIFIED, "a", "b", slots=slots)


def at_b(talk: Dialogue) -> int:
    return talk.load["b"][0]


def test_one_attempt_is_at_a_fresh_replica_and_twice_as_many_after_each_stage() -> None:
    talk = a_talk_with_a_fresh_replica()
    assert (at_b(talk), talk.timers["b.1:ramp"]) == (1, STAGE_S)

    talk.fires("b.1:ramp")
    assert (at_b(talk), talk.timers["b.2:ramp"]) == (2, 2 * STAGE_S)
    talk.fires("b.2:ramp")
    assert at_b(talk) == 4
    talk.fires("b.3:ramp")

    assert at_b(talk) == 8
    assert not talk.timers.keys() & {"b.4:ramp"}


def test_the_next_one_goes_there_when_the_first_has_ended_within_the_stage() -> None:
    talk = a_talk_with_a_fresh_replica()

    talk.finishes("q8.0")

    assert talk.sends == ["q9.0 unified to b"]


def test_the_replicas_that_a_gateway_finds_are_not_fresh() -> None:
    talk = a_talk("a")
    talk.arrives("q1")
    talk.arrives("q2")

    assert talk.load["a"][0] == 2


def test_one_that_comes_after_all_others_have_gone_is_fresh() -> None:
    talk = a_talk("a").replicas(Role.UNIFIED).replicas(Role.UNIFIED, "b")
    talk.arrives("q1")
    talk.arrives("q2")

    assert at_b(talk) == 1


def test_with_0_a_fresh_replica_takes_what_it_can() -> None:
    assert at_b(a_talk_with_a_fresh_replica(stage_s=0.0)) == 8


def test_one_that_goes_and_comes_back_begins_anew_and_its_old_timer_says_nothing() -> None:
    talk = a_talk_with_a_fresh_replica()
    talk.fires("b.1:ramp")
    talk.replicas(Role.UNIFIED, "a")
    for number in (8, 9):
        talk.finishes(f"q{number}.0")

    talk.replicas(Role.UNIFIED, "a", "b")
    assert at_b(talk) == 1
    talk.fires("b.2:ramp")
    assert at_b(talk) == 1
    talk.fires("b.3:ramp")

    assert at_b(talk) == 2


def test_a_configuration_without_a_ramp_ends_those_that_have_begun() -> None:
    talk = a_talk_with_a_fresh_replica()

    talk.tell(reconfigured(replace(talk.spec, params=DispatcherParams(ramp_stage_s=0.0))))

    assert at_b(talk) == 8
    talk.fires("b.1:ramp")
    assert talk.sends == []
