"""Lanes through a whole dispatcher: what is sent where, and who waits."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import Seeds
from policies import Need, PolicyChoice, PolicySpec, RequestView, Role
from policies.errors import PolicyMisbehaved
from policies.views import FleetView
from routing import Arrived, AttemptFinished, DispatcherSpec, FirstTokenReceived, FleetChanged, Send, build_dispatcher
from routing.config.spec import LanesSpec
from routing.fleet.fleet import Fleet
from routing.lanes.lanes import Lane, TokenRange
from tests.policy_doubles import a_request, replica_info

POOLS = {"short": Role.UNIFIED, "long": Role.UNIFIED}
SHORT = Lane(name="short", prompt_tokens=TokenRange(0, 1000), pools=("short",), borrows_from=("long",))
LONG = Lane(name="long", prompt_tokens=TokenRange(1000), pools=("long",))


class NoLane:
    """A classifier that makes lanes up."""

    def classify(self, request: RequestView, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> Lane:
        return Lane(name="mine", pools=("short",))


class OffSwitch:
    """A guard that has turned the lanes off."""

    def look(self, request: RequestView, stage: Role, lanes: Sequence[Lane], fleet: Fleet, now_s: float) -> None: ...

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
        infos = tuple(replica_info(each, pool=pool, slots=self.slots) for each in replica_ids)
        return _sends(self.dispatcher.handle(FleetChanged(pool=pool, role=Role.UNIFIED, replicas=infos), 0.0))

    def arrives(self, request_id: str, prompt_tokens: int) -> list[str]:
        request = a_request(request_id, prompt_tokens=prompt_tokens)
        return [each.replica_id for each in _sends(self.dispatcher.handle(Arrived(request=request), 0.0))]

    def first_token(self, attempt_id: str) -> None:
        self.dispatcher.handle(FirstTokenReceived(attempt_id=attempt_id), 0.0)

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


def test_what_is_reserved_is_not_lent() -> None:
    talk = a_talk(SHORT, replace(LONG, reserve=1))
    talk.arrives("q", 20)

    assert talk.arrives("r", 20) == ["s"], "the only idle replica stays with its lane"

    talk.up("long", "l", "m")
    assert talk.arrives("x", 20) == ["l"]
    assert talk.arrives("y", 20) == ["s"], "one is idle still, and reserved"
    assert talk.arrives("z", 4000) == ["m"], "for its own lane"


def test_nothing_is_lent_that_somebody_at_home_waits_for() -> None:
    talk = a_talk(slots=1)
    talk.arrives("q", 4000)
    talk.arrives("r", 20)
    assert [talk.arrives("short", 20), talk.arrives("long", 4000)] == [[], []]

    assert talk.finishes("q.0") == ["long.0"], "though the short one has waited longer"
    assert talk.finishes("long.0") == ["short.0"]


def test_a_lane_that_lives_on_its_lender_is_not_kept_waiting_for_ever() -> None:
    talk = a_talk(slots=1)
    talk.up("short")
    talk.arrives("q", 4000)
    assert [talk.arrives("short", 20), talk.arrives("long", 4000)] == [[], []]

    assert talk.finishes("q.0") == ["short.0"]


class OffAtTheFourthLook(OffSwitch):
    """A guard that turns the lanes off when the fourth request comes."""

    def __init__(self) -> None:
        self._num_looks = 0

    def look(self, request: RequestView, stage: Role, lanes: Sequence[Lane], fleet: Fleet, now_s: float) -> None:
        self._num_looks += 1

    def are_on(self, role: Role) -> bool:
        return self._num_looks < 4


def test_when_lanes_go_off_those_who_wait_go_where_there_is_room() -> None:
    talk = a_talk(slots=1, guard=f"{__name__}:OffAtTheFourthLook")
    talk.arrives("q", 4000)
    assert [talk.arrives("long", 4000), talk.arrives("s", 4000)] == [[], []]

    assert talk.arrives("last", 4000) == ["s"]


class OffAtTheThirdLook(OffAtTheFourthLook):
    """The same a request earlier."""

    def are_on(self, role: Role) -> bool:
        return self._num_looks < 3


def test_when_lanes_go_off_who_waits_at_another_stage_goes_too() -> None:
    pools = {"p": Role.PREFILL, "quick": Role.DECODE, "slow": Role.DECODE}
    short = Lane(name="short", prompt_tokens=TokenRange(0, 1000), pools=("p", "quick"))
    long = Lane(name="long", prompt_tokens=TokenRange(1000), pools=("p", "slow"))
    spec = DispatcherSpec(
        planner=PolicyChoice(name="always_disaggregated"),
        pools=pools,
        lanes=LanesSpec(lanes=(short, long), guard=PolicyChoice(name=f"{__name__}:OffAtTheThirdLook")),
    )
    dispatcher = build_dispatcher(spec, rng_for=Seeds(1).stream, provided=frozenset(Need))
    for pool, role in pools.items():
        info = replica_info(pool, role, pool=pool, slots=1)
        dispatcher.handle(FleetChanged(pool=pool, role=role, replicas=(info,)), 0.0)
    for request_id in ("a", "b"):
        dispatcher.handle(Arrived(request=a_request(request_id, prompt_tokens=20)), 0.0)
        sends = _sends(dispatcher.handle(AttemptFinished(attempt_id=f"{request_id}.0", output_tokens=1), 0.0))

    assert sends == [], "the second one's decode waits for the first one's"
    sends = _sends(dispatcher.handle(Arrived(request=a_request("c", prompt_tokens=20)), 0.0))
    assert [(each.attempt_id, each.replica_id) for each in sends] == [("b.1", "slow"), ("c.0", "p")]


@given(
    steps=st.lists(st.tuples(st.sampled_from([20, 4000, None]), st.integers(0, 30)), max_size=60),
    slots=st.integers(1, 3),
    reserve=st.integers(0, 2),
)
def test_nobody_waits_while_a_replica_that_he_may_use_has_room(
    steps: list[tuple[int | None, int]], slots: int, reserve: int
) -> None:
    talk = Talk(SHORT, replace(LONG, reserve=reserve), slots=slots)
    talk.up("short", "s0", "s1")
    talk.up("long", "l0", "l1")
    sent: list[str] = []
    access, fleet = talk.dispatcher.access, talk.dispatcher.fleet
    for number, (prompt_tokens, which) in enumerate(steps):
        if prompt_tokens is not None:
            request = a_request(f"q{number}", prompt_tokens=prompt_tokens)
            effects = talk.dispatcher.handle(Arrived(request=request), float(number))
        elif sent:
            ended = AttemptFinished(attempt_id=sent.pop(which % len(sent)), output_tokens=5)
            effects = talk.dispatcher.handle(ended, float(number))
        else:
            continue
        sent += [each.attempt_id for each in _sends(effects)]
        for lane in ("short", "long"):
            queue = talk.dispatcher.policies.queues[access.queue_of(Role.UNIFIED, lane)]
            assert not (len(queue) and access.with_room(Role.UNIFIED, lane, fleet, float(number)))
        assert talk.dispatcher.num_open_requests == len(sent) + talk.dispatcher.num_waiting_requests
    num_arrived = sum(prompt_tokens is not None for prompt_tokens, _ in steps)
    gauges = talk.dispatcher.gauges(float(len(steps)))
    assert sum(gauges[f"lane_requests_total:{lane}"] for lane in ("short", "long")) == num_arrived
