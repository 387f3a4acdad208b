"""Replicas that take whole requests beside their own stage."""

import pytest

from policies import ConfigError, Role
from routing.lanes.lanes import Lane, TokenRange, check_lanes
from routing.request.stages import pools_serving, stages_served
from tests.routing.dialogue import Dialogue

POOLS = {"p": Role.PREFILL, "d": Role.DECODE, "d2": Role.DECODE}
APART = "tests.policy_doubles:LongPromptsApart"
LONG = 4000


@pytest.fixture
def talk() -> Dialogue:
    """A prefill replica, and a decode replica with one slot that takes whole requests, too."""
    talk = Dialogue(planner=APART, whole_request_pools=("decode",))
    return talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", slots=1)


def test_pools_that_take_whole_requests_serve_two_stages() -> None:
    assert pools_serving(Role.UNIFIED, POOLS, ("d2",)) == ("d2",)
    assert pools_serving(Role.DECODE, POOLS, ("d2",)) == ("d", "d2")
    assert pools_serving(Role.PREFILL, POOLS, ("d2",)) == ("p",)
    assert stages_served(POOLS) == {Role.PREFILL, Role.DECODE}
    assert stages_served(POOLS, ("p",)) == frozenset(Role)


def test_a_whole_request_goes_to_a_decode_replica_that_takes_it(talk: Dialogue) -> None:
    talk.arrives("q")

    assert talk.sends == ["q.0 unified to d"]


def test_a_whole_request_runs_on_a_decode_replica_where_none_is_for_it() -> None:
    talk = Dialogue(planner=APART).replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")

    talk.arrives("q")

    assert talk.sends == ["q.0 unified to d"]


def test_the_slot_that_a_decode_gives_back_is_a_whole_requests(talk: Dialogue) -> None:
    talk.arrives("long", prompt_tokens=LONG)
    talk.finishes("long.0", output_tokens=1)
    talk.arrives("short")
    assert talk.sends == []

    talk.finishes("long.1")

    assert talk.sends == ["short.0 unified to d"]


def test_the_slot_that_a_whole_request_gives_back_is_a_decodes_before_all_others(talk: Dialogue) -> None:
    talk.arrives("first")
    talk.arrives("second")
    talk.arrives("long", prompt_tokens=LONG)
    talk.finishes("long.0", output_tokens=1)
    assert talk.sends == []

    talk.finishes("first.0")
    assert talk.sends == ["long.1 decode to d from long.0"]
    talk.finishes("long.1")
    assert talk.sends == ["second.0 unified to d"]


def test_a_new_decode_replica_takes_whole_requests_that_wait(talk: Dialogue) -> None:
    talk.arrives("first")
    talk.arrives("second")

    talk.replicas(Role.DECODE, "d", "e", slots=1)

    assert talk.sends == ["second.0 unified to e"]


def test_a_lane_needs_a_pool_for_whole_requests_when_there_are_some() -> None:
    short = Lane(name="short", prompt_tokens=TokenRange(0, 1000), pools=("p", "d"))
    long = Lane(name="long", prompt_tokens=TokenRange(1000), pools=("p", "d2"))
    check_lanes((short, long), POOLS)
    check_lanes((short, long), POOLS, ("p",))

    with pytest.raises(ConfigError) as caught:
        check_lanes((short, long), POOLS, ("d",))

    assert (caught.value.field, caught.value.allowed) == ("policies.lanes.lanes.1.pools", "also a pool for unified")


def test_lanes_that_differ_in_the_answer_alone_share_their_pools_for_whole_requests() -> None:
    quick = Lane(name="quick", output_tokens=TokenRange(0, 100), pools=("p", "d"))
    slow = Lane(name="slow", pools=("p", "d2"), output_tokens=TokenRange(100))
    check_lanes((quick, slow), POOLS)

    with pytest.raises(ConfigError) as caught:
        check_lanes((quick, slow), POOLS, ("d", "d2"))

    assert caught.value.field == "policies.lanes.lanes.1.pools"
