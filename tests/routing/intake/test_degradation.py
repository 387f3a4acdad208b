"""Requests that are answered more cheaply than they ask for."""

from dataclasses import replace

import pytest

from cluster import Seeds
from policies import Need, PolicyChoice, PolicySpec, Priority, Reason, Role
from policies.errors import ConfigError, PolicyMisbehaved
from policies.signals import Ended
from routing import Arrived, Dispatcher, Effect, FleetChanged, Respond, Send, build_dispatcher
from routing.config.spec import LanesSpec
from routing.lanes.lanes import Lane, check_lanes
from routing.request.effects import Classification, Degraded, Record
from tests.policy_doubles import a_request, replica_info
from tests.routing.dialogue import DOUBLES, Dialogue, cancelled, completed, failed, refused
from tests.tables import for_each


def degrade_to(**bounds: object) -> PolicyChoice:
    return PolicyChoice(name=f"{DOUBLES}:DegradeTo", params=bounds)


def degrading(**bounds: object) -> Dialogue:
    return Dialogue(degradation=degrade_to(**bounds)).replicas(Role.UNIFIED, "a")


def test_a_request_goes_on_as_the_cheaper_one_and_the_host_is_told_before_anything_is_sent() -> None:
    talk = degrading(max_output_tokens=20)

    talk.arrives("q", prompt_tokens=100, max_output_tokens=50)

    assert talk.degraded == [
        Degraded(request_id="q", priority=Priority.STANDARD, max_output_tokens=20, asked_output_tokens=50)
    ]
    (send,) = [each for each in talk.answer if isinstance(each, Send)]
    assert send.kv_tokens == 120
    assert talk.answer.index(Record(decision=talk.degraded[0])) < talk.answer.index(send)


def test_what_is_not_degraded_leaves_no_trace() -> None:
    talk = degrading(max_output_tokens=20)

    talk.arrives("q", priority=Priority.CRITICAL)

    assert talk.degraded == []
    assert [each.kv_tokens for each in talk.answer if isinstance(each, Send)] == [150]


def test_an_answer_never_gets_longer_than_was_asked_for() -> None:
    talk = degrading(max_output_tokens=2_000)

    talk.arrives("q", max_output_tokens=50)

    assert [(each.max_output_tokens, each.asked_output_tokens) for each in talk.degraded] == [(50, 50)]


def test_admission_judges_what_is_left_of_the_request() -> None:
    admit_short = PolicyChoice(name=f"{DOUBLES}:AdmitShort", params={"tokens": 20})
    talk = Dialogue(admission=admit_short, degradation=degrade_to(max_output_tokens=20)).replicas(Role.UNIFIED, "a")

    talk.arrives("short")
    assert talk.sends == ["short.0 unified to a"]
    talk.arrives("whole", priority=Priority.CRITICAL)
    assert talk.responses == {"whole": refused(Reason.QUEUE_FULL, 1.0, to="whole")}


def test_a_request_that_is_refused_all_the_same_was_not_degraded() -> None:
    talk = Dialogue(
        admission=PolicyChoice(name=f"{DOUBLES}:AdmitNone"), degradation=degrade_to(max_output_tokens=20)
    ).replicas(Role.UNIFIED, "a")

    talk.arrives("q")

    assert talk.degraded == []
    assert list(talk.responses) == ["q"]
    assert talk.is_over


@for_each("bounds", [{"max_output_tokens": 0}, {"output_time_limit_s": 0.0}, {"lane": "nowhere"}])
def test_a_policy_that_leaves_nothing_of_a_request_misbehaves(bounds: dict[str, object]) -> None:
    with pytest.raises(PolicyMisbehaved, match="degradation: DegradeTo answered"):
        degrading(**bounds).arrives("q")


# -- the time box -----------------------------------------------------------------------------------------------------


def test_an_answer_ends_when_its_time_is_up_with_the_tokens_that_there_are() -> None:
    talk = degrading(output_time_limit_s=2.0)
    talk.arrives("q", budget_s=30.0)
    assert talk.timers == {"q:deadline": 30.0}

    talk.at(5.0).first_token("q.0")
    assert talk.timers == {"q:deadline": 30.0, "q:output_time_limit": 7.0}
    talk.fires("q:output_time_limit")
    assert (talk.now_s, talk.cuts, talk.cancels, talk.responses) == (7.0, ["q.0"], [], {})
    talk.finishes("q.0", output_tokens=12)

    assert talk.responses == {"q": completed()}
    ended = talk.request_signals[-1]
    assert isinstance(ended, Ended)
    assert (ended.is_completed, ended.output_tokens) == (True, 12)
    assert talk.timers == {}
    assert talk.is_over


