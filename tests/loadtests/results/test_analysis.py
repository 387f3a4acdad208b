import math
from collections.abc import Mapping
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.sim.run_table import OUTCOMES, UNKNOWN, EjectedReplica, ReplicaTotals, RunTable
from loadtests.results.analysis import analyse, completions_per_s, derive, prompt_tenths
from loadtests.results.metrics import ALL, METRICS, MetricValue, Window
from loadtests.results.slo import ClassSlo
from policies.errors import ConfigError
from tests.loadtests.run_tables import RequestRow, run_table, served
from tests.tables import for_each

WINDOW = Window(from_s=10, until_s=60)
SLOS = {"chat": ClassSlo(ttft_s=1.0, tpot_s=0.1), "batch": ClassSlo(e2e_s=30)}


def of(table: RunTable, slo: ClassSlo | None = None, window: Window = WINDOW) -> Mapping[str, MetricValue]:
    """The metrics of all classes together."""
    return analyse(table, SLOS if slo is None else {"chat": slo}, window)[ALL]


def test_a_fraction_is_over_everything_that_was_offered() -> None:
    """Ten logical requests, of which one is good: refusing, failing, being late and giving up are all misses."""
    table = run_table(
        served(0, 20, 0.5, 1.5, 21),
        served(1, 20, 1.5, 2.5, 21),
        served(2, 20, 0.5, 9.5, 21),
        RequestRow(logical_request=3, at_s=20, e2e_s=0.0, outcome="refused", attempts=0),
        RequestRow(logical_request=4, at_s=20, e2e_s=0.0, outcome="refused", attempts=0),
        RequestRow(logical_request=5, at_s=20, ttft_s=0.1, e2e_s=0.2, output_tokens=2, outcome="failed"),
        RequestRow(logical_request=6, at_s=20, e2e_s=30.0, outcome="cancelled"),
        RequestRow(logical_request=7, at_s=20, e2e_s=0.0, outcome="abandoned", attempts=0),
        RequestRow(logical_request=8, at_s=20, e2e_s=0.0, outcome="abandoned", attempts=0),
        RequestRow(logical_request=9, at_s=20, e2e_s=0.0, outcome="abandoned", attempts=0),
    )

    found = of(table)

    assert found["offered_requests"].value == 10
    assert found["goodput_fraction"] == MetricValue(value=0.1, samples=10)
    assert found["goodput_rps"].value == pytest.approx(1 / 50)
    assert found["goodput_tokens_per_s"].value == pytest.approx((table.prompt_tokens[0] + 21) / 50)
    assert found["offered_rps"].value == pytest.approx(10 / 50)
    assert {
        name: metric_value.value for name, metric_value in found.items() if name.endswith("_fraction")
    } == pytest.approx(
        {
            "goodput_fraction": 0.1,
            "longest_tenth_goodput_fraction": 0.1,
            "worst_class_goodput_fraction": 0.1,
            "ok_fraction": 0.3,
            "on_time_fraction": 1 / 3,
            "late_fraction": 0.2,
            "refused_fraction": 0.2,
            "cut_fraction": 0.1,
            "failed_fraction": 0.1,
            "cancelled_fraction": 0.1,
            "abandoned_fraction": 0.3,
            "no_token_fraction": 0.6,
            "degraded_fraction": 0.0,
            "given_up_tokens_fraction": 0.0,
            "wasted_tokens_fraction": 44 / 65,
            "wasted_prompt_fraction": 0.8,
            "wasted_prefill_fraction": np.nan,
            "prefix_hit_fraction": np.nan,
            "cached_prompt_fraction": 0.0,
            "session_goodput_fraction": np.nan,
            "shed_fraction": 0.0,
            "same_answer_fraction": np.nan,
            **{name: np.nan for name in METRICS if name.startswith("lost_")},
        },
        nan_ok=True,
    )


