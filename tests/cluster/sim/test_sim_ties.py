"""Tied attempts in virtual time: two places in two lines, and one of them computes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import GatewayStreams, LogHeader
from cluster.event_log.frames import CLOSED
from cluster.event_log.replay import ReplayResult, replay
from cluster.sim.faults import Fault
from cluster.sim.run_table import RunTable
from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec
from engines.faults import FaultKind
from policies import PolicyChoice, Priority, Role
from routing import AttemptWithdrawn, Effect, Event, OutcomeKind
from tests.cluster.logged import LogInMemory
from tests.cluster.sim.test_sim_preemption import PREEMPTING, a_full_fleet, two_classes
from tests.cluster.simulated import PROFILE, PlainTraffic, dispatcher, fleet, poisson, request

UNTIED = PolicyChoice(name="no_hedge")
TIED = PolicyChoice(name="tied")
ALWAYS_TIED = PolicyChoice(name="tied", params={"min_ahead_tokens": 0})
ONE_PROMPT_TOKENS = 2_000
"""As many as fit into a step."""


def made_from(spec: FleetSpec, hedging: PolicyChoice = TIED, **more: PolicyChoice) -> Any:
    base = dispatcher(spec)
    return replace(base, policies=replace(base.policies, hedging=hedging, **more))


class Heard:
    """What the dispatchers were told."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Event]] = []

    def __call__(self, gateway: int, now_s: float, event: Event, effects: Any) -> None:
        self.events.append((now_s, event))

    @property
    def yielded(self) -> list[tuple[float, str]]:
        return [(now_s, each.attempt_id) for now_s, each in self.events if isinstance(each, AttemptWithdrawn)]


def run(
    spec: FleetSpec,
    traffic: PlainTraffic,
    hedging: PolicyChoice = TIED,
    *,
    faults: Sequence[Fault] = (),
    heard: Heard | None = None,
) -> RunTable:
    return simulate(spec, made_from(spec, hedging), traffic, ["all"], seed=1, faults=faults, on_event=heard)


def computed(table: RunTable) -> int:
    return sum(each.prompt_tokens for each in table.replicas)


def slow(replica: int, at_s: float = 0.0, for_s: float = 100.0, factor: float = 10.0) -> Fault:
    return Fault(kind=FaultKind.SLOW, at_s=at_s, for_s=for_s, role=Role.UNIFIED, replica=replica, factor=factor)


def crash(replica: int, at_s: float) -> Fault:
    return Fault(kind=FaultKind.CRASH, at_s=at_s, for_s=5.0, role=Role.UNIFIED, replica=replica)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    is_disaggregated=st.booleans(),
    num_gateways=st.integers(1, 2),
    network_delay_s=st.sampled_from((0.0, 0.001, 0.03)),
    hedging=st.sampled_from((TIED, ALWAYS_TIED)),
)
def test_every_prompt_is_computed_once_whoever_is_slow_and_however_late_messages_are(
    seed: int, is_disaggregated: bool, num_gateways: int, network_delay_s: float, hedging: PolicyChoice
) -> None:
    spec = fleet(3, is_disaggregated=is_disaggregated, num_gateways=num_gateways, network_delay_s=network_delay_s)
    traffic = poisson(150, rate_per_s=45.0, seed=seed)
    role = Role.PREFILL if is_disaggregated else Role.UNIFIED
    sick = Fault(kind=FaultKind.SLOW, at_s=0.5, for_s=1.0, role=role, replica=0, factor=8.0)

    table = run(spec, traffic, hedging, faults=[sick])

    assert {outcome.kind for _, outcome, _ in traffic.ended} == {OutcomeKind.COMPLETED}
    assert table.hedges.sum() > 0
    assert sum(each.preemptions for each in table.replicas) == 0
    assert computed(table) == sum(arrival.request.prompt_tokens for arrival in traffic.plan)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), at_s=st.floats(0.1, 2.0), detection_delay_s=st.sampled_from((0.0, 0.05)))
