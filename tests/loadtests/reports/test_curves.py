"""The numbers behind the charts: curves that never go back, seconds that hold every row, budgets that add up."""

from collections.abc import Sequence
from math import nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.reports.curves import MOST_BINS, goodput_curves, latency_budget, quantile, tail_curve
from loadtests.reports.runs import Chapter, LoadedRun, Series, chapters
from loadtests.reports.timeline import bin_width_s, timeline
from loadtests.results.analysis import derive
from loadtests.results.metrics import ALL, Window
from loadtests.results.run_folder import SavedRun
from tests.loadtests.run_tables import RequestRow
from tests.loadtests.saved_runs import DURATION_S, SLOS, WARM_UP_S, requests, saved_run
from tests.tables import for_each


def loaded(saved: SavedRun) -> LoadedRun:
    rows = derive(saved.table, SLOS, Window(from_s=WARM_UP_S, until_s=DURATION_S))
    return LoadedRun(folder=Path("run"), saved=saved, rows=rows)


def chapter_of(*made: SavedRun) -> Chapter:
    (found,) = chapters([loaded(each) for each in made])
    return found


def one_series(made: Sequence[RequestRow]) -> Series:
    (series,) = chapter_of(saved_run(made)).series
    return series


some_requests = st.lists(
    st.builds(
        RequestRow,
        logical_request=st.integers(0, 1000),
        at_s=st.floats(0, DURATION_S),
        ttft_s=st.floats(0, 50) | st.just(nan),
        e2e_s=st.floats(50, 500),
        output_tokens=st.integers(0, 9),
        outcome=st.sampled_from(["completed", "refused", "failed", "cancelled", "abandoned"]),
        traffic_class=st.integers(0, 1),
        is_last=st.booleans(),
    ),
    max_size=30,
)


@given(values=st.lists(st.floats(0, 1e3), max_size=300))
def test_a_curve_never_goes_back_and_ends_before_the_last_ten_samples(values: list[float]) -> None:
    ordered = np.sort(np.array(values, dtype=np.float64))

    curve = tail_curve(ordered)

    assert (np.diff(curve.x) >= 0).all()
    assert (np.diff(curve.y) > 0).all()
    if len(curve.x):
        assert (1 - curve.y[-1]) * len(values) >= 10 - 1e-6
        assert curve.x[-1] <= ordered[-1]


@for_each(("samples", "at", "is_quoted"), [(999, 0.99, False), (1000, 0.99, True), (20, 0.5, True)])
def test_a_percentile_takes_ten_samples_beyond_it(samples: int, at: float, is_quoted: bool) -> None:
    value = quantile(np.arange(samples, dtype=np.float64), at)

    assert np.isnan(value) == (not is_quoted)


@given(made=some_requests, width_s=st.sampled_from([1.0, 5.0, 30.0]))
def test_every_row_is_in_one_bin_of_the_timeline(made: list[RequestRow], width_s: float) -> None:
    series = one_series(made)
    (run,) = series.runs.values()

    found = timeline(series, width_s)

    assert found.counts["wanted"].sum() == sum(each.is_last for each in made)
    assert found.counts["refused"].sum() == sum(each.outcome == "refused" for each in made)
    assert found.counts["served"].sum() == np.count_nonzero(run.rows.is_good & run.saved.table.is_last)
    assert (found.waiting >= 0).all()


def test_a_timeline_of_two_seeds_is_their_mean() -> None:
    chapter = chapter_of(saved_run(requests(1, 120)), saved_run(requests(2, 240), seed=2))
    (series,) = chapter.series

    assert timeline(series, 1.0).counts["wanted"].sum() == 180


def test_requests_wait_from_their_sending_to_their_first_token_or_their_end() -> None:
    series = one_series(
        [
            RequestRow(logical_request=0, at_s=0.0, ttft_s=2.0, e2e_s=9.0, output_tokens=3),
            RequestRow(logical_request=1, at_s=1.0, ttft_s=nan, e2e_s=3.0, outcome="refused"),
            RequestRow(logical_request=2, at_s=1.0, ttft_s=nan, e2e_s=9.0, outcome="abandoned"),
        ]
    )

    assert timeline(series, 1.0).waiting[:5].tolist() == [1, 2, 1, 1, 0]


def test_what_a_deployment_did_not_say_in_a_second_is_not_known() -> None:
    gauges = timeline(one_series([RequestRow(logical_request=0, at_s=0.0, ttft_s=1.0, e2e_s=90.0)]), 1.0).gauges

    assert gauges["shed_fraction"][:3].tolist() == [0.05] * 3
    assert np.isnan(gauges["shed_fraction"][70])


def test_a_long_run_has_wider_bins() -> None:
    chapter = chapter_of(saved_run([RequestRow(logical_request=0, e2e_s=3600.0)]))
    width_s = bin_width_s(chapter)

    assert width_s == 30.0
    assert len(timeline(chapter.series[0], width_s).starts_s) <= MOST_BINS + 1


def test_the_stages_of_the_budget_are_means_and_those_of_the_slowest() -> None:
    made = [
        RequestRow(
            logical_request=number, at_s=10.0, ttft_s=0.1 + (1.0 if number == 7 else 0.0), e2e_s=5.0, output_tokens=2
        )
        for number in range(100)
    ]

    queue = next(each for each in latency_budget(one_series(made)) if each.name == "queue")

    assert queue.mean_s == pytest.approx(0.4 * 0.11)
    assert queue.slow_s == pytest.approx(0.4 * 1.1)


def test_a_deployment_that_told_nothing_has_no_budget() -> None:
    (series,) = chapter_of(saved_run(requests(1, 50), is_told=False)).series

    assert latency_budget(series) == []


def test_series_that_differ_in_their_rate_are_points_of_one_curve() -> None:
    made = [saved_run(requests(1, round(600 * rate)), rate_fraction=rate) for rate in (1.0, 0.5)]

    (curve,) = goodput_curves(chapter_of(*made)).values()

    assert [each.mean(ALL, "offered_rps") for each in curve] == pytest.approx([5.0, 10.0], rel=0.01)


def test_a_rate_at_which_nothing_was_wanted_does_not_stop_the_report() -> None:
    made = [saved_run(requests(1, number), rate_fraction=rate) for number, rate in ((0, 0.1), (600, 1.0))]

    assert [len(each) for each in goodput_curves(chapter_of(*made)).values()] in ([], [2])