def test_an_answer_that_is_whole_in_time_is_not_cut() -> None:
    talk = degrading(output_time_limit_s=2.0)
    talk.arrives("q")
    talk.first_token("q.0")

    talk.finishes("q.0")

    assert talk.responses == {"q": completed()}
    assert talk.timers == {}, "nobody waits for the end of the box any more"
    talk.fires("q:output_time_limit")
    assert talk.answer == []


def test_the_box_begins_with_the_answers_first_token_and_not_with_the_prefills() -> None:
    talk = Dialogue(planner="always_disaggregated", degradation=degrade_to(output_time_limit_s=2.0))
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    talk.arrives("q")

    talk.first_token("q.0")
    talk.finishes("q.0", output_tokens=1)
    assert "q:output_time_limit" not in talk.timers
    talk.at(3.0).first_token("q.1")

    assert talk.timers["q:output_time_limit"] == 5.0
    talk.fires("q:output_time_limit")
    assert talk.cuts == ["q.1"]


def test_a_request_without_a_first_token_is_not_cut_but_refused_at_its_deadline() -> None:
    talk = degrading(output_time_limit_s=2.0)
    talk.arrives("q", budget_s=10.0)

    talk.fires("q:deadline")

    assert talk.responses == {"q": refused(Reason.DEADLINE_EXCEEDED)}
    assert talk.cancels == ["q.0"]


def test_a_client_that_goes_after_the_cut_is_gone_and_the_slot_comes_back() -> None:
    talk = degrading(output_time_limit_s=2.0)
    talk.arrives("q")
    talk.first_token("q.0")
    talk.fires("q:output_time_limit")

    talk.client_goes("q")
    assert talk.responses == {"q": cancelled()}
    talk.finishes("q.0", output_tokens=12)

    assert talk.responses == {}
    assert talk.is_over


def test_a_replica_that_is_lost_after_the_cut_fails_the_request() -> None:
    talk = degrading(output_time_limit_s=2.0)
    talk.arrives("q")
    talk.first_token("q.0")
    talk.fires("q:output_time_limit")

    talk.fails("q.0", Reason.REPLICA_LOST)

    assert talk.responses == {"q": failed(Reason.REPLICA_LOST)}
    assert talk.is_over


def test_a_predictor_that_knows_of_cut_answers_does_not_learn_that_answers_are_short() -> None:
    """Fifty answers of 200 tokens, then five hundred that were cut after 10."""
    talk = Dialogue(
        degradation=degrade_to(output_time_limit_s=1.0),
        length_prediction=PolicyChoice(name="log2_histogram", params={"min_samples": 10}),
    ).replicas(Role.UNIFIED, "a")
    for number in range(550):
        name = f"r{number}"
        talk.arrives(name, max_output_tokens=1_000)
        talk.first_token(f"{name}.0")
        if number >= 50:
            talk.fires(f"{name}:output_time_limit")
        talk.finishes(f"{name}.0", output_tokens=10 if number >= 50 else 200)

    talk.arrives("q", max_output_tokens=1_000)

    (send,) = [each for each in talk.answer if isinstance(each, Send)]
    assert send.kv_tokens - 100 > 100


# -- what the host has ------------------------------------------------------------------------------------------------


def test_a_request_whose_answer_is_there_is_answered_with_it_and_nothing_is_sent() -> None:
    talk = degrading(may_use_cache=True, max_output_tokens=20)

    talk.arrives("q", has_cached_answer=True)

    assert talk.sends == []
    assert talk.responses == {"q": completed()}
    (known,) = talk.degraded
    assert (known.from_cache, known.max_output_tokens, known.asked_output_tokens) == (True, 50, 50)
    assert talk.timers == {}
    assert talk.is_over


@for_each("may_use_cache", [False, True])
def test_a_request_whose_answer_may_not_be_used_or_is_not_there_is_served(may_use_cache: bool) -> None:
    talk = degrading(may_use_cache=may_use_cache, max_output_tokens=20)

    talk.arrives("q", has_cached_answer=not may_use_cache)

    assert talk.sends == ["q.0 unified to a"]
    assert [(each.from_cache, each.max_output_tokens) for each in talk.degraded] == [(False, 20)]


