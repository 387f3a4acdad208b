"""The estimate of first tokens: against what it says in its formula, and against what replicas then take."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import RequestView, Role
from policies.views import NO_PREFIXES, Geometry
from routing.fleet.first_token import FirstTokenEstimator
from routing.request.request import Attempt
from routing.sizing.geometry import ServiceRates
from tests.policies.test_affinity import Known
from tests.policy_doubles import FakeReplica, a_request

RATES = ServiceRates(step_s=0.01, new_token_s=1e-4, step_tokens=1000)
LOADS = st.lists(st.integers(0, 50_000), min_size=1, max_size=6)


def estimator() -> FirstTokenEstimator:
    return FirstTokenEstimator(RATES, NO_PREFIXES)


def a_prompt(prompt_tokens: int) -> RequestView:
    return replace(a_request(prompt_tokens=prompt_tokens), geometry=Geometry(uncached_tokens=prompt_tokens))


def an_attempt(prefill_tokens: int) -> Attempt:
    return Attempt(
        attempt_id="q.0", request_id="q", stage=Role.UNIFIED, replica_id="a", sent_at_s=0.0,
        prefill_tokens=prefill_tokens, kv_tokens=prefill_tokens,
    )  # fmt: skip


def test_an_idle_replica_takes_what_the_profile_says() -> None:
    first_tokens, replica = estimator(), FakeReplica(replica_id="a")
    assert first_tokens.ahead_s(replica) == 0.0
    assert first_tokens.own_s(a_prompt(1000), replica) == pytest.approx(RATES.prefill_s(1000, 1000))


def test_prompts_that_a_replica_has_and_that_wait_for_it_come_first() -> None:
    replica = FakeReplica(replica_id="a", prefill_tokens=3000, waiting_tokens=2000)
    assert estimator().ahead_s(replica) == pytest.approx(RATES.queue_s(5000))


def test_answers_under_way_slow_prompts_down() -> None:
    idle, busy = FakeReplica(replica_id="a"), FakeReplica(replica_id="a", num_ongoing_requests=500)
    own_s = estimator().own_s(a_prompt(1000), idle)
    assert estimator().own_s(a_prompt(1000), busy) == pytest.approx(2 * own_s), "each takes half of a step's room"


def test_an_answer_takes_a_step_of_the_batch_for_each_of_its_tokens() -> None:
    rates = replace(RATES, sequence_s=1e-3, context_token_s=1e-6)
    prompt = replace(a_prompt(1000), geometry=Geometry(output_tokens=50))
    busy = FakeReplica(replica_id="a", num_ongoing_requests=7, kv_tokens=9000)
    step_s = rates.step_s + 8 * (rates.new_token_s + rates.sequence_s) + (9000 + 1050) * rates.context_token_s
    assert FirstTokenEstimator(rates, NO_PREFIXES).answer_s(prompt, busy) == pytest.approx(50 * step_s)
    assert FirstTokenEstimator(rates, NO_PREFIXES).answer_s(prompt, replace(busy, role=Role.PREFILL)) == 0.0


def test_what_a_replica_has_cached_is_not_computed_but_for_the_last_token() -> None:
    first_tokens = FirstTokenEstimator(RATES, Known({"a": 800, "b": 5000}))
    prompt = replace(a_prompt(1000), prefix_blocks=(1, 2), prefix_block_tokens=500)
    assert [first_tokens.uncached_tokens(prompt, each) for each in "abc"] == [200, 1, 1000]


@given(LOADS, st.integers(0, 100_000))
def test_water_fills_replicas_to_one_level(loads: list[int], anywhere_tokens: int) -> None:
    first_tokens = estimator()
    live = [FakeReplica(replica_id=str(number), prefill_tokens=load) for number, load in enumerate(loads)]
    ahead_s = [first_tokens.ahead_s(each) for each in live]
    level_s = first_tokens.level_s(live, ahead_s, anywhere_tokens)
    poured_s = sum(max(0.0, level_s - its_s) for its_s in ahead_s)
    assert poured_s == pytest.approx(RATES.queue_s(anywhere_tokens), abs=1e-6)
    assert not anywhere_tokens or level_s >= min(ahead_s) - 1e-9


def test_what_waits_is_computed_at_the_pace_of_replicas_that_answer_others_meanwhile() -> None:
    idle = [FakeReplica(replica_id=each) for each in "ab"]
    busy = [FakeReplica(replica_id=each, num_ongoing_requests=500) for each in "ab"]
    assert estimator().level_s(idle, [0.0, 0.0], 8000) == pytest.approx(RATES.queue_s(4000))
    assert estimator().level_s(busy, [0.0, 0.0], 8000) == pytest.approx(2 * RATES.queue_s(4000)), (
        "each takes half of a step's room"
    )


def test_an_engine_that_takes_twice_as_long_and_a_tenth_of_a_second_more_is_believed() -> None:
    first_tokens, busy = estimator(), FakeReplica(replica_id="a", num_ongoing_requests=1)
    for number in range(400):
        tokens = 500 + 5000 * (number % 7)
        expected_s = first_tokens.by_profile_s(an_attempt(tokens), tokens, busy)
        first_tokens.learn(expected_s, 0.1 + 2.0 * expected_s, number * 0.1)

    by_profile_s = first_tokens.by_profile_s(
        an_attempt(8000), 8000, FakeReplica(replica_id="a", num_ongoing_requests=2)
    )
    own_s = first_tokens.own_s(a_prompt(8000), busy)
    assert own_s == pytest.approx(0.1 + 2.0 * by_profile_s, rel=0.05)
    idle_s = first_tokens.own_s(a_prompt(8000), FakeReplica(replica_id="a"))
    assert idle_s == pytest.approx(2.0 * RATES.prefill_s(8000, 8000), rel=0.05)


def test_a_stall_that_is_over_keeps_nobody_out_of_an_idle_replica() -> None:
    first_tokens = estimator()
    for _ in range(100):
        first_tokens.learn(0.02, 5.0, 1.0)

    assert first_tokens.own_s(a_prompt(20), FakeReplica(replica_id="a", num_ongoing_requests=1)) > 4.0
    assert first_tokens.own_s(a_prompt(20), FakeReplica(replica_id="a")) < 0.1


def test_nobody_waits_for_anything_where_nobody_has_said_how_fast_engines_are() -> None:
    replica = FakeReplica(replica_id="a", prefill_tokens=10_000, num_ongoing_requests=9)
    unknown = FirstTokenEstimator(ServiceRates(), NO_PREFIXES)
    prompt = replace(a_prompt(1000), geometry=Geometry(output_tokens=50))
    known = unknown.ahead_s(replica), unknown.own_s(prompt, replica), unknown.answer_s(prompt, replica)
    assert known == (0.0, 0.0, 0.0)


def test_a_decode_takes_longer_where_its_kv_has_a_slower_link_to_come_by() -> None:
    rates = replace(RATES, handoff_s=0.5, handoff_token_s=1e-3, links=(1e-5, 1e-4))
    first_tokens = FirstTokenEstimator(rates, NO_PREFIXES)
    prompt = a_prompt(1000).held_at(("node-1", "rack-a"))

    def own_s(role: Role, *place: str) -> float:
        return first_tokens.own_s(prompt, FakeReplica(replica_id="a", role=role, place=place))

    anywhere_s = first_tokens.own_s(prompt, FakeReplica(replica_id="a", role=Role.PREFILL))
    places = [("node-1", "rack-a"), ("node-2", "rack-a"), ("node-3", "rack-b"), ("", ""), ()]
    came_s = [own_s(Role.DECODE, *place) - anywhere_s - rates.handoff_s for place in places]
    assert came_s == pytest.approx([0.01, 0.1, 1.0, 1.0, 1.0])
    assert own_s(Role.UNIFIED, "node-3", "rack-b") == anywhere_s, "it computes its prompts itself"


def test_where_no_links_are_told_of_nobody_is_near() -> None:
    prompt = a_prompt(1000).held_at(("node-1",))
    near, far = (FakeReplica(replica_id="a", role=Role.DECODE, place=(name,)) for name in ("node-1", "node-2"))
    assert estimator().own_s(prompt, near) == estimator().own_s(prompt, far)


def test_an_adapter_that_is_not_there_takes_its_load_and_a_slot_that_others_need_an_answer() -> None:
    rates = replace(RATES, adapter_load_s=0.2)
    prompt = replace(a_prompt(1000), adapter="x", geometry=Geometry(output_tokens=50))
    first_tokens = FirstTokenEstimator(rates, NO_PREFIXES)
    has_it, has_room = (
        FakeReplica(replica_id="a", adapters=("x",), max_adapters=2),
        FakeReplica(replica_id="a", max_adapters=2),
    )
    full = FakeReplica(replica_id="a", adapters=("y", "z"), max_adapters=2)
    own_s = rates.prefill_s(1000, 1000)

    assert [first_tokens.load_s(prompt, each) for each in (has_it, has_room, full)] == [0.0, 0.2, 0.2]
    assert first_tokens.own_s(prompt, has_it) == pytest.approx(own_s)
    assert first_tokens.own_s(prompt, has_room) == pytest.approx(own_s + 0.2)
    assert first_tokens.own_s(prompt, full) == pytest.approx(own_s + 0.2 + first_tokens.answer_s(prompt, full))
    assert first_tokens.own_s(a_prompt(1000), full) == pytest.approx(own_s), "no adapter, no load"
    assert rates.load_tokens == round(0.2 / rates.queue_s(1))