def test_the_five_ways_to_end_are_everything() -> None:
    requests = [
        RequestRow(logical_request=number, at_s=20, e2e_s=1.0, outcome=outcome)
        for number, outcome in enumerate(OUTCOMES)
    ]

    found = of(run_table(*requests))

    ends = ("ok", "refused", "failed", "cancelled", "abandoned")
    assert [found[f"{end}_fraction"].value for end in ends] == [0.2] * 5


@for_each(
    ("slo", "is_good"),
    [
        (ClassSlo(ttft_s=0.5), True),
        (ClassSlo(ttft_s=0.499), False),
        (ClassSlo(ttft_s_per_1k_prompt_tokens=0.25), True),
        (ClassSlo(ttft_s_per_1k_prompt_tokens=0.249), False),
        (ClassSlo(ttft_s=0.1, ttft_s_per_1k_prompt_tokens=0.25), True),
        (ClassSlo(ttft_s=0.5, ttft_s_per_1k_prompt_tokens=0.1), True),
        (ClassSlo(tpot_s=0.1), True),
        (ClassSlo(tpot_s=0.099), False),
        (ClassSlo(e2e_s=1.5), True),
        (ClassSlo(e2e_s=1.499), False),
        (ClassSlo(ttft_s=0.5, tpot_s=0.099, e2e_s=9), False),
    ],
)
def test_a_request_is_good_when_it_meets_every_limit(slo: ClassSlo, is_good: bool) -> None:
    """2,000 prompt tokens, first content after 0.5 s, ten more tokens in a second."""
    table = run_table(
        RequestRow(logical_request=0, at_s=32, ttft_s=0.5, e2e_s=1.5, prompt_tokens=2000, output_tokens=11)
    )

    assert of(table, slo)["goodput_fraction"].value == is_good


def test_an_answer_of_one_token_has_no_tpot_and_misses_nothing_by_that() -> None:
    found = of(run_table(served(0, 20, 0.5, 0.5, 1)))

    assert found["goodput_fraction"].value == 1
    assert found["tpot_p50_s"].samples == 0
    assert np.isnan(found["tpot_p50_s"].value)


def test_only_what_was_wanted_in_the_window_counts_however_late_it_ends() -> None:
    table = run_table(
        served(0, 9.9, 0.5, 1.5, 11),
        served(1, 10.0, 0.5, 1.5, 11),
        served(2, 59.9, 0.5, 1.5, 11),
        served(3, 60.0, 0.5, 1.5, 11),
    )

    found = of(table)

    assert found["offered_requests"].value == 2
    assert found["goodput_fraction"].value == 1


def test_the_last_request_speaks_for_a_logical_request_and_latency_counts_from_the_first() -> None:
    """Refused twice, then served 2 s after it was wanted: one logical request, three requests, too late."""
    table = run_table(
        RequestRow(logical_request=0, at_s=20, e2e_s=0.0, outcome="refused", is_last=False, attempts=0),
        RequestRow(logical_request=0, at_s=20, e2e_s=1.0, outcome="refused", is_last=False, retry_index=1, attempts=0),
        RequestRow(logical_request=0, at_s=20, ttft_s=2.0, e2e_s=3.0, output_tokens=11, retry_index=2, attempts=4),
    )

    found = of(table)

    assert found["offered_requests"].value == 1
    assert found["sends_per_request"].value == 3
    assert found["attempts_per_request"].value == 4
    assert found["refused_fraction"].value == 0
    assert found["ttft_p50_s"].value == pytest.approx(2.0)
    assert (found["ok_fraction"].value, found["goodput_fraction"].value) == (1, 0)


