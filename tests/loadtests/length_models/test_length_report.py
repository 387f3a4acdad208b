from pathlib import Path

import numpy as np
import pytest

from loadtests.length_models.data import CAPS_TOKENS, TENANTS, azure_requests, synthetic_requests
from loadtests.length_models.report import IN_FLIGHT, compare, pinball, score
from policies import ConfigError, RequestView
from routing import OutputEstimate
from routing.sizing.length_log import LoggedRequest
from routing.sizing.length_prediction import MaxTokens
from routing.sizing.prompt_ngrams import DEFAULT_NGRAMS
from tests.tables import for_each

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:50,396,109\n2023-11-16 18:15:46,374,44\n"


class LastHeard(MaxTokens):
    """Says what it heard last."""

    def __init__(self) -> None:
        self.heard = 1

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(self.heard, self.heard)

    def observe(self, request: RequestView, output_tokens: int) -> None:
        self.heard = output_tokens

    def quantile_tokens(self, request: RequestView, level: float) -> int:
        return self.heard


def test_pinball_loss_weighs_what_is_too_short_by_the_level_and_what_is_too_long_by_the_rest() -> None:
    predicted, actual = np.array([10, 10]), np.array([20, 0])

    assert pinball(predicted, actual, 0.5) == 5.0
    assert pinball(predicted[:1], actual[:1], 0.9) == pytest.approx(9.0)
    assert pinball(predicted[1:], actual[1:], 0.9) == pytest.approx(1.0)


@for_each("level", [0.5, 0.9])
def test_pinball_loss_is_least_at_the_quantile(level: float) -> None:
    actual = np.arange(1, 1_001)
    losses = [pinball(np.full(1_000, guess), actual, level) for guess in range(1, 1_001)]

    assert np.argmin(losses) + 1 == pytest.approx(1_000 * level, abs=1)


def test_an_answer_is_heard_of_only_when_later_requests_have_been_predicted() -> None:
    requests = [LoggedRequest(prompt_tokens=9, max_output_tokens=999, output_tokens=n) for n in range(1, 201)]

    scored = score(LastHeard(), requests, first_judged=100)

    assert scored.absolute_error_tokens == IN_FLIGHT + 1
    assert scored.coverage_fraction == 0.0
    assert scored.work_ratio == pytest.approx(1 - (IN_FLIGHT + 1) / 150.5)


def test_the_synthetic_set_is_the_same_for_the_same_seed_and_cut_at_its_bounds() -> None:
    one, again, other = (synthetic_requests(500, seed, DEFAULT_NGRAMS) for seed in (1, 1, 2))

    assert one == again != other
    assert all(1 <= each.output_tokens <= each.max_output_tokens for each in one)
    assert {each.max_output_tokens for each in one} == set(CAPS_TOKENS)
    assert {each.tenant for each in one} == set(TENANTS)
    assert sum(each.output_tokens == each.max_output_tokens for each in one) > 20


def test_an_azure_trace_is_read_in_order_of_time_with_its_longest_answer_as_bound(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE, encoding="utf-8")

    requests, cap = azure_requests(path)

    assert cap == 109
    assert [(each.prompt_tokens, each.output_tokens) for each in requests] == [(374, 44), (396, 109)]
    assert {each.max_output_tokens for each in requests} == {109}


def test_on_words_the_model_beats_the_histogram_and_that_the_baselines() -> None:
    """3,000 requests before any drift; at least a tenth less loss from each to the next."""
    scores = compare(synthetic_requests(6_000, 4, DEFAULT_NGRAMS)[:3_000])

    for level in ("pinball_median", "pinball_high"):
        model, histogram, most = (
            getattr(scores[name], level) for name in ("quantile_model", "log2_histogram", "max_tokens")
        )
        assert model < 0.9 * histogram
        assert histogram < 0.9 * most


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE.splitlines()[0] + "\n2023-11-16 18:15:50,396,0\n", encoding="utf-8")

    with pytest.raises(ConfigError):
        azure_requests(path)
