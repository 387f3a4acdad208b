import numpy as np
import pytest

from loadtests.length_models.data import synthetic_requests
from loadtests.length_models.report import score
from loadtests.length_models.switch import ratios, switching_requests
from routing.sizing.adaptive_histogram import AdaptiveHistogram
from routing.sizing.length_histogram import Log2Histogram
from routing.sizing.prompt_ngrams import DEFAULT_NGRAMS
from tests.routing.length_cases import asked, lognormal_lengths
from tests.tables import for_each

BRIEF, LONG = 10, 1000


def told(predictor: AdaptiveHistogram, lengths: list[int], tenant: str = "", prompt_tokens: int = 100) -> None:
    for each in lengths:
        predictor.observe(asked(prompt_tokens=prompt_tokens, tenant=tenant), each)


@for_each("seed", [11, 12, 13])
def test_when_chat_becomes_code_it_is_right_again_long_before_the_histogram(seed: int) -> None:
    requests, switch = switching_requests(seed)

    adaptive, histogram = (ratios(each, requests, switch) for each in (AdaptiveHistogram(), Log2Histogram()))

    assert adaptive[-1] < 0.7 * histogram[-1]
    assert all(0.6 < each < 1.4 for each in adaptive[2:4]), "requests 100 to 500 after the switch"


def test_where_no_alarm_is_due_it_loses_nothing_to_the_histogram() -> None:
    requests = synthetic_requests(6_000, 4, DEFAULT_NGRAMS)[:3_000]

    adaptive, histogram = (score(each, requests, 1_500) for each in (AdaptiveHistogram(), Log2Histogram()))

    assert adaptive.pinball_high < 1.03 * histogram.pinball_high
    assert adaptive.pinball_median < 1.03 * histogram.pinball_median


def test_a_tenant_that_changes_alone_changes_nobody_else() -> None:
    predictor = AdaptiveHistogram()
    for short in lognormal_lengths(1_000, median=100):
        told(predictor, [short], "steady")
        told(predictor, [short], "fickle")
    before = predictor.predict(asked(tenant="steady")).tokens

    for number, long in enumerate(lognormal_lengths(40, median=1_500)):
        told(predictor, [long], "fickle")
        told(predictor, lognormal_lengths(10, median=100, seed=number + 2), "steady")

    assert predictor.predict(asked(tenant="fickle")).tokens > 1_000
    assert predictor.predict(asked(tenant="steady")).tokens == pytest.approx(before, rel=0.2)


def test_a_pair_with_few_answers_is_mostly_what_its_parents_are() -> None:
    predictor = AdaptiveHistogram(shrinkage_samples=10)
    told(predictor, [LONG] * 300, "wordy")
    told(predictor, [BRIEF], "new")
    after_one = predictor.predict(asked(tenant="new")).tokens
    for _ in range(29):
        told(predictor, [LONG] * 9, "wordy")
        told(predictor, [BRIEF], "new")

    assert predictor.predict(asked(tenant="stranger")).tokens == pytest.approx(LONG, rel=0.3)
    assert after_one > 0.8 * LONG
    assert predictor.predict(asked(tenant="new")).tokens < 0.4 * LONG


def test_it_says_how_often_it_has_noticed_a_change() -> None:
    predictor = AdaptiveHistogram()
    told(predictor, lognormal_lengths(1_000, median=500))
    assert predictor.gauges() == {"length_changes_total:all": 0.0, "length_changes_total:own": 0.0}

    told(predictor, lognormal_lengths(200, median=20))

    assert predictor.gauges()["length_changes_total:all"] == 1.0


def test_answers_that_were_cut_do_not_pass_for_short_ones() -> None:
    predictor, lengths = AdaptiveHistogram(half_life_requests=2_000), lognormal_lengths(4_000)
    for number, each in enumerate(lengths):
        view = asked(max_output_tokens=150 if number % 2 else 100_000)
        predictor.observe(view, min(each, view.max_output_tokens))

    expected = predictor.predict(asked(max_output_tokens=100_000)).tokens

    assert expected == pytest.approx(np.mean(lengths), rel=0.1)
