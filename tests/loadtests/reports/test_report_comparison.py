"""Which runs a report compares, by what, and how sure it says the difference is."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.reports.agreement import agreements
from loadtests.reports.comparison import ResampledUnit, compared, comparisons, resampled_quantiles
from loadtests.reports.runs import Chapter, chapters, load
from loadtests.results.comparison import Change, IntervalKind
from loadtests.results.metrics import ALL
from tests.loadtests.saved_runs import save, save_simulated


def read(root: Path) -> Chapter:
    (chapter,) = chapters([load(folder) for folder in sorted(root.iterdir())])
    return chapter


def pairs(chapter: Chapter) -> set[tuple[str, str]]:
    return {(each.ours.label, each.theirs.label) for each in comparisons(chapter)}


def simulated(root: Path, num_seeds: int, **changes: Any) -> None:
    for seed in range(1, num_seeds + 1):
        save_simulated(root / f"policy-{seed}", seed=seed, **changes)
        save_simulated(root / f"random-{seed}", variant="random", seed=seed, slowness=2.0)


def test_five_seeds_in_common_are_compared_in_pairs(tmp_path: Path) -> None:
    simulated(tmp_path, 5)

    found = {(each.group, each.metric): each for each in comparisons(read(tmp_path))}

    assert pairs(read(tmp_path)) == {("policy", "random")}
    p99 = found[ALL, "ttft_p99_s"]
    assert p99.unit is ResampledUnit.SEED
    assert p99.result.change is Change.BETTER
    assert p99.result.ratio.value == pytest.approx(0.5, abs=0.02)
    assert ("chat", "goodput_fraction") in found


def test_too_few_seeds_have_a_range_and_no_conclusion(tmp_path: Path) -> None:
    simulated(tmp_path, 3)

    (p99,) = (each for each in comparisons(read(tmp_path)) if (each.group, each.metric) == (ALL, "ttft_p99_s"))

    assert p99.result.difference.kind is IntervalKind.RANGE_OVER_SEEDS
    assert p99.result.change is Change.TOO_FEW_SEEDS


def test_one_run_each_is_compared_by_request(tmp_path: Path) -> None:
    save(tmp_path / "before", slowness=1.5)
    save(tmp_path / "now")
    chapter = read(tmp_path)

    found = {each.metric: each for each in comparisons(chapter) if each.group == ALL}

    assert {each.unit for each in found.values()} == {ResampledUnit.REQUEST}
    median = found["ttft_p50_s"].result
    assert median.change is Change.BETTER
    assert median.ratio.low < 1 / 1.5 < median.ratio.high
    assert set(found) == {"goodput_fraction", "ttft_p50_s", "ttft_p99_s"}


def test_the_same_run_twice_shows_no_difference(tmp_path: Path) -> None:
    save(tmp_path / "one")
    save(tmp_path / "other")

    found = list(comparisons(read(tmp_path)))

    assert {each.result.change for each in found} == {Change.NO_DIFFERENCE}


def test_a_percentile_of_too_few_requests_is_not_compared(tmp_path: Path) -> None:
    save(tmp_path / "before", number=300)
    save(tmp_path / "now", number=300)

    assert {each.metric for each in comparisons(read(tmp_path))} == {"goodput_fraction", "ttft_p50_s"}


def test_runs_without_a_request_are_not_compared(tmp_path: Path) -> None:
    save(tmp_path / "before", number=0)
    save(tmp_path / "now", number=0)

    assert list(comparisons(read(tmp_path))) == []


def test_what_only_one_of_two_has_is_not_compared(tmp_path: Path) -> None:
    save(tmp_path / "before", number=0)
    save(tmp_path / "now")
    now, before = reversed(read(tmp_path).series)

    assert compared(now, before, ALL, "goodput_fraction") is None


@given(num=st.integers(20, 400), at=st.sampled_from([0.5, 0.9]))
def test_resampled_quantiles_are_those_of_resamples(num: int, at: float) -> None:
    """Against resamples that were made, on the same 20,000 draws: means within a tenth of the spread."""
    values = np.sort(np.random.default_rng(num).lognormal(size=num))
    rank = min(max(math.ceil(at * num), 1), num)

    quick = resampled_quantiles(values, at, np.random.default_rng(1))
    picked = np.random.default_rng(2).choice(values, size=(2000, num))
    slow = np.partition(picked, rank - 1, axis=1)[:, rank - 1]

    assert set(quick) <= set(values)
    assert abs(quick.mean() - slow.mean()) <= 0.1 * slow.std()
    assert quick.std() == pytest.approx(slow.std(), rel=0.15)


def test_the_simulator_is_laid_beside_the_deployment(tmp_path: Path) -> None:
    for seed in (1, 2):
        save_simulated(tmp_path / f"sim-{seed}", seed=seed)
    save(tmp_path / "live", slowness=1.1)
    save(tmp_path / "slow", slowness=1.3, target="http://127.0.0.1:9000")

    found = {(each.live.label, each.group, each.quantile): each for each in agreements(read(tmp_path))}

    near = found["policy, asyncio, http://127.0.0.1:8000", ALL, 0.5]
    far = found["policy, asyncio, http://127.0.0.1:9000", ALL, 0.5]
    assert near.is_within_goal
    assert near.ratio == pytest.approx(1.1, abs=0.05)
    assert not far.is_within_goal
    assert math.isnan(found["policy, asyncio, http://127.0.0.1:8000", "document", 0.99].ratio), "too few for a p99"


def test_another_rate_is_not_laid_beside_the_simulator(tmp_path: Path) -> None:
    save_simulated(tmp_path / "sim")
    save(tmp_path / "live", rate_fraction=0.1)

    assert list(agreements(read(tmp_path))) == []
