from typing import Any

import pytest

from loadtests.studies.lanes_bench import BASELINE, LANES, STRONG, LanesCell, ratios, verdicts
from tests.tables import for_each


def a_cell(variant: str, seed: int = 1, **changes: Any) -> LanesCell:
    metrics: dict[str, Any] = {
        "requests": 100,
        "completed": 1.0,
        "short_ttft_p50_s": 0.02,
        "short_ttft_p99_s": 0.6,
        "long_ttft_p50_s": 0.7,
        "long_ttft_p99_s": 1.4,
        "tokens_per_s": 1000.0,
        "foreign_fraction": 0.01,
    }
    return LanesCell(variant=variant, seed=seed, **{**metrics, **changes})


CELLS = [
    a_cell(BASELINE, 1),
    a_cell(BASELINE, 2, short_ttft_p99_s=0.8),
    a_cell(STRONG, 1),
    a_cell(LANES, 1, short_ttft_p99_s=0.2, tokens_per_s=950.0),
    a_cell(LANES, 2, short_ttft_p99_s=0.2, tokens_per_s=1000.0),
]


def test_ratios_are_between_runs_of_the_same_plan() -> None:
    assert ratios(CELLS, LANES, "short_ttft_p99_s") == pytest.approx([1 / 3, 1 / 4])


def test_both_checks_are_judged_by_the_median_over_plans() -> None:
    lines, are_met = verdicts(CELLS)

    assert are_met
    assert lines == [
        "short TTFT p99: 3.50 (3.00 to 4.00) times better; check 2: met",
        "throughput: 0.97 (0.95 to 1.00) of the baseline's; check 0.9: met",
    ]


@for_each("change", [{"short_ttft_p99_s": 0.5}, {"tokens_per_s": 800.0}])
def test_one_missed_check_is_a_failure(change: dict[str, Any]) -> None:
    lines, are_met = verdicts([a_cell(BASELINE), a_cell(LANES, **change)])

    assert not are_met
    assert sum(line.endswith("missed") for line in lines) == (1 if "tokens_per_s" not in change else 2)


def test_a_run_beside_other_work_or_with_failures_is_not_valid() -> None:
    assert a_cell(LANES).is_valid
    assert not a_cell(LANES, foreign_fraction=0.2).is_valid
    assert not a_cell(LANES, completed=0.99).is_valid
