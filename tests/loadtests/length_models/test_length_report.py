from pathlib import Path

import numpy as np
import pytest

from loadtests.length_models.data import CAPS_TOKENS, TENANTS, azure_requests, synthetic_requests
from loadtests.length_models.report import IN_FLIGHT, compare, main, pinball, score
from policies import ConfigError, RequestView
from routing import OutputEstimate
from routing.sizing.length_log import LoggedRequest, write_log
from routing.sizing.length_prediction import MaxTokens
from routing.sizing.prompt_ngrams import DEFAULT_NGRAMS, NgramParams

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


@pytest.mark.parametrize("level", [0.5, 0.9])
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


def test_the_synthetic_set_drifts_half_way() -> None:
    requests = synthetic_requests(8_000, 1, DEFAULT_NGRAMS)
    before, after = (
        np.median([each.output_tokens for each in half if each.tenant == "north" and each.max_output_tokens == 4096])
        for half in (requests[:4_000], requests[4_000:])
    )

    assert after > 1.5 * before


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


def test_the_command_prints_a_table_for_each_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, log = tmp_path / "azure.csv", tmp_path / "own.jsonl"
    rows = [f"2023-11-16 18:{n // 60:02}:{n % 60:02},{100 + n},{1 + n % 50}" for n in range(200)]
    trace.write_text("\n".join((AZURE.splitlines()[0], *rows)), encoding="utf-8")
    write_log(log, synthetic_requests(200, 1, NgramParams(num_buckets=64, limit=8)))

    assert main(["--requests", "300", "--trace", str(trace), "--log", str(log)]) == 0

    printed = capsys.readouterr().out
    assert printed.count("quantile_model") == printed.count("global_median") == 3
    assert "azure.csv: no words, no tenants; max_output_tokens is 50" in printed
    assert "own.jsonl (200 requests)" in printed


def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(*arguments: object) -> None:
        raise AssertionError("training has begun")

    monkeypatch.setattr("loadtests.length_models.report.train", too_late)


@pytest.mark.parametrize("option", ["--trace", "--log"])
def test_files_that_are_not_there_are_refused_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    no_training(monkeypatch)

    assert main(["--requests", "300", option, str(tmp_path / "none.csv")]) == 2

    assert "none.csv" in capsys.readouterr().err


def test_a_log_that_no_model_can_be_trained_on_is_refused_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_training(monkeypatch)
    few, foreign = tmp_path / "few.jsonl", tmp_path / "foreign.jsonl"
    write_log(few, synthetic_requests(140, 1, DEFAULT_NGRAMS))
    write_log(foreign, synthetic_requests(300, 1, NgramParams(num_buckets=10**6, limit=8)))

    assert main(["--requests", "300", "--log", str(few)]) == 2
    assert "few.jsonl: log: got '98 requests'" in capsys.readouterr().err
    assert main(["--requests", "300", "--log", str(foreign)]) == 2
    assert "foreign.jsonl: ngrams: got" in capsys.readouterr().err


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE.splitlines()[0] + "\n2023-11-16 18:15:50,396,0\n", encoding="utf-8")

    with pytest.raises(ConfigError):
        azure_requests(path)
