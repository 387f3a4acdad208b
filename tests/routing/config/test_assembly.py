import pytest

from cluster import Seeds
from policies import ConfigError, Need, PolicyChoice, PolicySpec, Reason, Rng, Role
from routing import Arrived, Dispatcher, DispatcherParams, DispatcherSpec, FleetChanged, Respond, Send, build_dispatcher
from tests.policy_doubles import a_request, replica_info
from tests.routing.dialogue import refused

ALL_POOLS = {role.value: role for role in Role}


def build(spec: DispatcherSpec, provided: frozenset[Need] = frozenset(Need)) -> Dispatcher:
    return build_dispatcher(spec, rng_for=Seeds(1).stream, provided=provided)


def test_a_dispatcher_has_the_planner_and_the_policies_that_were_chosen() -> None:
    spec = DispatcherSpec(
        planner=PolicyChoice(name="always_disaggregated"),
        pools=ALL_POOLS,
        policies=PolicySpec(balancing=PolicyChoice(name="round_robin")),
    )
    dispatcher = build(spec)
    for role, names in ((Role.PREFILL, ("p0", "p1")), (Role.DECODE, ("d0",))):
        infos = tuple(replica_info(each, role, pool=role.value) for each in names)
        dispatcher.handle(FleetChanged(pool=role.value, role=role, replicas=infos), 0.0)

    answers = [dispatcher.handle(Arrived(request=a_request(each)), 0.0) for each in ("q0", "q1", "q2")]

    sends = [each for effects in answers for each in effects if isinstance(each, Send)]
    assert [(each.stage, each.replica_id) for each in sends] == [
        (Role.PREFILL, "p0"),
        (Role.PREFILL, "p1"),
        (Role.PREFILL, "p0"),
    ]


def test_a_dispatcher_keeps_the_limits_that_were_chosen() -> None:
    spec = DispatcherSpec(
        planner=PolicyChoice(name="always_unified"), pools=ALL_POOLS, params=DispatcherParams(retry_after_s=9.0)
    )

    (answer,) = [each for each in build(spec).handle(Arrived(request=a_request()), 0.0) if isinstance(each, Respond)]

    assert answer.outcome == refused(Reason.NO_REPLICA_AVAILABLE, 9.0)


def test_two_dispatchers_of_one_spec_share_nothing() -> None:
    spec = DispatcherSpec(planner=PolicyChoice(name="always_unified"), pools=ALL_POOLS)
    one, other = build(spec), build(spec)
    info = replica_info("a")
    one.handle(FleetChanged(pool="unified", role=Role.UNIFIED, replicas=(info,)), 0.0)

    one.handle(Arrived(request=a_request()), 0.0)

    assert (one.num_open_requests, other.num_open_requests) == (1, 0)
    assert other.fleet.live(Role.UNIFIED, 0.0) == []


def test_every_policy_gets_its_random_stream_from_the_host() -> None:
    asked: list[str] = []

    def rng_for(purpose: str) -> Rng:
        asked.append(purpose)
        return Seeds(1).stream(purpose)

    build_dispatcher(
        DispatcherSpec(
            planner=PolicyChoice(name="always_unified"),
            pools=ALL_POOLS,
            policies=PolicySpec(balancing=PolicyChoice(name="random")),
        ),
        rng_for=rng_for,
        provided=frozenset(Need),
    )

    assert "balancing.unified" in asked


def test_a_planner_without_its_pools_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        build(DispatcherSpec(planner=PolicyChoice(name="always_disaggregated"), pools={"unified": Role.UNIFIED}))

    assert caught.value.field == "policies.planning"


def test_a_policy_whose_needs_the_host_cannot_meet_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        build(DispatcherSpec(planner=PolicyChoice(name="always_unified"), pools=ALL_POOLS), provided=frozenset())

    assert caught.value.field == "policies.balancing"
