"""Prompt tokens by the request that they were computed for: nothing is lost, and what was in vain can be told."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.sim.faults import Fault
from cluster.sim.run_table import RunTable
from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Arrival
from engines.faults import FaultKind
from policies import PolicyChoice, Role
from routing import OutcomeKind
from tests.cluster.sim.test_sim_preemption import PREEMPTING, a_full_fleet, two_classes
from tests.cluster.simulated import PROFILE, PlainTraffic, dispatcher, fleet, poisson, request
from tests.tables import for_each

AFTER_50_MS = PolicyChoice(
    name="fixed_delay", params={"wait_s": 0.05, "budget_fraction": 1.0, "max_busy_fraction": 1.0}
)
NEVER = PolicyChoice(name="no_hedge")
A_STEP_TOKENS = PROFILE.max_num_batched_tokens
TWO_STEPS_TOKENS = 4_000


def run(
    spec: FleetSpec, traffic: PlainTraffic, hedging: PolicyChoice = NEVER, faults: Sequence[Fault] = ()
) -> RunTable:
    base = dispatcher(spec)
    made_from = replace(base, policies=replace(base.policies, hedging=hedging))
    return simulate(spec, made_from, traffic, ["all"], seed=1, faults=faults)


def slow(role: Role, factor: float = 10.0) -> Fault:
    return Fault(kind=FaultKind.SLOW, at_s=0.0, for_s=100.0, role=role, replica=0, factor=factor)


def crash(role: Role, at_s: float, replica: int = 0) -> Fault:
    return Fault(kind=FaultKind.CRASH, at_s=at_s, for_s=5.0, role=role, replica=replica)


def changed(arrival: Arrival, **changes: Any) -> Arrival:
    return Arrival(arrival.at_s, msgspec.structs.replace(arrival.request, **changes))


def by_replicas(table: RunTable) -> int:
    return sum(each.prompt_tokens for each in table.replicas)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    is_disaggregated=st.booleans(),
    timeout_and_delay_s=st.tuples(st.sampled_from((0.2, 1.0, 60.0)), st.sampled_from((0.0, 0.001, 0.03))),
    hedging=st.sampled_from((AFTER_50_MS, PolicyChoice(name="tied"), NEVER)),
    crash_at_s=st.floats(0.1, 2.0),
)
def test_every_token_that_a_replica_computed_is_in_one_row(
    seed: int,
    is_disaggregated: bool,
    timeout_and_delay_s: tuple[float, float],
    hedging: PolicyChoice,
    crash_at_s: float,
) -> None:
    """Whatever becomes of requests: beaten, timed out, lost with their replica, or answered."""
    timeout_s, network_delay_s = timeout_and_delay_s
    spec = fleet(3, is_disaggregated=is_disaggregated, network_delay_s=network_delay_s)
    role = Role.PREFILL if is_disaggregated else Role.UNIFIED
    plan = [changed(each, timeout_s=timeout_s) for each in poisson(120, 45.0, seed).plan]

    table = run(spec, PlainTraffic(plan), hedging, [slow(role), crash(role, crash_at_s, replica=1)])

    assert len(table) == 120
    assert int(table.computed_prompt_tokens.sum()) == by_replicas(table)
    answered = np.isfinite(table.first_token_s)
    assert (table.computed_prompt_tokens >= table.prompt_tokens)[answered].all()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), is_disaggregated=st.booleans(), timeout_s=st.sampled_from((2.0, 600.0)))
def test_what_was_stopped_and_went_on_is_in_the_row_of_its_request(
    seed: int, is_disaggregated: bool, timeout_s: float
) -> None:
    spec = a_full_fleet(is_disaggregated=is_disaggregated)
    made_from = dispatcher(spec)
    made_from = replace(made_from, policies=replace(made_from.policies, **PREEMPTING))

    table = simulate(spec, made_from, two_classes(60, seed, timeout_s), ["bulk", "people"], seed=1)

    assert int(table.computed_prompt_tokens.sum()) == by_replicas(table)


def test_a_request_that_nothing_happens_to_has_its_prompt_computed_once() -> None:
    table = run(fleet(2), PlainTraffic([request(0, 0.0, 1_000), request(1, 0.0, 300)]))

    assert sorted(table.computed_prompt_tokens) == [300, 1_000]


@for_each("output_tokens", [1, 200], ids=["whose answer is over at once", "whose answer goes on"])
def test_the_step_that_a_beaten_attempt_is_in_when_it_is_stopped_counts(output_tokens: int) -> None:
    """The slow replica is in the first of two steps. The short prompt is there so that the budget allows a hedge."""
    traffic = PlainTraffic([request(0, 0.0, 100, 1), request(1, 5.0, TWO_STEPS_TOKENS, output_tokens)])

    table = run(fleet(2), traffic, AFTER_50_MS, [slow(Role.UNIFIED)])

    assert list(table.hedges) == [0, 1]
    assert list(table.computed_prompt_tokens) == [100, TWO_STEPS_TOKENS + A_STEP_TOKENS]
    assert by_replicas(table) == 100 + TWO_STEPS_TOKENS + A_STEP_TOKENS


def test_a_prompt_that_died_with_its_replica_counts_as_far_as_it_was_computed() -> None:
    """The crash is in the second of two steps."""
    spec = fleet(2)
    alone = run(spec, PlainTraffic([request(0, 0.0, TWO_STEPS_TOKENS, 1)]))

    dies = crash(Role.UNIFIED, 0.9 * float(alone.end_s[0]))

    table = run(spec, PlainTraffic([request(0, 0.0, TWO_STEPS_TOKENS, 1)]), faults=[dies])

    assert (alone.computed_prompt_tokens[0], table.computed_prompt_tokens[0]) == (
        TWO_STEPS_TOKENS,
        TWO_STEPS_TOKENS + A_STEP_TOKENS,
    )


def test_a_prompt_is_computed_again_for_an_answer_that_goes_on_elsewhere() -> None:
    """The replica dies in the middle of an answer: the prompt and the tokens that are out are the next one's prompt."""
    spec = fleet(2)
    traffic = PlainTraffic([request(0, 0.0, 1_000, 200)])

    table = run(spec, traffic, faults=[crash(Role.UNIFIED, 0.5)])

    assert [outcome.kind for _, outcome, _ in traffic.ended] == [OutcomeKind.COMPLETED]
    assert 2_000 < table.computed_prompt_tokens[0] < 2_200


