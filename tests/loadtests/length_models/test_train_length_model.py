"""Training on a small synthetic set: a second or two for the whole file."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given

from loadtests.length_models.data import synthetic_requests
from loadtests.length_models.report import pinball
from loadtests.length_models.train import LEVELS, Inputs, Trained, TrainingSettings, main, train
from policies import ConfigError
from routing.sizing.length_log import LoggedRequest, write_log
from routing.sizing.length_model_file import ModelFile
from routing.sizing.length_prediction import GlobalMedian
from routing.sizing.prompt_ngrams import DEFAULT_NGRAMS
from routing.sizing.quantile_model import QuantileModel
from tests.routing.length_cases import LOGGED
from tests.tables import for_each

SETTINGS = TrainingSettings(max_epochs=15)
STATIONARY = synthetic_requests(8_000, seed=3, ngrams=DEFAULT_NGRAMS)[:4_000]
"""The half before the drift."""
TRAINING, HELD_OUT = STATIONARY[:3_000], STATIONARY[3_000:]


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train(TRAINING, SETTINGS)


@pytest.fixture(scope="module")
def loaded(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> QuantileModel:
    path = tmp_path_factory.mktemp("model") / "model.npz"
    trained.model.save(path)
    return QuantileModel(path=str(path))


def quantiles_of(trained: Trained, requests: list[LoggedRequest]) -> list[list[float]]:
    with torch.no_grad():
        quantiles: list[list[float]] = trained.network.log2_quantiles(Inputs.of(requests, SETTINGS)).tolist()
    return quantiles


def test_the_model_says_in_numpy_what_it_said_in_torch(trained: Trained, loaded: QuantileModel) -> None:
    bare = [msgspec.structs.replace(each, ngrams=()) for each in HELD_OUT[:50]]
    short = [msgspec.structs.replace(each, ngrams=each.ngrams[:7], tenant="new") for each in HELD_OUT[:50]]
    for requests in (HELD_OUT[:200], bare, short):
        asked = [loaded.log2_quantiles(each.view()) for each in requests]

        np.testing.assert_allclose(asked, quantiles_of(trained, requests), atol=1e-5, rtol=1e-5)


@given(request=LOGGED)
def test_quantiles_never_cross_and_estimates_stay_within_bounds(loaded: QuantileModel, request: LoggedRequest) -> None:
    view = request.view()
    quantiles = loaded.log2_quantiles(view)
    tokens, high = loaded.predict(view)

    assert quantiles == sorted(quantiles)
    assert 1 <= tokens <= high <= request.max_output_tokens
    assert loaded.quantile_tokens(view, 0.5) <= loaded.quantile_tokens(view, 0.9)


def test_what_the_words_say_is_learnt(loaded: QuantileModel) -> None:
    """The median's pinball loss on held-out requests is less than half of the global median's."""
    baseline = GlobalMedian(window_requests=len(TRAINING))
    for each in TRAINING:
        baseline.observe(each.view(), each.output_tokens)
    actual = np.array([each.output_tokens for each in HELD_OUT])

    losses = [
        pinball(np.array([predictor.quantile_tokens(each.view(), 0.5) for each in HELD_OUT]), actual, 0.5)
        for predictor in (loaded, baseline)
    ]

    assert losses[0] < 0.5 * losses[1]


@for_each("level", LEVELS)
def test_each_level_covers_what_it_promises(loaded: QuantileModel, level: float) -> None:
    """On 1,000 held-out requests whose answers were not cut, within 0.08."""
    whole = [
        each for each in HELD_OUT if each.output_tokens < each.max_output_tokens and each.max_output_tokens == 4096
    ]
    covered = np.mean([each.output_tokens <= loaded.quantile_tokens(each.view(), level) for each in whole])

    assert covered == pytest.approx(level, abs=0.08)


def test_the_expected_length_adds_up_to_the_work(loaded: QuantileModel) -> None:
    expected = sum(loaded.predict(each.view()).tokens for each in HELD_OUT)

    assert expected == pytest.approx(sum(each.output_tokens for each in HELD_OUT), rel=0.1)


def test_answers_that_were_cut_do_not_pass_for_short_ones() -> None:
    """All clients allow 100 or 10,000 tokens of answers of about 400."""
    draws = np.random.Generator(np.random.PCG64(1)).standard_normal(3_000)
    requests = [
        LoggedRequest(prompt_tokens=50, max_output_tokens=most, output_tokens=int(min(400 * np.exp(0.3 * draw), most)))
        for draw, most in zip(draws.tolist(), [100, 10_000] * 1_500, strict=True)
    ]
    settings = replace(SETTINGS, max_epochs=5)
    network = train(requests, settings).network

    with torch.no_grad():
        medians = network.log2_quantiles(Inputs.of(requests[1::2], settings))[:, 2]

    assert 2.0 ** medians.mean().item() == pytest.approx(400, rel=0.1)


def test_the_same_log_gives_the_same_model(trained: Trained) -> None:
    again = train(TRAINING, SETTINGS).model

    assert again.card == trained.model.card
    for name, array in trained.model.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)


def test_rare_ngrams_and_absent_tenants_have_no_effect(trained: Trained) -> None:
    counts = np.bincount(
        [ngram for each in TRAINING for ngram in set(each.ngrams)], minlength=DEFAULT_NGRAMS.num_buckets
    )
    has_effect = np.abs(trained.model.arrays["ngram_embedding"]).sum(axis=1) > 0

    assert has_effect.any()
    assert counts[has_effect].min() >= 0.8 * 0.01 * len(TRAINING)
    assert (np.abs(trained.model.arrays["tenant_embedding"]).sum(axis=1) > 0).sum() <= 4


def test_a_log_without_words_trains_a_model_of_sizes_alone() -> None:
    requests = [msgspec.structs.replace(each, ngrams=(), tenant="") for each in TRAINING[:400]]
    trained = train(requests, replace(SETTINGS, max_epochs=2))

    word = trained.network.log2_quantiles(Inputs.of([msgspec.structs.replace(requests[0], ngrams=(1, 2))], SETTINGS))
    none = trained.network.log2_quantiles(Inputs.of(requests[:1], SETTINGS))

    assert torch.equal(word, none), "what never varied has no effect when it does"


def test_too_few_requests_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        train(TRAINING[:99])

    assert (caught.value.field, caught.value.allowed) == ("log", "100 requests or more")


@for_each("change", [{"num_buckets": 100}, {"limit": 8}])
def test_ngrams_that_were_hashed_otherwise_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        train(TRAINING, replace(SETTINGS, ngrams=replace(DEFAULT_NGRAMS, **change)))

    assert caught.value.field == "ngrams"


def test_the_command_trains_from_logs_and_says_how_it_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    write_log(logs[0], TRAINING[:100])
    write_log(logs[1], TRAINING[100:200])
    output = tmp_path / "model.npz"

    assert main(["--log", *map(str, logs), "--output", str(output), "--seed", "4"]) == 0

    metrics = ModelFile.load(output).card.training
    assert (metrics["training_requests"], metrics["validation_requests"]) == (170.0, 30.0)
    printed = capsys.readouterr().out
    assert all(name in printed for name in metrics)


def test_the_command_refuses_a_log_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n{}\n", encoding="utf-8")

    assert main(["--log", str(log), "--output", str(tmp_path / "model.npz")]) == 2

    assert f"{log}, line 2" in capsys.readouterr().err
    assert not (tmp_path / "model.npz").exists()


def test_the_command_looks_at_its_output_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*arguments: object) -> None:
        raise AssertionError("training has begun")

    monkeypatch.setattr("loadtests.length_models.train.train", too_late)
    log = tmp_path / "log.jsonl"
    write_log(log, TRAINING[:100])

    for output in (tmp_path, tmp_path / "nowhere" / "model.npz"):
        assert main(["--log", str(log), "--output", str(output)]) == 2
        assert f"--output: got '{output}'" in capsys.readouterr().err


def test_a_model_that_is_there_stays_when_the_log_is_none(tmp_path: Path) -> None:
    output = tmp_path / "model.npz"
    output.write_bytes(b"model")

    assert main(["--log", str(tmp_path / "none.jsonl"), "--output", str(output)]) == 2

    assert output.read_bytes() == b"model"


def test_the_command_refuses_answers_beyond_their_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    longer = TRAINING[50].max_output_tokens + 1
    write_log(log, [*TRAINING[:150], msgspec.structs.replace(TRAINING[50], output_tokens=longer)])

    assert main(["--log", str(log), "--output", str(tmp_path / "model.npz")]) == 2

    assert f"{log}, line 151" in capsys.readouterr().err
