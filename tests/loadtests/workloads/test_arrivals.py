"""Every process against what theory says of it. Seeds are fixed; each tolerance is some four standard errors."""

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from cluster import Seeds
from loadtests.workloads.arrivals import ArrivalProcess, Diurnal, FlashCrowd, Gamma, Hawkes, Mmpp, OnOff, Poisson, Ramp
from loadtests.workloads.streams import ClassStreams, Floats
from policies import ConfigError
from tests.tables import for_each

EACH_PROCESS = for_each(
    "process",
    [
        Poisson(rate_per_s=50),
        Gamma(rate_per_s=50, cv=4),
        OnOff(on_rate_per_s=90, off_rate_per_s=10, mean_on_s=2, mean_off_s=2),
        FlashCrowd(rate_per_s=50, factor=10, from_s=20, for_s=5),
        Diurnal(mean_rate_per_s=50, peak_to_trough=10, period_s=60),
        Diurnal(mean_rate_per_s=50, peak_to_trough=10, period_s=60, cv=4),
        Hawkes(rate_per_s=50, cv=4),
        Mmpp(rate_per_s=50, cv=4),
        Ramp(from_rate_per_s=0, to_rate_per_s=60, from_s=5, for_s=20),
    ],
)


def times_of(process: ArrivalProcess, until_s: float, seed: int = 7) -> Floats:
    blocks = []
    for block in process.times_s(ClassStreams(Seeds(seed), "chat")):
        blocks.append(block)
        if block[-1] >= until_s:
            break
    times_s = np.concatenate(blocks)
    return times_s[times_s < until_s]


def cv_of_gaps(times_s: Floats) -> float:
    gaps_s = np.diff(times_s)
    return float(gaps_s.std() / gaps_s.mean())


@EACH_PROCESS
def test_times_ascend_from_0_and_never_end(process: ArrivalProcess) -> None:
    blocks = list(islice(process.times_s(ClassStreams(Seeds(7), "chat")), 30))
    times_s = np.concatenate(blocks)

    assert len(times_s) > 10_000
    assert times_s[0] >= 0
    assert np.all(np.diff(times_s) >= 0)


@EACH_PROCESS
def test_the_same_seed_gives_the_same_times_and_another_seed_others(process: ArrivalProcess) -> None:
    assert np.array_equal(times_of(process, 100), times_of(process, 100))
    assert not np.array_equal(times_of(process, 100)[:50], times_of(process, 100, seed=8)[:50])