def test_what_was_cached_was_not_computed() -> None:
    """The second request has the first one's text, 60 blocks of 16 tokens."""
    text = tuple(range(60))
    plan = [changed(request(n, 5.0 * n, 1_000, 5), content=text, content_unit_tokens=16) for n in range(2)]

    table = run(fleet(1), PlainTraffic(plan))

    assert list(table.computed_prompt_tokens) == [1_000, 40]
    assert list(table.cached_tokens) == [0, 960]


def test_an_engine_goes_on_with_what_is_stopped_until_its_step_is_over() -> None:
    """The client leaves in the middle of the step."""
    spec = fleet(1)
    alone = run(spec, PlainTraffic([request(0, 0.0, A_STEP_TOKENS, 1)]))
    step_s = float(alone.end_s[0])

    table = run(spec, PlainTraffic([changed(request(0, 0.0, A_STEP_TOKENS, 1), timeout_s=step_s / 2)]))

    assert list(alone.cancels_s) == []
    assert list(table.cancels_s) == pytest.approx([step_s / 2], rel=0.1)


def test_what_has_not_begun_is_stopped_as_soon_as_it_is_asked_for() -> None:
    """The second prompt waits for the first one's two steps, and its client leaves in the first."""
    spec = replace(fleet(1), network_delay_s=0.001)
    plan = [request(0, 0.0, A_STEP_TOKENS, 1), changed(request(1, 0.0, A_STEP_TOKENS, 1), timeout_s=0.01)]

    table = run(spec, PlainTraffic(plan))

    (took_s,) = table.cancels_s
    assert 0.001 <= took_s <= float(np.nanmax(table.first_token_s)), (
        "at the end of the step that is under way, at the latest"
    )