def test_prefill_work_is_wasted_that_led_to_no_first_token() -> None:
    """Prompts of 100 tokens: computed once, computed again by a hedge, found in a cache but for 40, and in vain."""
    table = run_table(
        replace(served(0, 20, 0.5, 1.5, 11), computed_prompt_tokens=100),
        replace(served(1, 20, 0.5, 1.5, 11, traffic_class=1), computed_prompt_tokens=160, hedges=1),
        replace(served(2, 20, 0.5, 1.5, 11), computed_prompt_tokens=40, cached_tokens=60),
        RequestRow(
            logical_request=3,
            at_s=20,
            ttft_s=0.1,
            e2e_s=0.2,
            output_tokens=2,
            outcome="failed",
            computed_prompt_tokens=100,
        ),
        RequestRow(logical_request=4, at_s=20, e2e_s=30.0, outcome="cancelled", computed_prompt_tokens=80),
        RequestRow(logical_request=5, at_s=20, e2e_s=0.0, outcome="refused", attempts=0),
        replace(served(6, 70, 0.5, 1.5, 11), computed_prompt_tokens=1_000),
        classes=("chat", "batch"),
    )

    found = analyse(table, SLOS, WINDOW)

    assert found[ALL]["wasted_prefill_fraction"] == MetricValue(value=(60 + 80) / 480, samples=480)
    assert found["chat"]["wasted_prefill_fraction"].value == pytest.approx(80 / 320)
    assert found["batch"]["wasted_prefill_fraction"].value == pytest.approx(60 / 160)


def test_where_nobody_knows_of_attempts_nobody_says_how_many_there_were() -> None:
    """A logical request that was never sent has none, which is known and changes nothing."""
    known = served(0, 20, 0.5, 1.5, 11)
    table = run_table(
        replace(known, attempts=UNKNOWN, hedges=UNKNOWN),
        RequestRow(logical_request=1, at_s=20, e2e_s=0.0, outcome="abandoned", attempts=0),
    )

    for name in ("attempts_per_request", "hedges_per_request", "wasted_prompt_fraction"):
        assert math.isnan(of(table)[name].value)
        assert math.isfinite(of(run_table(known))[name].value)
    assert of(table)["sends_per_request"].value == 0.5


def test_where_nobody_knows_what_was_computed_nobody_says_what_was_wasted() -> None:
    table = run_table(replace(served(0, 20, 0.5, 1.5, 11), computed_prompt_tokens=UNKNOWN))

    assert of(table)["wasted_prefill_fraction"].samples == 0
    assert np.isnan(of(table)["wasted_prefill_fraction"].value)


def test_a_turn_that_was_never_sent_is_a_logical_request_without_a_request() -> None:
    table = run_table(
        served(0, 20, 0.5, 1.5, 11), RequestRow(logical_request=1, at_s=20, e2e_s=0.0, outcome="abandoned", attempts=0)
    )

    assert of(table)["sends_per_request"].value == 0.5


def test_percentiles_are_over_what_has_the_latency_and_say_over_how_many() -> None:
    """TTFT of whoever got a token; TPOT and end to end of whoever got the whole answer."""
    table = run_table(
        *(served(number, 20, 0.1 * (number + 1), 0.1 * (number + 1) + 1.0, 11) for number in range(9)),
        RequestRow(logical_request=9, at_s=20, ttft_s=1.0, e2e_s=1.5, output_tokens=5, outcome="failed"),
        RequestRow(logical_request=10, at_s=20, e2e_s=0.0, outcome="refused"),
    )

    found = of(table)

    assert found["ttft_p50_s"].value == pytest.approx(0.55)
    assert found["ttft_p50_s"].samples == 10
    assert found["e2e_p50_s"].value == pytest.approx(1.5)
    assert (found["e2e_p50_s"].samples, found["tpot_p50_s"].samples) == (9, 9)
    assert found["tpot_p99_s"].value == pytest.approx(0.1)
    assert found["no_token_fraction"].value == pytest.approx(1 / 11)


def test_throughput_is_what_reached_clients_inside_the_window() -> None:
    """The second answer is half before the window, the third half after it, the fourth in the drain."""
    table = run_table(
        served(0, 20, 1.0, 2.0, 100),
        served(1, 8, 1.0, 3.0, 100),
        served(2, 58, 1.0, 3.0, 100),
        served(3, 59, 2.0, 9.0, 100),
        served(4, 30, 1.0, 1.0, 1),
        RequestRow(logical_request=5, at_s=30, e2e_s=0.0, outcome="refused"),
    )

    assert of(table)["throughput_tokens_per_s"].value == pytest.approx((100 + 50 + 50 + 0 + 1) / 50)


