from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import ConfigError, Need, PolicyChoice, RequestView, Role
from policies.views import Geometry
from routing import build_planner
from routing.intake.conditional_planning import Conditional
from routing.request.stages import DISAGGREGATED, UNIFIED, Plan
from routing.sizing.geometry import ServiceRates
from tests.policy_doubles import FakeFleet, FakeReplica, a_request
from tests.tables import for_each

RATES = ServiceRates(
    step_s=0.006,
    new_token_s=2.6e-5,
    attention_pair_s=1.3e-9,
    context_token_s=3.7e-8,
    step_tokens=8192,
    handoff_s=0.002,
    handoff_token_s=3.3e-6,
)
EVERY_STAGE = frozenset(Role)
CONDITIONAL = PolicyChoice(name="conditional")
KV_CAPACITY_TOKENS = 400_000


def replica(role: Role, *, answers: int = 0, prefill_tokens: int = 0, kv_tokens: int = 0) -> FakeReplica:
    return FakeReplica(
        replica_id=role.value,
        role=role,
        num_ongoing_requests=answers,
        max_ongoing_requests=256,
        prefill_tokens=prefill_tokens,
        kv_tokens=kv_tokens,
        kv_capacity_tokens=KV_CAPACITY_TOKENS,
    )


IDLE = {role: replica(role) for role in Role}
BUSY = {**IDLE, Role.UNIFIED: replica(Role.UNIFIED, answers=60, kv_tokens=30_000)}


def sized(prompt_tokens: int, uncached_tokens: int | None = None) -> RequestView:
    """A request as intake hands it on."""
    uncached_tokens = prompt_tokens if uncached_tokens is None else uncached_tokens
    geometry = Geometry(
        uncached_tokens=uncached_tokens, output_tokens=50, prefill_s=RATES.prefill_s(prompt_tokens, uncached_tokens)
    )
    return replace(a_request(prompt_tokens=prompt_tokens), geometry=geometry)


def plan(request: RequestView, replicas: dict[Role, FakeReplica], rates: ServiceRates = RATES) -> Plan:
    return Conditional(rates).plan(request, FakeFleet(replicas=tuple(replicas.values())), 0.0)


def test_a_long_prompt_keeps_away_from_answers_that_are_under_way() -> None:
    assert plan(sized(4000), BUSY) == DISAGGREGATED


def test_a_short_prompt_does_no_harm_worth_a_handoff() -> None:
    assert plan(sized(20), BUSY) == UNIFIED


def test_a_long_prompt_that_is_cached_is_a_short_one() -> None:
    assert plan(sized(4000, uncached_tokens=20), BUSY) == UNIFIED


def test_a_long_prompt_needs_no_handoff_where_it_disturbs_nobody() -> None:
    assert plan(sized(4000), IDLE) == UNIFIED


def test_a_long_prompt_is_computed_among_answers_when_the_prefill_replicas_have_too_much_to_do() -> None:
    assert plan(sized(4000), {**BUSY, Role.PREFILL: replica(Role.PREFILL, prefill_tokens=20_000)}) == UNIFIED


def test_a_prompt_does_not_wait_for_prompts_when_a_prefill_replica_is_idle() -> None:
    assert plan(sized(4000), {**IDLE, Role.UNIFIED: replica(Role.UNIFIED, prefill_tokens=4000)}) == DISAGGREGATED


def test_a_slow_link_is_not_worth_the_handoff() -> None:
    assert plan(sized(4000), BUSY, replace(RATES, handoff_token_s=1e-3)) == UNIFIED


def test_prompts_that_a_decode_replica_computes_itself_hold_up_a_decode() -> None:
    assert plan(sized(4000), {**BUSY, Role.DECODE: replica(Role.DECODE, prefill_tokens=20_000)}) == UNIFIED


@for_each(("tokens_left", "expected"), [(4050, DISAGGREGATED), (4049, UNIFIED), (-40_000, UNIFIED)])
def test_disaggregation_is_vetoed_while_prompt_and_answer_do_not_fit_into_the_decode_replicas(
    tokens_left: int, expected: Plan
) -> None:
    kv_tokens = KV_CAPACITY_TOKENS * 9 // 10 - tokens_left

    assert plan(sized(4000), {**BUSY, Role.DECODE: replica(Role.DECODE, kv_tokens=kv_tokens)}) == expected


