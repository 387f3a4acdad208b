import math
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.sim.simulator import simulate
from cluster.sim.traffic import Arrival
from loadtests.results.metrics import ALL
from loadtests.scenario.scenario import load
from loadtests.simulation.ideal_cache import ideal_hit_fraction, prompt_cache_tokens
from loadtests.simulation.simulation import Run, run
from tests.cluster.simulated import planned
from tests.tables import for_each

UNIT_TOKENS = 10


def arrival(at_s: float, text: str, prompt_tokens: int | None = None, *, answer: str = "") -> Arrival:
    """A prompt of a unit for each letter, and, if the test says nothing else, half a unit that nobody shares."""
    whole = text + answer
    content = tuple(int.from_bytes(whole[: n + 1].encode(), "big") for n in range(len(whole)))
    length = len(text) * UNIT_TOKENS + 5 if prompt_tokens is None else prompt_tokens
    terms: dict[str, Any] = {
        "prompt_tokens": length,
        "output_tokens": 1,
        "content": content,
        "content_unit_tokens": UNIT_TOKENS,
    }
    return Arrival(at_s, planned(request_id=f"{at_s}", scheduled_s=at_s, **terms))


def test_what_an_earlier_prompt_began_with_is_found() -> None:
    assert ideal_hit_fraction([arrival(0, "abc"), arrival(1, "abd")], 1000) == 20 / 70


def test_arrivals_are_met_in_order_of_time() -> None:
    assert ideal_hit_fraction([arrival(1, "abcd"), arrival(0, "ab")], 1000) == 20 / 70


def test_an_answer_is_found_by_the_next_turn() -> None:
    assert ideal_hit_fraction([arrival(0, "ab", answer="c"), arrival(1, "abcd")], 1000) == 30 / 70


def test_at_least_one_token_is_computed() -> None:
    assert ideal_hit_fraction([arrival(0, "ab", 20), arrival(1, "ab", 20)], 1000) == 10 / 40


def test_a_full_cache_loses_the_end_of_what_was_not_used_for_longest() -> None:
    arrivals = [arrival(0, "abc"), arrival(1, "xy"), arrival(2, "abc")]

    assert ideal_hit_fraction(arrivals, 40) == 20 / 95
    assert ideal_hit_fraction(arrivals, 50) == 30 / 95


def test_prompts_that_share_nothing_count_among_all() -> None:
    alone = arrival(2, "", 100)

    assert ideal_hit_fraction([arrival(0, "ab"), arrival(1, "ab"), alone], 1000) == 20 / 150
    assert math.isnan(ideal_hit_fraction([], 1000))


@given(texts=st.lists(st.text("ab", max_size=5), max_size=20))
def test_a_larger_cache_never_finds_less(texts: list[str]) -> None:
    arrivals = [arrival(number, text) for number, text in enumerate(texts)]
    found = [ideal_hit_fraction(arrivals, size * UNIT_TOKENS) for size in (0, 1, 3, 6, 10, 100)]

    assert all(one <= other for one, other in pairwise(found)) or not texts


@for_each("name", ["prefix-affinity", "sessions"])
def test_no_fleet_finds_more_than_the_ideal(name: str) -> None:
    scenario = load(name).changed(duration_s=20.0, warm_up_s=0.0, faults=())

    for variant in ("policy", *scenario.baselines):
        metrics = run(Run(scenario=scenario, variant=variant, seed=1), simulate).metrics[ALL]
        assert 0 < metrics["prefix_hit_of_ideal"].value <= 1


def test_the_caches_that_count_are_those_that_look_prompts_up() -> None:
    assert prompt_cache_tokens(load("prefix-affinity").fleet_spec()) == 8_000_000
    steady = load("replica-crash").fleet_spec()
    assert prompt_cache_tokens(steady) == 6 * steady.pools[0].profile.kv.capacity_tokens
