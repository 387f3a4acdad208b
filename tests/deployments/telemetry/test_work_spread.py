import random
from collections.abc import Iterable

import pytest

from deployments.telemetry.work.work_spread import LATEST, MIN_VALUES, WINDOW_S, WorkSpread


def known_of(spread: WorkSpread) -> dict[str, float]:
    samples = [sample for family in spread.collect() for sample in family.samples]
    return {f"{each.name.removeprefix('spillway_')}:{each.labels['of']}": each.value for each in samples}


def of_arrivals(times_s: Iterable[float]) -> dict[str, float]:
    spread = WorkSpread()
    for at_s in times_s:
        spread.arrived(100, at_s)
    return known_of(spread)


def poisson(per_s: float, until_s: float) -> list[float]:
    rng, at_s, times_s = random.Random(7), 0.0, []
    while at_s < until_s:
        at_s += rng.expovariate(per_s)
        times_s.append(at_s)
    return times_s


def test_equal_requests_are_not_spread() -> None:
    spread = WorkSpread()
    for number in range(MIN_VALUES):
        spread.arrived(100, float(number))
        spread.answered(20)
    assert known_of(spread) == {
        "work_sd_over_mean:prompt_tokens": 0.0,
        "work_p95_over_p50:prompt_tokens": 1.0,
        "work_sd_over_mean:output_tokens": 0.0,
        "work_p95_over_p50:output_tokens": 1.0,
    }


def test_a_few_long_answers_among_short_ones_are_seen() -> None:
    spread = WorkSpread()
    for number in range(100):
        spread.answered(400 if number % 10 == 0 else 20)
    known = known_of(spread)
    assert known["work_p95_over_p50:output_tokens"] == 20.0
    assert known["work_sd_over_mean:output_tokens"] == pytest.approx(114 / 58)


def test_too_few_say_nothing() -> None:
    spread = WorkSpread()
    for number in range(MIN_VALUES - 1):
        spread.arrived(number, float(number))
    assert known_of(spread) == {}


def test_only_the_last_ones_count() -> None:
    spread = WorkSpread()
    for length in [5000] * LATEST + [100] * LATEST:
        spread.answered(length)
    assert known_of(spread)["work_sd_over_mean:output_tokens"] == 0.0


def test_poisson_arrivals_do_not_bunch() -> None:
    assert of_arrivals(poisson(2.0, 600.0))["work_sd_over_mean:arrivals"] < 0.4


def test_arrivals_that_come_in_one_window_of_five_do() -> None:
    found = of_arrivals(each for each in poisson(2.0, 600.0) if (each // WINDOW_S) % 5 == 0)
    assert found["work_sd_over_mean:arrivals"] == pytest.approx(2.0, rel=0.1)


def test_a_pause_counts_as_windows_without_arrivals() -> None:
    before = poisson(2.0, 600.0)
    found = of_arrivals([*before, before[-1] + 300.0])
    assert found["work_sd_over_mean:arrivals"] > 0.9
