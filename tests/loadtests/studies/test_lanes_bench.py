import io
from typing import Any

import pytest
from rich.console import Console

from deployments.app import check_policies
from deployments.config import AppConfig
from loadtests.studies.lanes_bench import (
    BASELINE,
    LANES,
    STRONG,
    VARIANTS,
    Cell,
    document_of,
    main,
    markdown_of,
    ratios,
    table_of,
    verdicts,
)


def a_cell(variant: str, seed: int = 1, **changes: Any) -> Cell:
    figures: dict[str, Any] = {
        "requests": 100,
        "completed": 1.0,
        "short_ttft_p50_s": 0.02,
        "short_ttft_p99_s": 0.6,
        "long_ttft_p50_s": 0.7,
        "long_ttft_p99_s": 1.4,
        "tokens_per_s": 1000.0,
        "foreign_fraction": 0.01,
    }
    return Cell(variant=variant, seed=seed, **{**figures, **changes})


CELLS = [
    a_cell(BASELINE, 1),
    a_cell(BASELINE, 2, short_ttft_p99_s=0.8),
    a_cell(STRONG, 1),
    a_cell(LANES, 1, short_ttft_p99_s=0.2, tokens_per_s=950.0),
    a_cell(LANES, 2, short_ttft_p99_s=0.2, tokens_per_s=1000.0),
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_a_deployment_of_the_same_two_engines(variant: str) -> None:
    config = AppConfig.model_validate(document_of(variant)["applications"][0]["args"])

    check_policies(config)
    assert sum(pool.replicas for pool in config.pools) == 2
    assert bool(config.policies.lanes.lanes) is (variant == LANES)


def test_ratios_are_between_runs_of_the_same_plan() -> None:
    assert ratios(CELLS, LANES, "short_ttft_p99_s") == pytest.approx([1 / 3, 1 / 4])


def test_both_marks_are_judged_by_the_median_over_plans() -> None:
    lines, are_met = verdicts(CELLS)

    assert are_met
    assert lines == [
        "short TTFT p99: 3.50 (3.00 to 4.00) times better; mark 2: met",
        "throughput: 0.97 (0.95 to 1.00) of the baseline's; mark 0.9: met",
    ]


@pytest.mark.parametrize("change", [{"short_ttft_p99_s": 0.5}, {"tokens_per_s": 800.0}])
def test_one_missed_mark_is_a_failure(change: dict[str, Any]) -> None:
    lines, are_met = verdicts([a_cell(BASELINE), a_cell(LANES, **change)])

    assert not are_met
    assert sum(line.endswith("missed") for line in lines) == (1 if "tokens_per_s" not in change else 2)


def test_a_run_beside_other_work_or_with_failures_is_not_valid() -> None:
    assert a_cell(LANES).is_valid
    assert not a_cell(LANES, foreign_fraction=0.2).is_valid
    assert not a_cell(LANES, completed=0.99).is_valid


def test_the_table_has_a_row_for_each_variant_that_ran() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(table_of(CELLS))

    rows = [line for line in out.getvalue().splitlines() if "ms" in line]
    assert [next(name for name in VARIANTS if name in row) for row in rows] == [BASELINE, STRONG, LANES]
    assert "700 ms" in rows[0], "the median over plans"
    assert "2 of 2" in rows[2]


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--load", "1.5"], ["--rounds", "0"]])
def test_an_option_out_of_range_is_refused_with_what_is_allowed(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_the_markdown_has_the_same_rows_and_what_lanes_are_worth() -> None:
    text = markdown_of(CELLS)

    assert f"| {LANES} | 20 / 200 ms | 700 / 1,400 ms | 975 |" in text
    assert text.endswith(
        "short TTFT p99: 3.50 (3.00 to 4.00) times better; throughput: 0.97 (0.95 to 1.00) of the baseline's.\n"
    )