def test_tokens_of_a_request_that_failed_are_wasted_even_when_the_next_one_is_good() -> None:
    table = run_table(
        RequestRow(logical_request=0, at_s=20, ttft_s=0.1, e2e_s=0.2, output_tokens=3, outcome="failed", is_last=False),
        RequestRow(logical_request=0, at_s=20, ttft_s=0.5, e2e_s=0.9, output_tokens=9, retry_index=1),
    )

    assert of(table)["wasted_tokens_fraction"].value == pytest.approx(0.25)


def test_classes_have_their_own_promises_and_metrics() -> None:
    table = run_table(
        served(0, 20, 5.0, 6.0, 11, traffic_class=0),
        served(1, 20, 0.5, 1.5, 11, traffic_class=0),
        served(2, 20, 5.0, 6.0, 11, traffic_class=1),
        served(3, 20, 5.0, 6.0, 11, traffic_class=1),
        classes=("chat", "batch"),
    )

    found = analyse(table, SLOS, WINDOW)

    assert found["chat"]["goodput_fraction"].value == 0.5
    assert found["batch"]["goodput_fraction"].value == 1
    assert found[ALL]["goodput_fraction"].value == 0.75
    assert found[ALL]["worst_class_goodput_fraction"].value == 0.5


def test_a_class_without_traffic_is_not_the_worst_class() -> None:
    found = analyse(run_table(served(0, 20, 0.5, 1.5, 11), classes=("chat", "batch")), SLOS, WINDOW)

    assert found[ALL]["worst_class_goodput_fraction"].value == 1
    assert found["batch"]["offered_requests"].value == 0


def test_a_class_without_a_promise_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'chat'"):
        analyse(run_table(served(0, 20, 0.5, 1.5, 11)), {"batch": SLOS["batch"]}, WINDOW)


def test_replicas_are_judged_within_their_role() -> None:
    """Decode is perfectly balanced; prefill's busiest replica works twice the mean."""
    table = run_table(
        served(0, 20, 0.5, 1.5, 11),
        replicas=[
            ReplicaTotals(replica_id="p0", role="prefill", up_s=100, busy_s=40, prompt_tokens=900, cached_tokens=100),
            ReplicaTotals(replica_id="p1", role="prefill", up_s=100, busy_s=0, prompt_tokens=0, cached_tokens=1000),
            ReplicaTotals(replica_id="d0", role="decode", up_s=100, busy_s=50, preemptions=3),
            ReplicaTotals(replica_id="d1", role="decode", up_s=100, busy_s=50),
        ],
        duration_s=100,
    )

    found = of(table)

    assert (found["imbalance_prefill"].value, found["imbalance_decode"].value) == (2, 1)
    assert found["imbalance"] == MetricValue(value=2, samples=4)
    assert (found["utilisation_prefill"].value, found["utilisation_decode"].value) == (0.2, 0.5)
    assert found["prefix_hit_fraction"].value == pytest.approx(1100 / 2000)
    assert found["preemptions_per_request"].value == 3


def test_a_replica_that_was_there_for_half_the_time_is_judged_by_that_half() -> None:
    replicas = [
        ReplicaTotals(replica_id="u0.0", role="unified", up_s=50, busy_s=25),
        ReplicaTotals(replica_id="u0.1", role="unified", up_s=50, busy_s=25),
        ReplicaTotals(replica_id="u1.0", role="unified", up_s=100, busy_s=50),
    ]

    found = of(run_table(served(0, 20, 0.5, 1.5, 11), replicas=replicas))

    assert (found["imbalance_unified"].value, found["utilisation_unified"].value) == (1, 0.5)