def test_a_crash_among_pairs_loses_nobody(seed: int, at_s: float, detection_delay_s: float) -> None:
    spec = fleet(3, detection_delay_s=detection_delay_s)
    traffic = poisson(120, rate_per_s=45.0, seed=seed)

    table = run(spec, traffic, ALWAYS_TIED, faults=[crash(1, at_s)])

    assert len(table) == 120
    assert {outcome.kind for _, outcome, _ in traffic.ended} == {OutcomeKind.COMPLETED}


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_pairs_and_preemptions_get_on_with_each_other(seed: int) -> None:
    spec = a_full_fleet()
    traffic = two_classes(60, seed)

    simulate(spec, made_from(spec, ALWAYS_TIED, **PREEMPTING), traffic, ["bulk", "people"], seed=1)

    assert len(traffic.ended) == 60
    assert {outcome.kind for _, outcome, _ in traffic.ended} == {OutcomeKind.COMPLETED}
    assert {each.request.priority for each in traffic.plan} == {Priority.SHEDDABLE, Priority.STANDARD}


def two_prompts_then_one() -> PlainTraffic:
    """Both replicas have a prompt to compute when the third comes; whoever is done first takes it."""
    return PlainTraffic([request(n, 0.001 * n, ONE_PROMPT_TOKENS, 1) for n in range(3)])


def third_ttft_s(table: RunTable) -> float:
    """How long the third one took to its first token."""
    third = list(table.logical_request).index(2)
    return float(table.first_token_s[third] - table.scheduled_s[third])


def test_a_prompt_behind_a_slow_one_is_computed_where_its_turn_comes_first() -> None:
    alone, tied = (run(fleet(2), two_prompts_then_one(), each, faults=[slow(0)]) for each in (UNTIED, TIED))

    assert third_ttft_s(tied) < third_ttft_s(alone) / 3
    assert computed(tied) == computed(alone) == 3 * ONE_PROMPT_TOKENS


def test_asking_takes_a_message_there_and_one_back() -> None:
    near, far = (
        third_ttft_s(run(fleet(2, network_delay_s=delay_s), two_prompts_then_one(), faults=[slow(0)]))
        for delay_s in (0.0, 0.01)
    )

    assert far - near == pytest.approx(4 * 0.01), "to the replica, two for the claim, and to the gateway"


def test_the_one_that_has_to_give_way_leaves_its_line_when_it_is_told() -> None:
    """Replica 1 is slow this time, so the first attempt, on replica 0, begins first."""
    heard = Heard()

    run(fleet(2, network_delay_s=0.01), two_prompts_then_one(), faults=[slow(1)], heard=heard)

    began_s = min(now_s for now_s, each in heard.events if getattr(each, "attempt_id", "") == "r0.0") - 0.01
    [(told_s, name)] = heard.yielded
    assert name == "r2.1"
    assert told_s - began_s == pytest.approx(0.02), "to the other replica, and on to the gateway"


def test_two_that_would_begin_at_once_do_not() -> None:
    heard = Heard()
    traffic = PlainTraffic([request(0, 0.0, ONE_PROMPT_TOKENS, 1)])

    table = run(fleet(2), traffic, ALWAYS_TIED, heard=heard)

    assert [name for _, name in heard.yielded] == ["r0.1"]
    assert computed(table) == ONE_PROMPT_TOKENS


def test_the_second_goes_on_alone_where_the_first_ones_replica_is_dead() -> None:
    heard = Heard()
    spec = fleet(2, detection_delay_s=0.5)

    table = run(spec, two_prompts_then_one(), faults=[crash(0, at_s=0.01)], heard=heard)

    assert heard.yielded == []
    assert table.hedges[list(table.logical_request).index(2)] == 1
    assert set(table.outcome) == {0}
    assert third_ttft_s(table) > 0.5, "its replica waits until the death is known"


def test_each_gateway_with_pairs_replays_by_itself() -> None:
    spec = fleet(4, is_disaggregated=True, num_gateways=2)
    chosen = made_from(spec)
    logs = [
        LogInMemory(
            LogHeader(gateway=str(rank), streams=GatewayStreams(seed=1, prefix=f"gateway.{rank}."), dispatcher=chosen)
        )
        for rank in range(2)
    ]

    def listen(gateway: int, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        logs[gateway].on_event(now_s, event, effects)

    simulate(spec, chosen, poisson(300, rate_per_s=60.0, seed=1), ["all"], seed=1, on_event=listen)

    for log in logs:
        assert replay(log.file()) == ReplayResult(num_records=len(log.events), end_reason=CLOSED)
        assert any(isinstance(each, AttemptWithdrawn) for each in log.events)


def test_the_profile_computes_one_prompt_at_a_time() -> None:
    assert PROFILE.max_num_batched_tokens < 2 * ONE_PROMPT_TOKENS
