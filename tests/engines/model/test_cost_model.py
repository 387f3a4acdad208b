from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.model.cost_model import StepCoefficients, StepWork, attention_pairs, to_ps, to_s
from engines.model.step_costs import StepCosts

COSTS = st.builds(
    StepCosts,
    step=st.integers(1, 10**11),
    new_token=st.integers(0, 10**9),
    attention_pair=st.integers(0, 10**5),
    sequence=st.integers(0, 10**9),
    context_token=st.integers(0, 10**6),
    admission=st.integers(0, 10**10),
)
DECODING = st.builds(
    lambda sequences, context: StepWork(sequences, 0, sequences, sequences + context),
    st.integers(1, 1024),
    st.integers(0, 10**6),
)


def one_by_one(costs: StepCosts, work: StepWork, num_steps: int) -> list[int]:
    """Durations of decode steps, each with one more token of context for each sequence."""
    return [
        costs.step_ps(work._replace(context_tokens=work.context_tokens + step * work.sequences))
        for step in range(num_steps)
    ]


def test_a_step_costs_the_sum_of_its_six_terms() -> None:
    coefficients = StepCoefficients(
        step_s=1.0,
        new_token_s=0.1,
        attention_pair_s=0.01,
        sequence_s=0.5,
        context_token_s=0.001,
        admission_s=0.25,
        shared_token_saving_s=0.0005,
    )
    work = StepWork(new_tokens=10, attention_pairs=30, sequences=4, context_tokens=100, admitted=2, shared_tokens=40)

    assert coefficients.seconds(work) == pytest.approx(1.0 + 1.0 + 0.3 + 2.0 + 0.1 + 0.5 - 0.02)
    assert StepCosts.of(coefficients).step_ps(work) == to_ps(4.88)
    assert StepCosts.of(coefficients, slowdown=3.0).step_ps(work) == to_ps(14.64)


def test_a_shared_token_can_not_save_more_than_it_costs() -> None:
    with pytest.raises(ValueError, match="shared_token_saving_s"):
        StepCoefficients(
            step_s=1.0,
            new_token_s=0.0,
            attention_pair_s=0.0,
            sequence_s=0.0,
            context_token_s=1e-7,
            shared_token_saving_s=2e-7,
        )


def test_time_passes_in_a_step_that_costs_nothing() -> None:
    free = StepCoefficients(step_s=0.0, new_token_s=0.0, attention_pair_s=0.0, sequence_s=0.0, context_token_s=0.0)

    assert StepCosts.of(free).step_ps(StepWork(1, 0, 1, 1)) == 1


@given(st.integers(1, 200), st.integers(0, 200))
def test_each_new_token_attends_to_all_before_it_and_to_itself(new_tokens: int, computed_tokens: int) -> None:
    assert attention_pairs(new_tokens, computed_tokens) == sum(computed_tokens + 1 + each for each in range(new_tokens))


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 200))
def test_a_prompt_in_chunks_makes_as_many_pairs_as_at_once(first: int, second: int, computed_tokens: int) -> None:
    in_chunks = attention_pairs(first, computed_tokens) + attention_pairs(second, computed_tokens + first)

    assert in_chunks == attention_pairs(first + second, computed_tokens)


@given(COSTS, DECODING, st.integers(1, 300))
def test_a_run_takes_as_long_as_its_steps_one_by_one(costs: StepCosts, work: StepWork, num_steps: int) -> None:
    assert costs.run_ps(work, num_steps) == sum(one_by_one(costs, work, num_steps))


@given(COSTS, DECODING, st.integers(-5, 300), st.integers(-2, 2))
def test_the_fewest_steps_that_take_so_long_are_found(
    costs: StepCosts, work: StepWork, num_steps: int, offset_ps: int
) -> None:
    ends = list(accumulate(one_by_one(costs, work, 310)))
    elapsed_ps = (ends[num_steps - 1] if num_steps > 0 else num_steps) + offset_ps

    expected = next(number for number, end in enumerate(ends, start=1) if end >= elapsed_ps)

    assert costs.num_steps_until(work, elapsed_ps) == expected


@given(COSTS, DECODING, st.integers(1, 1 << 80))
def test_the_fewest_steps_are_exact_for_any_time(costs: StepCosts, work: StepWork, elapsed_ps: int) -> None:
    num_steps = costs.num_steps_until(work, elapsed_ps)

    assert costs.run_ps(work, num_steps) >= elapsed_ps
    assert num_steps == 1 or costs.run_ps(work, num_steps - 1) < elapsed_ps


@given(st.integers(0, 10**17))
def test_picoseconds_survive_as_seconds_up_to_a_day(picoseconds: int) -> None:
    assert abs(to_ps(to_s(picoseconds)) - picoseconds) <= 16
