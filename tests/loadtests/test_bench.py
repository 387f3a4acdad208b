"""The benchmark's arithmetic: medians over rounds, ratios within a round."""

import pytest

from loadtests.bench import BASELINE, Cell, summarize, systems, table


def cell(system: str, number: int, tokens_per_s: float, ttft_p50_ms: float = 10.0) -> Cell:
    return Cell(
        system=system,
        round=number,
        streams=8,
        ttft_p50_ms=ttft_p50_ms,
        ttft_p99_ms=20.0,
        tpot_p50_ms=4.0,
        tpot_p99_ms=5.0,
        tokens_per_s=tokens_per_s,
        tokens_per_event=1.0,
    )


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that is twice as slow in one round is so for both systems."""
    cells = [cell(BASELINE, 0, 1000), cell("ours", 0, 900), cell(BASELINE, 1, 500), cell("ours", 1, 450)]

    ours = next(row for row in summarize(cells) if row["system"] == "ours")

    assert ours["tokens_per_s_ratio"] == pytest.approx(0.9)
    assert ours["tokens_per_s_ratio_range"] == pytest.approx([0.9, 0.9])
    assert ours["tokens_per_s"] == pytest.approx(675)


def test_added_ttft_is_a_difference_to_the_baseline_of_the_same_round() -> None:
    """Milliseconds on top, not a ratio: the hop costs the same for a long prompt."""
    cells = [cell(BASELINE, 0, 1000, ttft_p50_ms=30), cell("ours", 0, 1000, ttft_p50_ms=34)]

    assert summarize(cells)[1]["ttft_p50_added_ms"] == pytest.approx(4)


def test_without_the_baseline_there_are_figures_and_no_ratios() -> None:
    """One system alone can be measured."""
    rows = summarize([cell("ours", 0, 900)])

    assert "tokens_per_s_ratio" not in rows[0]
    assert table(rows).row_count == 1


def test_systems_have_names_and_ports_of_their_own() -> None:
    """All of them are up at the same time."""
    found = systems()

    assert found[0].name == BASELINE
    assert len({system.port for system in found}) == len({system.name for system in found}) == len(found)
