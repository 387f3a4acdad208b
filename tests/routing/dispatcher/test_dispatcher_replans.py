"""With one side of the handoff gone, the other runs whole requests; with nobody for those, they are served apart."""

from dataclasses import replace

import pytest

from cluster import Seeds
from policies import Need, PolicyChoice, Reason, Role
from routing import DispatcherParams, FleetChanged, Record, Replan, ReplicaStalled, ReplicaUnstalled, build_dispatcher
from routing.config.spec import LanesSpec
from routing.lanes.lanes import Lane, TokenRange
from routing.request.stages import DISAGGREGATED, UNIFIED
from tests.policy_doubles import replica_info
from tests.routing.dialogue import Dialogue, completed, refused

LATER = DispatcherParams(waiting_room_s=30)
APART = "tests.policy_doubles:LongPromptsApart"
LONG = 4000


def disaggregated(prefills: str = "p", decodes: str = "d", *, slots: int = 8) -> Dialogue:
    talk = Dialogue(planner="always_disaggregated", params=LATER)
    return talk.replicas(Role.PREFILL, *prefills, slots=slots).replicas(Role.DECODE, *decodes, slots=slots)


def replans(talk: Dialogue) -> list[Replan]:
    return [each.decision for each in talk.answer if isinstance(each, Record) and isinstance(each.decision, Replan)]


@pytest.mark.parametrize(("gone", "other"), [(Role.PREFILL, "d"), (Role.DECODE, "p")])
def test_a_request_that_comes_while_one_side_is_gone_is_run_whole_by_the_other(gone: Role, other: str) -> None:
    talk = disaggregated().replicas(gone)

    talk.arrives("q")

    assert talk.sends == [f"q.0 unified to {other}"]
    assert replans(talk) == [Replan(request_id="q", plan=UNIFIED, instead_of=DISAGGREGATED)]
    talk.first_token("q.0")
    talk.finishes("q.0")
    assert talk.responses == {"q": completed()}
    assert talk.is_over


def test_a_decode_pool_that_nobody_has_heard_of_is_one_that_is_gone() -> None:
    talk = Dialogue(planner="always_disaggregated").replicas(Role.PREFILL, "p")
    talk.arrives("q")
    assert talk.sends == ["q.0 prefill to p"]

    talk.finishes("q.0", output_tokens=1)

    assert talk.sends == ["q.1 unified to p"]


def test_requests_that_wait_for_a_prefill_are_run_whole_when_the_last_one_goes() -> None:
    talk = disaggregated(slots=1)
    talk.arrives("first")
    talk.arrives("second")
    assert talk.sends == []

    talk.replicas(Role.PREFILL)

    assert talk.sends == ["second.0 unified to d"]
    assert [each.request_id for each in replans(talk)] == ["second"]


def test_those_for_whom_the_other_side_has_no_room_wait_for_it() -> None:
    talk = disaggregated(slots=1)
    for name in ("first", "second", "third"):
        talk.arrives(name)
    talk.replicas(Role.PREFILL)
    assert talk.sends == ["second.0 unified to d"]

    talk.finishes("second.0")

    assert talk.sends == ["third.0 unified to d"]


def test_a_request_whose_decode_has_nobody_left_is_run_whole_where_its_prompt_was_computed() -> None:
    talk = disaggregated()
    talk.arrives("q")
    talk.replicas(Role.DECODE)

    talk.finishes("q.0", output_tokens=1)

    assert talk.sends == ["q.1 unified to p"]


def test_an_answer_goes_on_whole_when_its_decode_was_the_last_one() -> None:
    talk = disaggregated()
    talk.arrives("q")
    talk.finishes("q.0", output_tokens=1)
    talk.first_token("q.1")

    talk.fails("q.1", Reason.REPLICA_LOST, output_tokens=7)

    assert talk.sends == ["q.2 unified to p"]
    talk.first_token("q.2")
    talk.finishes("q.2", output_tokens=43)
    assert talk.responses == {"q": completed()}


def test_a_lost_prefill_that_was_the_last_one_is_repeated_whole() -> None:
    talk = disaggregated()
    talk.arrives("q")

    talk.fails("q.0", Reason.REPLICA_LOST)

    assert talk.sends == ["q.1 unified to d"]


def test_a_request_that_the_only_prefill_engine_failed_on_is_run_whole() -> None:
    talk = disaggregated()
    talk.arrives("q")

    talk.fails("q.0", Reason.ENGINE_ERROR)

    assert talk.sends == ["q.1 unified to d"]


def test_new_requests_go_apart_again_when_the_side_is_back() -> None:
    talk = disaggregated().replicas(Role.PREFILL)
    talk.arrives("whole")

    talk.replicas(Role.PREFILL, "p2")
    talk.arrives("apart")

    assert talk.sends == ["apart.0 prefill to p2"]
    assert replans(talk) == []


def test_a_loss_while_the_other_side_is_back_goes_apart_again() -> None:
    talk = disaggregated(decodes="de").replicas(Role.PREFILL)
    talk.arrives("q")
    assert talk.sends == ["q.0 unified to d"]
    talk.replicas(Role.PREFILL, "p2")

    talk.fails("q.0", Reason.REPLICA_LOST)

    assert talk.sends == ["q.1 prefill to p2"]