def test_an_idle_fleet_has_no_imbalance_and_no_warning_either() -> None:
    replicas = [ReplicaTotals(replica_id=name, role="unified", up_s=10) for name in ("u0", "u1")]

    found = of(run_table(RequestRow(logical_request=0, at_s=20, e2e_s=0.0, outcome="refused"), replicas=replicas))

    assert np.isnan(found["imbalance"].value)
    assert found["utilisation_unified"].value == 0


def test_an_empty_run_has_nothing_to_report() -> None:
    found = of(run_table())

    assert found["offered_requests"].value == 0
    assert np.isnan(found["goodput_fraction"].value)


def test_service_is_prompts_by_their_first_token_and_output_tokens_twice() -> None:
    table = run_table(
        served(0, 20, 0.5, 1.5, 21),
        served(1, 59, 0.5, 1.5, 21, traffic_class=1),
        served(2, 5, 1.0, 9.0, 41, traffic_class=1),
        RequestRow(logical_request=3, at_s=20, e2e_s=0.0, outcome="refused", attempts=0),
        classes=("chat", "batch"),
    )

    found = analyse(table, SLOS, WINDOW)

    begun_in_it, ended_in_it = 100 + 2 * 21 * 0.5 / 1.0, 2 * 41 * 4.0 / 8.0
    assert found["chat"]["service_tokens_per_s"].value == pytest.approx((100 + 2 * 21) / 50)
    assert found["batch"]["service_tokens_per_s"].value == pytest.approx((begun_in_it + ended_in_it) / 50)
    assert found[ALL]["service_max_over_min"].value == pytest.approx(162 / 142)


def test_a_refusal_and_a_first_token_are_also_timed_from_the_send_of_their_request() -> None:
    refused = [
        RequestRow(logical_request=number, at_s=20, e2e_s=e2e_s, outcome="refused", is_last=False)
        for number, e2e_s in enumerate((0.1, 0.3))
    ]
    again = RequestRow(logical_request=0, at_s=20, ttft_s=0.5, e2e_s=1.0, output_tokens=2, retry_index=1)
    found = of(run_table(*refused, again))

    values = [found[name].value for name in ("refusal_p50_s", "refusal_p99_s", "send_ttft_p50_s")]
    assert values == pytest.approx([0.2, 0.298, 0.5])
    assert (found["refusal_p50_s"].samples, found["send_ttft_p50_s"].samples) == (2, 1)


def test_every_metric_is_in_the_catalog() -> None:
    replicas = [
        ReplicaTotals(replica_id=role, role=role, up_s=10, busy_s=1) for role in ("prefill", "decode", "unified")
    ]
    found = analyse(run_table(served(0, 20, 0.5, 1.5, 11), replicas=replicas), SLOS, WINDOW)

    assert set(found[ALL]) == {name for name, metric in METRICS.items() if not metric.is_live}
    assert set(found["chat"]) == {name for name, metric in METRICS.items() if metric.per_class}


@for_each("limit", [0.0, -1.0, inf, np.nan])
def test_a_promise_is_a_time_above_0(limit: float) -> None:
    with pytest.raises(ConfigError, match="ttft_s"):
        ClassSlo(ttft_s=limit)


def test_a_promise_promises_something() -> None:
    with pytest.raises(ConfigError, match="at least one of"):
        ClassSlo()


@for_each(
    ("metric", "samples"), [("ttft_p50_s", 20), ("ttft_p90_s", 100), ("ttft_p99_s", 1000), ("ttft_p999_s", 10_000)]
)
def test_a_percentile_takes_ten_samples_beyond_it(metric: str, samples: int) -> None:
    assert METRICS[metric].min_samples == samples


REQUESTS = st.lists(
    st.builds(
        RequestRow,
        logical_request=st.just(0),
        at_s=st.floats(0, 100),
        ttft_s=st.one_of(st.just(np.nan), st.floats(0, 5)),
        e2e_s=st.floats(5, 20),
        output_tokens=st.integers(1, 1000),
        outcome=st.sampled_from(OUTCOMES),
        traffic_class=st.integers(0, 1),
    ),
    max_size=30,
)


