"""The fits, on data whose answer is known."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.calibration.fit import contributions, fit_relative, fit_steps, residuals
from engines.calibration.overheads import (
    fit_link,
    fit_request_overhead,
    fit_token_overhead,
    traffic_bias,
    with_sharing,
    with_traffic,
)
from engines.calibration.samples import Region, StepSample, TrafficStep
from engines.calibration.step_groups import StepGroup
from engines.model.cost_model import StepCoefficients, StepWork, attention_pairs
from tests.tables import for_each

KNOWN = StepCoefficients(
    step_s=0.003,
    new_token_s=3.4e-5,
    attention_pair_s=5.4e-8,
    sequence_s=4.5e-5,
    context_token_s=2.5e-7,
    admission_s=6e-4,
)
WORKS = [
    (Region.PREFILL, StepWork(tokens, attention_pairs(tokens, cached), number, 0, number))
    for tokens in (16, 64, 256, 1024, 2048)
    for cached in (0, 1024, 4096)
    for number in (1, 4)
]
WORKS += [
    (Region.DECODE, StepWork(batch, 0, batch, batch * context))
    for batch in (1, 2, 4, 8, 16, 32, 64)
    for context in (64, 1024, 3072)
]
WORKS += [
    (Region.MIXED, StepWork(batch + tokens, attention_pairs(tokens, 0), batch + 1, batch * 512, 1))
    for batch in (1, 8, 32)
    for tokens in (16, 256, 1024)
]


def groups_with_noise(sigma: float, seed: int = 5) -> list[StepGroup]:
    rng = random.Random(seed)
    return [
        StepGroup("made up", region, work, KNOWN.seconds(work) * rng.lognormvariate(0, sigma), 0.0, 1)
        for region, work in WORKS
    ]


def test_the_fit_recovers_known_coefficients_from_noisy_steps() -> None:
    """5% noise on each step, a fixed seed: each coefficient within 15%, decode steps within 3%."""
    fitted = fit_steps(groups_with_noise(0.05))

    for name in StepCoefficients.__struct_fields__:
        assert getattr(fitted, name) == pytest.approx(getattr(KNOWN, name), rel=0.15), name
    for region, work in WORKS:
        if region is Region.DECODE:
            assert fitted.seconds(work) == pytest.approx(KNOWN.seconds(work), rel=0.03)


def test_without_noise_the_fit_is_exact() -> None:
    groups = groups_with_noise(0.0)

    fitted = fit_steps(groups)

    found = residuals(fitted, groups, "fit")
    assert found
    assert all(abs(value) < 1e-6 for value in found.values())


def test_residuals_tell_a_model_that_is_too_slow_from_one_that_is_too_fast() -> None:
    groups = groups_with_noise(0.0)
    halved = [each._replace(seconds=each.seconds / 2) for each in groups]

    too_slow = residuals(KNOWN, halved, "fit")

    assert too_slow["fit_decode_bias"] == pytest.approx(1.0)
    assert too_slow["fit_decode_median"] == pytest.approx(1.0)
    doubled = [each._replace(seconds=each.seconds * 2) for each in groups]
    assert residuals(KNOWN, doubled, "fit")["fit_decode_bias"] == pytest.approx(-0.5)


@given(
    st.lists(
        st.tuples(
            st.builds(
                StepWork,
                st.integers(1, 8192),
                st.integers(0, 10**8),
                st.integers(1, 512),
                st.integers(0, 10**6),
                st.integers(0, 512),
            ),
            st.floats(1e-4, 10.0),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_no_coefficient_is_ever_negative(steps: list[tuple[StepWork, float]]) -> None:
    works, seconds = zip(*steps, strict=True)

    fitted = fit_relative(works, seconds)

    assert all(getattr(fitted, name) >= 0 for name in StepCoefficients.__struct_fields__)


def test_contributions_of_a_region_add_up() -> None:
    shares = contributions(KNOWN, groups_with_noise(0.0))

    assert set(shares) == set(Region)
    assert all(sum(each.values()) == pytest.approx(1.0) for each in shares.values())
    assert shares[Region.DECODE]["attention_pair_s"] == 0
    assert shares[Region.PREFILL]["context_token_s"] == 0


def test_the_delivery_of_a_token_is_the_slope_over_the_batch_whatever_a_few_outliers_say() -> None:
    delays = [(size, 0.0006 + 5e-5 * size) for size in (1, 2, 4, 8, 16, 32, 64) for _ in range(5)]
    delays += [(1, 0.05), (16, 0.09), (64, 0.2)]

    assert fit_token_overhead(delays) == pytest.approx(5e-5)
    assert fit_token_overhead([(4, 0.001)]) == 0.0
    assert fit_token_overhead([(1, 0.002), (2, 0.001)]) == 0.0


def test_a_request_costs_what_its_steps_and_its_delivery_leave_over() -> None:
    works = [StepWork(64, attention_pairs(64, 0), 1, 0)]
    ttft_s = KNOWN.seconds(works[0]) + 5e-5

    assert fit_request_overhead(KNOWN, 5e-5, [(ttft_s + 0.0008, works)] * 3) == pytest.approx(0.0008)
    assert fit_request_overhead(KNOWN, 5e-5, [(ttft_s - 0.0008, works)] * 3) == 0.0


def test_a_link_is_a_constant_and_a_slope() -> None:
    transfers = [(tokens, 0.03 + tokens * 2048 / 1e9) for tokens in (128, 1024, 4096) for _ in range(3)]

    overhead_s, bytes_per_s = fit_link(transfers, 2048)

    assert overhead_s == pytest.approx(0.03)
    assert bytes_per_s == pytest.approx(1e9)


def test_a_link_that_length_does_not_slow_down_is_as_fast_as_repetitions_can_tell() -> None:
    transfers = [(128, 0.030), (128, 0.031), (4096, 0.029), (4096, 0.031)]

    overhead_s, bytes_per_s = fit_link(transfers, 2048)

    assert overhead_s == pytest.approx(0.03, rel=0.05)
    assert bytes_per_s == pytest.approx(4096 * 2048 / 0.002)


def traffic(extra_s: float, *, pace: float = 1.0) -> list[TrafficStep]:
    """Ten requests on a machine that is ``pace`` times as slow, each of which costs the engine something extra."""
    decode, mixed = StepWork(4, 0, 4, 400), StepWork(20, attention_pairs(16, 0), 5, 400, 1)
    settled = [TrafficStep(decode, pace * KNOWN.seconds(decode), is_settled=True) for _ in range(5)]
    disturbed = TrafficStep(decode, pace * KNOWN.seconds(decode) + extra_s / 2, is_settled=False)
    taking_in = TrafficStep(mixed, pace * KNOWN.seconds(mixed) + extra_s / 2, is_settled=False)
    return 10 * [*settled, disturbed, taking_in]


@for_each("pace", [0.8, 1.0, 1.3])
def test_what_requests_cost_beside_their_steps_is_told_from_a_slow_machine(pace: float) -> None:
    fitted = with_traffic(KNOWN, [traffic(0.001, pace=pace)])

    assert fitted.admission_s == pytest.approx(KNOWN.admission_s + 0.001)
    assert fitted.step_s == KNOWN.step_s


def test_one_run_in_which_the_machine_hung_does_not_count() -> None:
    hung = [*traffic(0.001), TrafficStep(StepWork(4, 0, 4, 400), 3.0, is_settled=False)]

    fitted = with_traffic(KNOWN, [traffic(0.001), hung, traffic(0.001)])

    assert fitted.admission_s == pytest.approx(KNOWN.admission_s + 0.001)


def test_traffic_never_makes_a_request_cheaper_than_its_steps() -> None:
    assert with_traffic(KNOWN, [traffic(-0.0005)]) == KNOWN
    assert with_traffic(KNOWN, []) == KNOWN


def test_the_bias_of_traffic_is_of_all_its_time() -> None:
    assert traffic_bias(KNOWN, [traffic(0.0, pace=0.8)]) == pytest.approx(0.25)
    assert traffic_bias(KNOWN, []) == 0.0


@for_each(("saving_s", "found_s"), [(1e-7, 1e-7), (-1e-7, 0.0), (9e-7, KNOWN.context_token_s)])
def test_a_shared_token_saves_no_less_than_nothing_and_no_more_than_it_costs(saving_s: float, found_s: float) -> None:
    work = StepWork(16, 0, 16, 16 * 600, 0, 15 * 512)
    run = [StepSample("shared", Region.DECODE, work, KNOWN.seconds(work) - saving_s * 15 * 512) for _ in range(5)]

    assert with_sharing(KNOWN, [run, [], run]).shared_token_saving_s == pytest.approx(found_s)
    assert with_sharing(KNOWN, [[]]).shared_token_saving_s == 0.0
