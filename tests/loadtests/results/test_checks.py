import math
from typing import Any

import pytest

from loadtests.results.checks import Check, judge
from loadtests.results.metrics import RunMetrics
from policies.errors import ConfigError
from tests.loadtests.run_tables import metrics
from tests.tables import for_each

P99 = "ttft_p99_s"


def seeds(*values: float, **changes: Any) -> dict[int, RunMetrics]:
    return {number: metrics(value, **changes) for number, value in enumerate(values, start=1)}


def check(**fields: Any) -> Check:
    return Check(**{"metric": P99, **fields})


@for_each(
    ("limits", "has_passed"),
    [
        ({"at_most": 2.0}, True),
        ({"at_most": 1.999}, False),
        ({"at_least": 2.0}, True),
        ({"at_least": 2.001}, False),
        ({"at_least": 1.5, "at_most": 2.5}, True),
        ({"at_least": 2.5, "at_most": 3.5}, False),
    ],
)
def test_without_a_baseline_the_mean_over_seeds_is_held_against_the_limits(
    limits: dict[str, float], has_passed: bool
) -> None:
    found = judge(check(**limits), seeds(1.0, 3.0), {})

    assert found.value == 2.0
    assert found.has_passed is has_passed
    assert found.comparison is None


def test_with_a_baseline_it_is_the_ratio() -> None:
    found = judge(check(against="old", at_most=0.5), seeds(1.0, 1.0), {"old": seeds(2.0, 2.0)})

    assert (found.value, found.has_passed) == (0.5, True)
    assert found.comparison is not None


def test_or_the_difference() -> None:
    found = judge(check(against="old", difference=True, at_most=-1.5), seeds(1.0, 1.0), {"old": seeds(2.0, 2.0)})

    assert (found.value, found.has_passed) == (-1.0, False)


def test_seeds_are_paired_by_their_number_whatever_order_they_come_in() -> None:
    policy = {2: metrics(2.0), 1: metrics(1.0)}

    found = judge(check(against="old", at_most=1.0), policy, {"old": {1: metrics(1.0), 2: metrics(2.0)}})

    assert found.comparison is not None
    assert (found.comparison.ratio.low, found.comparison.ratio.high) == (1.0, 1.0)


@for_each(
    ("policy", "baseline", "sentence"),
    [
        (seeds(1.0, 1.0, samples=999), seeds(1.0, 1.0), "the policy, seed 1: 999 samples, and it takes 1,000"),
        (seeds(1.0, 1.0), seeds(1.0, 1.0, samples=0), "old, seed 1: 0 samples, and it takes 1,000"),
        (seeds(1.0, math.nan), seeds(1.0, 1.0), "the policy, seed 2: not defined"),
        (seeds(1.0, 1.0), seeds(0.0, 0.0), "old: 0, so there is no ratio to it"),
        ({1: {"all": {}}, 2: {"all": {}}}, seeds(1.0, 1.0), "0 samples"),
    ],
    ids=["few", "none in the baseline", "undefined", "baseline is 0", "absent"],
)
def test_what_can_not_be_judged_says_why(
    policy: dict[int, RunMetrics], baseline: dict[int, RunMetrics], sentence: str
) -> None:
    found = judge(check(against="old", at_most=1.0), policy, {"old": baseline})

    assert found.has_passed is None
    assert sentence in found.problem
    assert P99 in found.problem


def test_a_difference_to_nothing_can_be_judged() -> None:
    found = judge(check(against="old", difference=True, at_most=0.1), seeds(0.05), {"old": seeds(0.0)})

    assert found.has_passed is True


@for_each(
    ("fields", "field"),
    [
        ({"metric": "speed", "at_most": 1}, "metric"),
        ({"class": "nobody", "at_most": 1}, "class"),
        ({"metric": "imbalance", "class": "chat", "at_most": 1}, "class"),
        ({"against": "nothing", "at_most": 1}, "against"),
        ({"difference": True, "at_most": 1}, "difference"),
        ({}, "at_most"),
        ({"at_most": 1, "at_least": 2}, "at_least"),
    ],
)
def test_a_check_that_makes_no_sense_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(**fields).ensure_judgeable("checks.0", ["chat"], ["old"])

    assert caught.value.field == f"checks.0.{field}"


@for_each("fields", [{"class": "chat"}, {"against": "old"}, {"metric": "imbalance"}])
def test_a_check_that_makes_sense_is_not(fields: dict[str, Any]) -> None:
    check(at_most=1, **fields).ensure_judgeable("checks.0", ["chat"], ["old"])


def test_a_limit_reads_as_it_is_written() -> None:
    assert check(at_least=0.97, at_most=1.03).limit() == "<= 1.03 >= 0.97"


def in_windows(before: float, after: float) -> dict[int, RunMetrics]:
    return {1: {**metrics(before, of_class="all@before"), **metrics(after, of_class="all@after")}}


def test_a_window_is_compared_with_another_one_of_the_same_run() -> None:
    found = judge(check(window="after", against_window="before", at_most=3.0), in_windows(2.0, 5.0), {})

    assert (found.value, found.has_passed) == (2.5, True)


def test_a_window_alone_is_held_against_the_limits() -> None:
    assert judge(check(window="after", at_most=3.0), in_windows(2.0, 5.0), {}).value == 5.0


def test_a_window_is_compared_with_the_same_one_of_a_baseline() -> None:
    found = judge(
        check(window="after", against="old", at_most=1.0), in_windows(2.0, 5.0), {"old": in_windows(1.0, 10.0)}
    )

    assert found.value == 0.5


@for_each(
    ("fields", "field"),
    [
        ({"window": "later"}, "window"),
        ({"against_window": "later"}, "against_window"),
        ({"metric": "imbalance", "window": "after"}, "window"),
        ({"against_window": "after", "against": "old"}, "against_window"),
    ],
)
def test_a_check_names_windows_that_there_are(fields: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(at_most=1.0, **fields).ensure_judgeable("checks.0", ["chat"], ["old"], ["before", "after"])

    assert caught.value.field == f"checks.0.{field}"