def test_with_both_sides_gone_requests_wait_for_either() -> None:
    talk = disaggregated().replicas(Role.PREFILL).replicas(Role.DECODE)
    talk.arrives("q")
    assert (talk.sends, talk.responses) == ([], {})

    talk.replicas(Role.DECODE, "d2")

    assert talk.sends == ["q.0 unified to d2"]


def test_with_both_sides_gone_for_good_requests_are_refused() -> None:
    talk = Dialogue(planner="always_disaggregated", params=DispatcherParams(waiting_room_s=0))
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d").replicas(Role.PREFILL).replicas(Role.DECODE)

    talk.arrives("q")

    assert talk.responses == {"q": refused(Reason.NO_REPLICA_AVAILABLE)}


def test_whole_requests_are_served_apart_when_their_own_replicas_are_gone() -> None:
    talk = Dialogue(planner=APART, params=LATER)
    talk.replicas(Role.UNIFIED, "u").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d").replicas(Role.UNIFIED)

    talk.arrives("q")

    assert talk.sends == ["q.0 prefill to p"]
    assert replans(talk) == [Replan(request_id="q", plan=DISAGGREGATED, instead_of=UNIFIED)]


def test_replicas_that_are_there_for_whole_requests_go_before_those_that_stand_in() -> None:
    talk = Dialogue(planner=APART, params=LATER)
    talk.replicas(Role.UNIFIED, "u").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d").replicas(Role.DECODE)

    talk.arrives("q", prompt_tokens=LONG)

    assert talk.sends == ["q.0 unified to u"]


def test_a_fleet_is_sized_for_the_plan_that_requests_usually_have() -> None:
    """Else an outage would make the side that is gone look as if nobody needed it."""
    talk = Dialogue(planner="always_disaggregated", params=LATER, scaling=PolicyChoice(name="queue_depth"))
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d").replicas(Role.DECODE)

    talk.arrives("q")

    assert talk.sends == ["q.0 unified to p"]
    loads = talk.dispatcher.pool_loads(talk.now_s)
    assert {name: load.demand.num_requests for name, load in loads.items()} == {"prefill": 1, "decode": 1}


def test_each_lane_has_its_own_replicas_to_stand_in() -> None:
    short = Lane(name="short", prompt_tokens=TokenRange(0, 1000), pools=("p1", "d1"))
    long = Lane(name="long", prompt_tokens=TokenRange(1000), pools=("p2", "d2"))
    pools = {"p1": Role.PREFILL, "p2": Role.PREFILL, "d1": Role.DECODE, "d2": Role.DECODE}
    talk = disaggregated()
    spec = replace(talk.spec, pools=pools, lanes=LanesSpec(lanes=(short, long)))
    talk.dispatcher = build_dispatcher(spec, rng_for=Seeds(1).stream, provided=frozenset(Need))
    for pool, role in pools.items():
        replicas = (replica_info(f"{pool}a", role, pool=pool, slots=1),)
        talk.tell(FleetChanged(pool=pool, role=role, replicas=replicas))
    talk.tell(FleetChanged(pool="p2", role=Role.PREFILL, replicas=()))

    talk.arrives("short")
    assert talk.sends == ["short.0 prefill to p1a"]
    talk.arrives("long", prompt_tokens=LONG)
    assert talk.sends == ["long.0 unified to d2a"]
    talk.arrives("longer", prompt_tokens=LONG)
    assert talk.sends == []
    talk.tell(FleetChanged(pool="p1", role=Role.PREFILL, replicas=()))
    talk.arrives("shorter")
    assert talk.sends == ["shorter.0 unified to d1a"]


def test_the_last_replica_of_a_side_is_out_while_it_stands_still_and_the_other_side_is_there() -> None:
    talk = disaggregated()
    talk.arrives("q")
    talk.finishes("q.0", output_tokens=1)
    talk.first_token("q.1")

    talk.tell(ReplicaStalled(replica_id="d"))
    assert talk.cancels == ["q.1"]
    talk.stops("q.1", output_tokens=7)
    assert talk.sends == ["q.2 unified to p"]
    talk.replicas(Role.DECODE, "d")
    talk.arrives("new")
    assert talk.sends == ["new.0 unified to p"]

    talk.tell(ReplicaUnstalled(replica_id="d"))
    talk.arrives("apart")
    assert talk.sends == ["apart.0 prefill to p"]


def test_the_last_replica_of_all_gets_requests_though_it_stands_still() -> None:
    talk = disaggregated().replicas(Role.PREFILL)

    talk.tell(ReplicaStalled(replica_id="d"))
    talk.arrives("q")

    assert talk.sends == ["q.0 unified to d"]


def test_what_waits_for_a_prefill_is_run_whole_when_the_last_one_stands_still() -> None:
    talk = disaggregated(slots=1)
    talk.arrives("first")
    talk.arrives("second")

    talk.tell(ReplicaStalled(replica_id="p"))

    assert talk.sends == ["second.0 unified to d"]