@given(REQUESTS, st.floats(0.1, 5), st.floats(0.1, 5))
def test_what_is_counted_adds_up_and_a_stricter_promise_is_never_kept_more_often(
    requests: list[RequestRow], one: float, other: float
) -> None:
    """Offered logical requests and good ones are sums over classes; fractions stay within 0 and 1."""
    table = run_table(
        *(RequestRow(**{**vars(each), "logical_request": n}) for n, each in enumerate(requests)), classes=("a", "b")
    )
    strict, loose = (
        analyse(table, {"a": ClassSlo(ttft_s=limit), "b": ClassSlo(e2e_s=10 * limit)}, WINDOW)
        for limit in sorted((one, other))
    )

    for metric in ("offered_requests", "goodput_rps", "throughput_tokens_per_s"):
        assert loose[ALL][metric].value == pytest.approx(loose["a"][metric].value + loose["b"][metric].value)
    assert loose[ALL]["goodput_rps"].value >= strict[ALL]["goodput_rps"].value
    fractions = [metric_value.value for name, metric_value in loose[ALL].items() if name.endswith("_fraction")]
    assert all(np.isnan(value) or 0 <= value <= 1 for value in fractions)


def test_cached_prompt_tokens_count_where_the_logical_request_completed() -> None:
    table = run_table(
        RequestRow(
            logical_request=0, at_s=20, ttft_s=1, e2e_s=2, output_tokens=5, prompt_tokens=300, cached_tokens=200
        ),
        RequestRow(logical_request=1, at_s=20, ttft_s=1, e2e_s=2, output_tokens=5, prompt_tokens=100),
        RequestRow(logical_request=2, at_s=20, prompt_tokens=900, outcome="refused"),
    )

    assert analyse(table, SLOS, WINDOW)[ALL]["cached_prompt_fraction"].value == 0.5


def test_load_is_tokens_in_a_second_of_the_worst_role() -> None:
    replicas = (
        ReplicaTotals(replica_id="a", role="prefill", up_s=100, prompt_tokens=300, cached_tokens=9_000),
        ReplicaTotals(replica_id="b", role="prefill", up_s=50, prompt_tokens=50),
        ReplicaTotals(replica_id="c", role="decode", up_s=100, output_tokens=70),
        ReplicaTotals(replica_id="d", role="decode", up_s=0),
    )
    table = run_table(served(0, 20, 0.5, 1.5, 11), replicas=replicas)

    assert analyse(table, SLOS, WINDOW)[ALL]["load_max_over_mean"].value == pytest.approx(3.0 / (350 / 150))
    assert math.isnan(analyse(run_table(), SLOS, WINDOW)[ALL]["load_max_over_mean"].value)


def test_hits_are_compared_with_the_ideal() -> None:
    replicas = (ReplicaTotals(replica_id="a", role="unified", up_s=100, prompt_tokens=300, cached_tokens=100),)
    table = run_table(served(0, 20, 0.5, 1.5, 11), replicas=replicas)

    assert analyse(table, SLOS, WINDOW, 0.5)[ALL]["prefix_hit_of_ideal"].value == 0.5
    assert math.isnan(analyse(table, SLOS, WINDOW)[ALL]["prefix_hit_of_ideal"].value)


def test_what_was_given_up_is_counted_over_completed_logical_requests() -> None:
    """Of two cut answers and a whole one; a refused logical request gives up nothing that anybody had begun to get."""
    table = run_table(
        RequestRow(logical_request=0, at_s=20, ttft_s=1, e2e_s=2, output_tokens=30, full_output_tokens=100),
        RequestRow(logical_request=1, at_s=20, ttft_s=1, e2e_s=2, output_tokens=60, full_output_tokens=90),
        RequestRow(logical_request=2, at_s=20, ttft_s=1, e2e_s=2, output_tokens=10),
        RequestRow(logical_request=3, at_s=20, outcome="refused", full_output_tokens=500),
    )

    found = analyse(table, SLOS, WINDOW)[ALL]

    assert found["degraded_fraction"] == MetricValue(value=0.5, samples=4)
    assert found["given_up_tokens"].value == 100
    assert found["given_up_tokens_fraction"].value == pytest.approx(100 / 200)