# -- another lane -----------------------------------------------------------------------------------------------------


LARGE = Lane(name="large", pools=("large",), ttft_slo_s=1.0)
SMALL = Lane(name="small", pools=("small",), ttft_slo_s=3.0, fallback=True)
LANES_OFF = "tests.routing.intake.test_degradation:LanesOff"


def with_fallback(degradation: PolicyChoice, guard: str = "always_on") -> Dispatcher:
    """A lane with two replicas of a pool, and a fallback with one of another."""
    spec = replace(
        Dialogue().spec,
        policies=PolicySpec(degradation=degradation),
        pools={"large": Role.UNIFIED, "small": Role.UNIFIED},
        lanes=LanesSpec(lanes=(LARGE, SMALL), guard=PolicyChoice(name=guard)),
    )
    dispatcher = build_dispatcher(spec, rng_for=Seeds(1).stream, provided=frozenset(Need))
    for pool, count in (("large", 2), ("small", 1)):
        infos = tuple(replica_info(f"{pool}-{n}", pool=pool, slots=1) for n in range(count))
        dispatcher.handle(FleetChanged(pool=pool, role=Role.UNIFIED, replicas=infos), 0.0)
    return dispatcher


def arrive(dispatcher: Dispatcher, request_id: str) -> list[Effect]:
    return list(dispatcher.handle(Arrived(request=a_request(request_id)), 0.0))


def test_a_request_is_served_in_the_lane_that_it_is_degraded_to() -> None:
    dispatcher = with_fallback(degrade_to(lane="small"))

    effects = arrive(dispatcher, "q")

    assert [each.replica_id for each in effects if isinstance(each, Send)] == ["small-0"]
    decisions = [each.decision for each in effects if isinstance(each, Record)]
    assert [each.lane for each in decisions if isinstance(each, Classification | Degraded)] == ["small", "small"]
    gauges = dispatcher.gauges(0.0)
    assert (gauges["lane_requests_total:large"], gauges["lane_requests_total:small"]) == (0, 1)
    assert not [each for each in effects if isinstance(each, Respond)]


class LanesOff:
    """Every lane uses the pools of all of them."""

    def look(self, request: object, stage: Role, lanes: object, fleet: object, now_s: float) -> None: ...

    def are_on(self, role: Role) -> bool:
        return False


@for_each("guard", ["always_on", LANES_OFF])
def test_nobody_comes_to_a_fallback_who_was_not_sent_there(guard: str) -> None:
    """Five requests for two replicas: the others wait, though the fallback's replica is idle."""
    dispatcher = with_fallback(PolicyChoice(name="never_degrade"), guard)

    effects = [effect for n in range(5) for effect in arrive(dispatcher, f"q{n}")]

    assert {each.replica_id for each in effects if isinstance(each, Send)} == {"large-0", "large-1"}
    assert dispatcher.num_waiting_requests == 3


def test_a_fallback_that_is_sent_more_than_it_can_take_does_not_overflow_into_the_other_lane() -> None:
    dispatcher = with_fallback(degrade_to(lane="small"), LANES_OFF)

    effects = [effect for n in range(3) for effect in arrive(dispatcher, f"q{n}")]

    assert [each.replica_id for each in effects if isinstance(each, Send)] == ["small-0"]


@for_each(
    ("lanes", "field"),
    [
        ((SMALL,), "policies.lanes.lanes"),
        ((LARGE, replace(SMALL, borrows_from=("large",))), "policies.lanes.lanes.1.borrows_from"),
        ((replace(LARGE, borrows_from=("small",)), SMALL), "policies.lanes.lanes.0.borrows_from"),
    ],
    ids=["alone", "borrows", "lends"],
)
def test_a_fallback_is_beside_other_lanes_and_shares_nothing_with_them(lanes: tuple[Lane, ...], field: str) -> None:
    pools = {pool: Role.UNIFIED for lane in lanes for pool in lane.pools}

    with pytest.raises(ConfigError) as caught:
        check_lanes(lanes, pools)

    assert caught.value.field == field


def test_a_policy_can_send_requests_only_to_lanes_that_are_fallbacks() -> None:
    with pytest.raises(ConfigError, match="one of the lanes with `fallback: true`: \\['small'\\]"):
        with_fallback(PolicyChoice(name="to_fallback", params={"lane": "large"}))
