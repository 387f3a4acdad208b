from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import ConfigError, PolicyChoice, RequestView
from routing import PREDICTORS, LengthPredictor, OutputEstimate, build_predictor
from routing.sizing.length_log import LoggedRequest
from routing.sizing.length_prediction import GlobalMedian
from routing.sizing.prompt_ngrams import NgramParams
from tests.routing.length_cases import LOGGED, asked
from tests.tables import for_each

ONLINE = ("max_tokens", "global_median", "log2_histogram", "adaptive_histogram")


class NeverSays:
    """Answers, and does not say whether it looks at words."""

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(1, 1)

    def observe(self, request: RequestView, output_tokens: int) -> None: ...


class AlwaysOne(NeverSays):
    """A predictor of somebody's own."""

    wants_ngrams: ClassVar[NgramParams | None] = None


def refusal(call: Callable[[], Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value


def of(name: str, **params: Any) -> LengthPredictor:
    return build_predictor(PolicyChoice(name=name, params=params))


def test_every_predictor_has_a_name() -> None:
    assert sorted(PREDICTORS) == [
        "adaptive_histogram",
        "global_median",
        "log2_histogram",
        "max_tokens",
        "quantile_model",
    ]


@for_each("name", ONLINE)
@settings(max_examples=25)
@given(past=st.lists(LOGGED, max_size=40), request=LOGGED)
def test_an_estimate_is_at_least_one_token_and_at_most_what_may_come(
    name: str, past: list[LoggedRequest], request: LoggedRequest
) -> None:
    predictor = of(name)
    for each in past:
        predictor.observe(each.view(), each.output_tokens)

    tokens, high = predictor.predict(request.view())

    assert type(tokens) is type(high) is int
    assert 1 <= tokens <= high <= request.max_output_tokens


@for_each("name", ONLINE)
@settings(max_examples=15)
@given(past=st.lists(LOGGED, min_size=25, max_size=40))
def test_the_same_past_gives_the_same_estimates(name: str, past: list[LoggedRequest]) -> None:
    one, other = of(name), of(name)
    for each in past:
        one.observe(each.view(), each.output_tokens)
    for each in past:
        assert other.predict(each.view()) is not None  # asking changes nothing
        other.observe(each.view(), each.output_tokens)

    assert [one.predict(each.view()) for each in past] == [other.predict(each.view()) for each in past]


@for_each("name", ONLINE)
def test_who_has_seen_nothing_expects_the_most(name: str) -> None:
    assert of(name).predict(asked(max_output_tokens=777)) == OutputEstimate(777, 777)


def test_the_global_median_is_that_of_the_window() -> None:
    predictor = GlobalMedian(window_requests=100, min_samples=10)
    for length in [5000] * 50 + list(range(1, 101)):
        predictor.observe(asked(), length)

    assert predictor.predict(asked()) == OutputEstimate(51, 91)
    assert predictor.predict(asked(max_output_tokens=60)) == OutputEstimate(51, 60)


def test_a_predictor_can_be_named_by_import_path() -> None:
    assert isinstance(of(f"{__name__}:AlwaysOne"), AlwaysOne)


def test_a_predictor_that_does_not_say_whether_it_wants_ngrams_is_refused() -> None:
    refused = refusal(lambda: of(f"{__name__}:NeverSays"))

    assert refused.field == "policies.length_prediction"
    assert refused.allowed.startswith("a predictor with `wants_ngrams`")


def test_an_unknown_predictor_is_refused_with_the_predictors_there_are() -> None:
    refused = refusal(lambda: of("oracle"))

    assert (refused.field, refused.value) == ("policies.length_prediction", "oracle")
    assert refused.allowed == f"one of {sorted(PREDICTORS)}, or package.module:factory"


@for_each(
    ("name", "params", "field"),
    [
        ("global_median", {"quantile": 1.0}, "params.quantile"),
        ("global_median", {"min_samples": 0}, "params.min_samples"),
        ("global_median", {"window_requests": 10}, "params.min_samples"),
        ("log2_histogram", {"quantile": 0.4}, "params.quantile"),
        ("log2_histogram", {"quantile": float("nan")}, "params.quantile"),
        ("log2_histogram", {"half_life_requests": 0.5}, "params.half_life_requests"),
        ("log2_histogram", {"min_samples": 300}, "params.min_samples"),
        ("log2_histogram", {"max_keys": 0}, "params.max_keys"),
        ("adaptive_histogram", {"half_life_requests": 0.5}, "params.half_life_requests"),
        ("adaptive_histogram", {"min_samples": 0}, "params.min_samples"),
        ("adaptive_histogram", {"shrinkage_samples": -1.0}, "params.shrinkage_samples"),
        ("adaptive_histogram", {"false_alarm_fraction": 0.0}, "params.false_alarm_fraction"),
        ("adaptive_histogram", {"max_keys": 0}, "params.max_keys"),
        ("log2_histogram", {"decay": 1}, "params"),
        ("quantile_model", {}, "params"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(name: str, params: dict[str, Any], field: str) -> None:
    assert refusal(lambda: of(name, **params)).field == f"policies.length_prediction.{field}"


def test_ngrams_that_cannot_be_hashed_so_are_refused() -> None:
    refused = refusal(lambda: of("log2_histogram", ngrams={"limit": 1}))

    assert (refused.field, refused.value) == ("ngrams.limit", 1)


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "no-model.npz")

    refused = refusal(lambda: of("quantile_model", path=path))

    assert (refused.field, refused.value) == ("policies.length_prediction.params.path", path)
    assert refused.allowed == "a file that exists"