@for_each("role", DISAGGREGATED)
def test_disaggregation_is_vetoed_while_one_of_its_stages_has_no_room(role: Role) -> None:
    assert plan(sized(4000), {**BUSY, role: replace(IDLE[role], max_ongoing_requests=0)}) == UNIFIED


def test_a_whole_request_is_vetoed_while_nobody_has_room_for_it() -> None:
    assert plan(sized(20), {**IDLE, Role.UNIFIED: replace(IDLE[Role.UNIFIED], max_ongoing_requests=0)}) == DISAGGREGATED


@for_each(("prompt_tokens", "expected"), [(20, UNIFIED), (4000, DISAGGREGATED)])
def test_when_both_plans_are_vetoed_the_cheaper_one_is_taken(prompt_tokens: int, expected: Plan) -> None:
    full = {role: replace(each, max_ongoing_requests=0) for role, each in BUSY.items()}

    assert plan(sized(prompt_tokens), full) == expected


@for_each("role", DISAGGREGATED)
def test_a_pool_that_has_died_is_not_planned_with(role: Role) -> None:
    assert plan(sized(4000), {each: alive for each, alive in BUSY.items() if each is not role}) == UNIFIED


def test_without_replicas_for_whole_requests_every_request_is_disaggregated() -> None:
    assert plan(sized(20), {role: IDLE[role] for role in DISAGGREGATED}) == DISAGGREGATED


@given(
    prompt_tokens=st.integers(1, 20_000),
    answers=st.integers(0, 200),
    more=st.integers(1, 50),
    waiting_tokens=st.integers(0, 50_000),
)
def test_more_answers_under_way_never_attract_a_prefill(
    prompt_tokens: int, answers: int, more: int, waiting_tokens: int
) -> None:
    request, prefill = sized(prompt_tokens), replica(Role.PREFILL, prefill_tokens=waiting_tokens)
    fewer, with_more = (
        plan(request, {**IDLE, Role.PREFILL: prefill, Role.UNIFIED: replica(Role.UNIFIED, answers=number)})
        for number in (answers, answers + more)
    )

    assert fewer == UNIFIED or with_more == DISAGGREGATED


@given(
    prompt_tokens=st.integers(1, 20_000),
    answers=st.integers(0, 200),
    waiting_tokens=st.integers(0, 50_000),
    more=st.integers(1, 50_000),
)
def test_a_longer_line_of_prompts_never_attracts_another(
    prompt_tokens: int, answers: int, waiting_tokens: int, more: int
) -> None:
    request, whole = sized(prompt_tokens), replica(Role.UNIFIED, answers=answers)
    shorter, longer = (
        plan(request, {**IDLE, Role.UNIFIED: whole, Role.PREFILL: replica(Role.PREFILL, prefill_tokens=number)})
        for number in (waiting_tokens, waiting_tokens + more)
    )

    assert shorter == DISAGGREGATED or longer == UNIFIED


@for_each(
    ("name", "value", "allowed"),
    [
        ("interference_weight", -0.1, "0 or more"),
        ("interference_weight", float("inf"), "0 or more"),
        ("interference_weight", float("nan"), "0 or more"),
        ("kv_limit_fraction", 0.0, "more than 0, at most 1"),
        ("kv_limit_fraction", 1.1, "more than 0, at most 1"),
    ],
)
def test_a_parameter_out_of_range_is_refused(name: str, value: float, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_planner(PolicyChoice(name="conditional", params={name: value}), EVERY_STAGE, RATES)

    assert (caught.value.field, caught.value.allowed) == (f"policies.planning.params.{name}", allowed)


def test_it_does_not_start_without_an_engine_profile() -> None:
    with pytest.raises(ConfigError) as caught:
        build_planner(CONDITIONAL, EVERY_STAGE, provided=frozenset(Need) - {Need.SERVICE_RATES})

    assert (caught.value.field, caught.value.value) == ("policies.planning", "conditional")
    assert caught.value.allowed == "a planner that does not reckon in seconds, as long as no engine profile is given"


def test_it_does_not_start_on_a_host_that_keeps_no_account_of_work() -> None:
    with pytest.raises(ConfigError) as caught:
        build_planner(CONDITIONAL, EVERY_STAGE, RATES, frozenset({Need.SERVICE_RATES}))

    assert caught.value.allowed == (
        "a planner whose needs are within ['service_rates'] (missing: ['geometry', 'local_work'])"
    )
