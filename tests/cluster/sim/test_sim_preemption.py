"""Requests that are preempted, in virtual time: nothing is lost, nothing is counted twice."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.sim.faults import Fault
from cluster.sim.run_table import RunTable
from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Arrival, PlannedRequest
from engines.faults import FaultKind
from policies import PolicyChoice, Priority, Role
from routing import OutcomeKind
from tests.cluster.simulated import PROFILE, PlainTraffic, dispatcher, fleet
from tests.tables import for_each

PREEMPTING = {"queueing": PolicyChoice(name="priority"), "preemption": PolicyChoice(name="newest_sheddable")}


def two_classes(num_requests: int, seed: int, timeout_s: float = 600.0) -> PlainTraffic:
    """Long sheddable requests that come at once, and short ones that come one by one."""
    rng = random.Random(seed)
    plan = []
    for number in range(num_requests):
        is_sheddable = number % 2 == 0
        at_s = rng.random() if is_sheddable else 5 * rng.random()
        most_tokens = 800 if is_sheddable else 30
        request = PlannedRequest(
            request_id=f"r{number}",
            logical_request=number,
            traffic_class=0 if is_sheddable else 1,
            scheduled_s=at_s,
            prompt_tokens=rng.randrange(1, 1500),
            output_tokens=rng.randrange(1, most_tokens),
            max_output_tokens=most_tokens,
            timeout_s=timeout_s,
            priority=Priority.SHEDDABLE if is_sheddable else Priority.STANDARD,
        )
        plan.append(Arrival(at_s, request))
    return PlainTraffic(sorted(plan, key=lambda each: each.at_s))


def a_full_fleet(*, is_disaggregated: bool = False) -> FleetSpec:
    """Two replicas of four places each, in each role."""
    spec = fleet(2, is_disaggregated=is_disaggregated)
    four = PROFILE.limits(max_num_seqs=4)
    return replace(spec, pools=tuple(replace(pool, limits=four, waiting_fraction=0.0) for pool in spec.pools))


def run(spec: FleetSpec, traffic: PlainTraffic, *, preempts: bool = True, faults: tuple[Fault, ...] = ()) -> RunTable:
    made_from = dispatcher(spec)
    if preempts:
        made_from = replace(made_from, policies=replace(made_from.policies, **PREEMPTING))
    return simulate(spec, made_from, traffic, ["bulk", "people"], seed=1, faults=list(faults))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), is_disaggregated=st.booleans(), timeout_s=st.sampled_from((2.0, 10.0, 600.0)))
def test_every_request_ends_and_whoever_completes_has_the_whole_answer(
    seed: int, is_disaggregated: bool, timeout_s: float
) -> None:
    traffic = two_classes(60, seed, timeout_s)
    planned = {each.request.logical_request: each.request for each in traffic.plan}

    table = run(a_full_fleet(is_disaggregated=is_disaggregated), traffic)

    assert len(table) == 60
    assert len(traffic.ended) == 60
    for logical_request, (_, outcome, _), output_tokens in zip(
        table.logical_request, traffic.ended, table.output_tokens, strict=True
    ):
        request = planned[int(logical_request)]
        if outcome.kind is OutcomeKind.COMPLETED:
            assert output_tokens == request.output_tokens
        else:
            assert output_tokens < request.output_tokens
    if timeout_s == 600.0:
        assert all(outcome.kind is OutcomeKind.COMPLETED for _, outcome, _ in traffic.ended)


@for_each("is_disaggregated", [False, True])
def test_people_wait_less_and_the_engines_compute_what_was_stopped_twice(is_disaggregated: bool) -> None:
    spec = a_full_fleet(is_disaggregated=is_disaggregated)
    without, preempted = (run(spec, two_classes(80, 1), preempts=each) for each in (False, True))

    def people_ttft_s(table: RunTable) -> float:
        mine = table.traffic_class == 1
        return float((table.first_token_s - table.scheduled_s)[mine].max())

    assert people_ttft_s(preempted) < people_ttft_s(without) / 3
    assert sum(each.prompt_tokens for each in preempted.replicas) > sum(each.prompt_tokens for each in without.replicas)
    assert preempted.attempts.max() > without.attempts.max()


def test_a_crash_among_preemptions_loses_nobody() -> None:
    crash = Fault(kind=FaultKind.CRASH, at_s=2.0, for_s=5.0, role=Role.UNIFIED, replica=0)
    traffic = two_classes(80, 3)

    table = run(a_full_fleet(), traffic, faults=(crash,))

    kinds = {outcome.kind for _, outcome, _ in traffic.ended}
    assert len(table) == len(traffic.ended) == 80
    assert kinds == {OutcomeKind.COMPLETED}, "what the dead replica was answering went on elsewhere"