@EACH_PROCESS
def test_the_size_of_a_block_changes_no_time(process: ArrivalProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    in_large_blocks = times_of(process, 300)
    monkeypatch.setattr("loadtests.workloads.arrivals.BLOCK", 100)

    assert np.allclose(times_of(process, 300), in_large_blocks, rtol=1e-9, atol=0)


@for_each(
    ("process", "rate_per_s", "tolerance"),
    [
        (Poisson(rate_per_s=5), 5, 0.02),
        (Gamma(rate_per_s=5, cv=0.5), 5, 0.01),
        (Gamma(rate_per_s=5, cv=4), 5, 0.08),
        (OnOff(on_rate_per_s=20, mean_on_s=1, mean_off_s=3), 5, 0.08),
        (OnOff(on_rate_per_s=8, off_rate_per_s=4, mean_on_s=1, mean_off_s=3), 5, 0.03),
        (Diurnal(mean_rate_per_s=5, peak_to_trough=10, period_s=100), 5, 0.02),
        (Diurnal(mean_rate_per_s=5, peak_to_trough=10, period_s=100, cv=4), 5, 0.08),
        (Hawkes(rate_per_s=5, cv=4), 5, 0.08),
    ],
)
def test_the_long_run_rate_is_the_declared_one(process: ArrivalProcess, rate_per_s: float, tolerance: float) -> None:
    assert len(times_of(process, 10_000)) / 10_000 == pytest.approx(rate_per_s, rel=tolerance)


@for_each("cv", [0.5, 1.0, 2.0, 4.0])
def test_gamma_gaps_have_the_declared_variation(cv: float) -> None:
    assert cv_of_gaps(times_of(Gamma(rate_per_s=20, cv=cv), 10_000)) == pytest.approx(cv, rel=0.03)


def test_poisson_gaps_are_exponential() -> None:
    gaps_s = np.diff(times_of(Poisson(rate_per_s=20), 1_000))

    assert stats.kstest(gaps_s * 20, "expon").pvalue > 0.01


def test_an_interrupted_poisson_process_has_the_variation_of_its_closed_form() -> None:
    """Kuczura 1973: cv^2 = 1 + 2 rate a / (a + b)^2, where on phases end at rate a and off phases at rate b."""
    process = OnOff(on_rate_per_s=20, mean_on_s=3, mean_off_s=3)

    assert cv_of_gaps(times_of(process, 40_000)) == pytest.approx(np.sqrt(31.0), rel=0.05)


@for_each(
    ("process", "count"),
    [
        (Poisson(rate_per_s=1), 10),
        (Gamma(rate_per_s=1, cv=4), 10),
        (OnOff(on_rate_per_s=4, mean_on_s=5, mean_off_s=15), 10),
        (Hawkes(rate_per_s=1, cv=3), 10),
    ],
    ids=["Poisson", "Gamma", "OnOff", "Hawkes"],
)
def test_the_first_seconds_are_like_all_others(process: ArrivalProcess, count: float) -> None:
    """A renewal process with a cv of 4 that began at 0 would send 7.5 extra requests at once."""
    counts = [len(times_of(process, 10, seed)) for seed in range(2_000)]

    assert np.mean(counts) == pytest.approx(count, abs=4 * np.std(counts) / np.sqrt(2_000))
    assert 4 * np.std(counts) / np.sqrt(2_000) < 1.2


def test_a_flash_crowd_multiplies_the_rate_between_its_two_times_alone() -> None:
    times_s = times_of(FlashCrowd(rate_per_s=20, factor=10, from_s=300, for_s=30), 1_000)

    before, during, after = np.histogram(times_s, [0, 300, 330, 1_000])[0]

    assert before == pytest.approx(6_000, abs=4 * np.sqrt(6_000))
    assert during == pytest.approx(6_000, abs=4 * np.sqrt(6_000))
    assert after == pytest.approx(13_400, abs=4 * np.sqrt(13_400))


def test_a_flash_crowd_may_begin_at_0_and_may_be_a_lull() -> None:
    assert times_of(FlashCrowd(rate_per_s=20, factor=10, from_s=0, for_s=30), 30).size == pytest.approx(6_000, abs=310)
    assert times_of(FlashCrowd(rate_per_s=20, factor=0, from_s=0, for_s=30), 31)[0] >= 30


def test_the_crowd_changes_nothing_before_it_comes() -> None:
    crowd = times_of(FlashCrowd(rate_per_s=20, factor=10, from_s=300, for_s=30), 300)
    nobody = times_of(FlashCrowd(rate_per_s=20, factor=1, from_s=300, for_s=30), 300)

    assert np.allclose(crowd, nobody, rtol=1e-12, atol=0)


def _crowd_integral(times_s: Floats) -> Floats:
    return 20 * (times_s + 9 * np.clip(times_s - 300, 0, 30))


def _diurnal_integral(times_s: Floats) -> Floats:
    swing, per_s = 9 / 11, 2 * np.pi / 100
    return 20 * (times_s - swing * np.sin(per_s * times_s) / per_s)


@for_each(
    ("process", "integral"),
    [
        (FlashCrowd(rate_per_s=20, factor=10, from_s=300, for_s=30), _crowd_integral),
        (Diurnal(mean_rate_per_s=20, peak_to_trough=10, period_s=100), _diurnal_integral),
    ],
    ids=["FlashCrowd", "Diurnal"],
)
def test_in_operational_time_a_changing_rate_is_a_poisson_process(
    process: ArrivalProcess, integral: Callable[[Floats], Floats]
) -> None:
    gaps = np.diff(integral(times_of(process, 1_000)))

    assert stats.kstest(gaps, "expon").pvalue > 0.01


def test_a_day_starts_at_its_trough_and_its_peak_is_as_much_higher_as_declared() -> None:
    times_s = times_of(Diurnal(mean_rate_per_s=50, peak_to_trough=10, period_s=100), 10_000)

    counts = np.histogram(times_s % 100, 20, (0, 100))[0]
    trough, peak = counts[[0, -1]].mean(), counts[[9, 10]].mean()

    assert peak / trough == pytest.approx(9.5, rel=0.05)  # 10 at the very ends, 9.5 over the bins there


@for_each(
    ("make", "field"),
    [
        (lambda: Poisson(rate_per_s=0), "rate_per_s"),
        (lambda: Poisson(rate_per_s=float("nan")), "rate_per_s"),
        (lambda: Gamma(rate_per_s=1, cv=0), "cv"),
        (lambda: Mmpp(rate_per_s=1, cv=0.5), "cv"),
        (lambda: Mmpp(rate_per_s=1e-6, cv=100, burst_s=1e-3), "cv"),
        (lambda: Mmpp(rate_per_s=1, cv=4, lull_fraction=1), "lull_fraction"),
        (lambda: OnOff(on_rate_per_s=1, mean_on_s=0, mean_off_s=1), "mean_on_s"),
        (lambda: OnOff(on_rate_per_s=1, mean_on_s=1, mean_off_s=float("inf")), "mean_off_s"),
        (lambda: OnOff(on_rate_per_s=1, mean_on_s=1, mean_off_s=1, off_rate_per_s=-1), "off_rate_per_s"),
        (lambda: FlashCrowd(rate_per_s=1, factor=-1, from_s=0, for_s=1), "factor"),
        (lambda: FlashCrowd(rate_per_s=1, factor=2, from_s=-1, for_s=1), "from_s"),
        (lambda: FlashCrowd(rate_per_s=1, factor=2, from_s=0, for_s=0), "for_s"),
        (lambda: Diurnal(mean_rate_per_s=1, peak_to_trough=0.5, period_s=1), "peak_to_trough"),
    ],
)
def test_a_wrong_value_is_named(make: Callable[[], ArrivalProcess], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()

    assert caught.value.field == field


@for_each("cv", [1.0, 2.0, 5.0])
def test_counts_of_arrivals_that_draw_others_vary_as_declared(cv: float) -> None:
    counts = np.histogram(times_of(Hawkes(rate_per_s=50, cv=cv, decay_s=0.2), 40_000), np.arange(0, 40_001, 50))[0]

    assert counts.var() / counts.mean() == pytest.approx(cv**2, rel=4 * np.sqrt(2 / len(counts)))


@for_each(
    ("cv", "window_s", "others"),
    [
        (1.0, 30, {}),
        (4.0, 30, {}),
        (4.0, 3, {}),
        (13.0, 30, {}),
        (2.0, 5, {"burst_s": 0.5, "lull_fraction": 0.0}),
    ],
)
def test_bursts_and_lulls_vary_as_declared_in_windows_of_the_declared_width(
    cv: float, window_s: float, others: dict[str, float]
) -> None:
    process = Mmpp(rate_per_s=50, cv=cv, window_s=window_s, **others)
    edges = np.arange(0, 4_000 * window_s + 1, window_s)

    counts = np.histogram(times_of(process, edges[-1]), edges)[0]

    skewed = 3 if cv > 10 else 1  # long bursts are rare, so the variance is less well known
    assert counts.var() / counts.mean() == pytest.approx(cv**2, rel=skewed * 4 * np.sqrt(2 / len(counts)))
    assert counts.mean() == pytest.approx(50 * window_s, rel=4 * cv / np.sqrt(50 * edges[-1]))


def test_a_ramp_rises_in_a_straight_line_and_stays() -> None:
    times_s = times_of(Ramp(from_rate_per_s=10, to_rate_per_s=50, from_s=100, for_s=400), 1_000)

    before, first_half, second_half, after = np.histogram(times_s, [0, 100, 300, 500, 1_000])[0]

    for count, expected in ((before, 1_000), (first_half, 4_000), (second_half, 8_000), (after, 25_000)):
        assert count == pytest.approx(expected, abs=4 * np.sqrt(expected))


def test_a_ramp_may_fall_to_nothing() -> None:
    times_s = times_of(Ramp(from_rate_per_s=50, to_rate_per_s=0, from_s=0, for_s=100), 10_000)

    assert len(times_s) == pytest.approx(2_500, abs=200)
    assert times_s[-1] < 100


def test_a_day_with_bursts_has_the_same_hours_and_larger_gaps() -> None:
    calm, bursty = (
        times_of(Diurnal(mean_rate_per_s=20, peak_to_trough=4, period_s=100, cv=cv), 10_000) for cv in (1.0, 4.0)
    )

    for times_s in (calm, bursty):
        hour_s = times_s % 100
        trough, peak = np.count_nonzero(abs(hour_s - 50) > 45), np.count_nonzero(abs(hour_s - 50) < 5)
        assert peak / trough == pytest.approx(4, rel=0.25)
    assert cv_of_gaps(bursty) > 2 * cv_of_gaps(calm)


@EACH_PROCESS
def test_a_process_scales_in_its_rate_and_in_nothing_else(process: ArrivalProcess) -> None:
    """Three times as many; a flash crowd, a day and a ramp stay where they are."""
    ones, threes = (
        np.mean([len(times_of(each, 60, seed)) for seed in range(40)]) for each in (process, process.scaled(3))
    )

    assert threes / ones == pytest.approx(3, rel=0.12)


@EACH_PROCESS
def test_the_rate_that_is_expected_is_the_mean_of_what_comes(process: ArrivalProcess) -> None:
    for until_s in (15.0, 47.0):
        counts = [len(times_of(process, until_s, seed)) for seed in range(150)]

        error = 4 * np.std(counts) / np.sqrt(150)
        assert process.mean_per_s(until_s) * until_s == pytest.approx(np.mean(counts), abs=error + 0.01)