def test_ejections_are_counted_over_the_whole_run() -> None:
    ejections = tuple(
        EjectedReplica(replica_id=replica_id, at_s=at_s, reason="tokens")
        for replica_id, at_s in (("b", 5.0), ("a", 70.0), ("b", 80.0))
    )
    table = replace(run_table(served(0, 20, 0.5, 1.5, 11)), ejections=ejections)

    found = of(table, ClassSlo(ttft_s=1.0))

    names = ("ejections", "ejected_replicas", "first_ejection_s")
    assert [found[name].value for name in names] == [3.0, 2.0, 5.0]


def test_where_nobody_was_ejected_there_is_no_first_time() -> None:
    found = of(run_table(served(0, 20, 0.5, 1.5, 11)), ClassSlo(ttft_s=1.0))

    assert found["ejections"].value == 0.0
    assert math.isnan(found["first_ejection_s"].value)


def test_how_long_engines_go_on_with_what_is_stopped_is_known_where_something_was() -> None:
    table = run_table(served(0, 20, 0.5, 1.5, 11))

    nobody, found = of(table, ClassSlo(ttft_s=1.0)), of(replace(table, cancels_s=(0.1, 0.3)), ClassSlo(ttft_s=1.0))

    assert [found["cancel_mean_s"].value, found["cancel_max_s"].value] == pytest.approx([0.2, 0.3])
    assert math.isnan(nobody["cancel_mean_s"].value)
    assert math.isnan(nobody["cancel_max_s"].value)


def test_tenths_are_by_the_length_of_prompts_and_the_last_one_has_the_longest() -> None:
    rows = [
        replace(served(number, 20, 0.5 if number < 95 else 5.0, 5.05, 1), prompt_tokens=10 * (number + 1))
        for number in range(100)
    ]
    table = run_table(*rows)

    tenths = prompt_tenths(derive(table, SLOS, WINDOW))

    assert [(each.least_tokens, each.most_tokens) for each in tenths][::9] == [(10, 100), (910, 1000)]
    assert [each.metrics["offered_requests"].value for each in tenths] == [10] * 10
    assert [each.metrics["goodput_fraction"].value for each in tenths] == [1.0] * 9 + [0.5]
    assert of(table)["longest_tenth_goodput_fraction"].value == 0.5


@for_each("num_long", [1, 10, 15, 60])
def test_prompts_of_the_same_length_are_in_one_tenth(num_long: int) -> None:
    long = [replace(served(number, 20, 5.0, 5.05, 1), prompt_tokens=5000) for number in range(num_long)]
    short = [replace(served(number, 20, 0.5, 5.05, 1), prompt_tokens=20) for number in range(num_long, 100)]
    rows = [*long, *short]

    tenths = prompt_tenths(derive(run_table(*rows), SLOS, WINDOW))

    assert [(each.least_tokens, each.most_tokens) for each in tenths] == [(20, 20), (5000, 5000)]
    assert [each.metrics["goodput_fraction"].value for each in tenths] == [1.0, 0.0]
    assert tenths[-1].metrics["offered_requests"].value == num_long


def test_a_rate_of_completions_counts_what_completed_between_two_moments() -> None:
    """Neither the start of a flood, when the batch fills, nor what comes after it."""
    ends_s = (0.5, 4.0, 5.0, 6.0, 7.9, 8.0, 9.0)
    table = run_table(*(served(number, 0.0, 0.1, each, 2) for number, each in enumerate(ends_s)))

    assert completions_per_s(table, 4.0, 8.0) == pytest.approx(1.0)
