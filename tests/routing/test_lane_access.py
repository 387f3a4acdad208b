"""Lanes through a whole dispatcher: what is sent where, and who waits."""

from collections.abc import Sequence

import pytest

from cluster import Seeds
from policies import Need, PolicyChoice, PolicySpec, RequestView, Role
from policies.errors import PolicyMisbehaved
from policies.views import FleetView
from routing import (
    Arrived,
    AttemptFinished,
    DispatcherSpec,
    FirstToken,
    FleetChanged,
    ReplicaInfo,
    Send,
    build_dispatcher,
)
from routing.assembly import LanesSpec
from routing.fleet import Fleet
from routing.lanes import Lane, TokenRange
from tests.policy_doubles import a_request

POOLS = {"short": Role.UNIFIED, "long": Role.UNIFIED}
SHORT = Lane(name="short", prompt_tokens=TokenRange(0, 1000), pools=("short",), borrows_from=("long",))
LONG = Lane(name="long", prompt_tokens=TokenRange(1000), pools=("long",))


class NoLane:
    """A classifier that makes lanes up."""

    def classify(self, request: RequestView, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> Lane:
        return Lane(name="mine", pools=("short",))


class OffSwitch:
    """A guard that has turned the lanes off."""

    def look(self, lanes: Sequence[Lane], fleet: Fleet, now_s: float) -> None: ...

    def are_on(self, role: Role) -> bool:
        return False


class Talk:
    """A dispatcher with two lanes of unified pools."""

    def __init__(self, *lanes: Lane, slots: int = 8, guard: str = "always_on", classifier: str = "first_that_fits"):
        spec = DispatcherSpec(
            planner=PolicyChoice(name="always_unified"),
            pools=POOLS,
            policies=PolicySpec(),
            lanes=LanesSpec(
                lanes=lanes or (SHORT, LONG), guard=PolicyChoice(name=guard), classifier=PolicyChoice(name=classifier)
            ),
        )
        self.slots = slots
        self.dispatcher = build_dispatcher(spec, rng_for=Seeds(1).stream, provided=frozenset(Need))

    def up(self, pool: str, *replica_ids: str) -> list[Send]:
        infos = tuple(
            ReplicaInfo(
                replica_id=each,
                role=Role.UNIFIED,
                pool=pool,
                max_ongoing_requests=self.slots,
                kv_capacity_tokens=9999,
            )
            for each in replica_ids
        )
        return _sends(self.dispatcher.handle(FleetChanged(pool=pool, role=Role.UNIFIED, replicas=infos), 0.0))

    def arrives(self, request_id: str, prompt_tokens: int) -> list[str]:
        request = a_request(request_id, prompt_tokens=prompt_tokens)
        return [each.replica_id for each in _sends(self.dispatcher.handle(Arrived(request=request), 0.0))]

    def first_token(self, attempt_id: str) -> None:
        self.dispatcher.handle(FirstToken(attempt_id=attempt_id), 0.0)

    def finishes(self, attempt_id: str) -> list[str]:
        effects = self.dispatcher.handle(AttemptFinished(attempt_id=attempt_id, output_tokens=5), 0.0)
        return [each.attempt_id for each in _sends(effects)]


def _sends(effects: Sequence[object]) -> list[Send]:
    return [each for each in effects if isinstance(each, Send)]


def a_talk(*lanes: Lane, slots: int = 8, guard: str = "always_on") -> Talk:
    talk = Talk(*lanes, slots=slots, guard=guard)
    talk.up("short", "s")
    talk.up("long", "l")
    return talk


def test_each_lane_uses_its_own_pool() -> None:
    talk = a_talk()

    assert talk.arrives("q", 20) == ["s"]
    assert talk.arrives("r", 4000) == ["l"]


def test_a_short_request_borrows_an_idle_replica_when_none_of_its_own_is_idle() -> None:
    talk = a_talk()

    assert talk.arrives("q", 20) == ["s"]
    assert talk.arrives("r", 20) == ["l"]
    assert talk.arrives("x", 20) == ["s"], "nobody is idle any more"


def test_a_replica_that_only_decodes_counts_as_idle() -> None:
    talk = a_talk()
    talk.arrives("q", 20)
    talk.first_token("q.0")

    assert talk.arrives("r", 20) == ["s"]


def test_a_long_request_borrows_nothing() -> None:
    talk = a_talk()

    assert talk.arrives("q", 4000) == ["l"]
    assert talk.arrives("r", 4000) == ["l"]


def test_who_has_no_room_in_its_lane_waits_while_the_other_lane_goes_on() -> None:
    talk = a_talk(slots=1)
    talk.arrives("q", 4000)

    assert talk.arrives("waits", 4000) == []
    assert talk.arrives("r", 20) == ["s"]
    assert talk.finishes("r.0") == []
    assert talk.finishes("q.0") == ["waits.0"]


def test_a_lane_whose_own_pool_is_gone_is_served_by_its_lender() -> None:
    talk = a_talk()
    talk.up("short")
    talk.arrives("q", 4000)

    assert talk.arrives("r", 20) == ["l"]


def test_with_lanes_turned_off_every_replica_serves_everybody() -> None:
    talk = a_talk(guard=f"{__name__}:OffSwitch")

    assert talk.arrives("q", 4000) == ["l"]
    assert talk.arrives("r", 4000) == ["s"]


def test_a_classifier_that_makes_a_lane_up_has_misbehaved() -> None:
    talk = Talk(classifier=f"{__name__}:NoLane")

    with pytest.raises(PolicyMisbehaved, match=r"one of the lanes \['short', 'long'\]"):
        talk.arrives("q", 20)


def test_lanes_that_use_the_same_pools_wait_in_one_queue() -> None:
    chat = Lane(name="chat", prompt_tokens=TokenRange(0, 500), pools=("short",))
    letter = Lane(name="letter", prompt_tokens=TokenRange(500, 1000), pools=("short",))
    talk = a_talk(chat, letter, LONG, slots=1)
    talk.arrives("q", 20)

    assert [talk.arrives("first", 700), talk.arrives("second", 20)] == [[], []]
    assert talk.finishes("q.0") == ["first.0"], "first come, first served, across lanes"
