import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from math import expm1, log
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from policies import ConfigError
from routing import OutputEstimate
from routing.sizing.length_model_file import ModelCard, ModelFile, Weights, shapes, tenant_row
from routing.sizing.prompt_ngrams import NgramParams
from routing.sizing.quantile_model import QuantileModel
from tests.routing.length_cases import asked
from tests.tables import for_each

ROOT = Path(__file__).parents[3]
NGRAMS = NgramParams(num_buckets=8, limit=4)
CARD = ModelCard(levels=(0.1, 0.3, 0.5, 0.7, 0.9), ngrams=NGRAMS)
FIELD = "policies.length_prediction.params"


def arrays() -> dict[str, Weights]:
    """A model that, whatever it is asked, says 4, 8, 16, 32 and 64 tokens."""
    sizes = shapes(NGRAMS, 5, ngram_dim=2, num_tenants=3, tenant_dim=1, hidden=4)
    weights = {name: np.zeros(shape, dtype=np.float32) for name, shape in sizes.items()}
    weights["feature_scale"] += 1.0
    weights["output_bias"][:] = [2.0, *[log(expm1(1.0))] * 4]
    return weights


def saved(folder: Path, weights: dict[str, Weights] | None = None, card: ModelCard = CARD) -> str:
    path = folder / "model.npz"
    ModelFile(card=card, arrays=weights or arrays()).save(path)
    return str(path)


def refusal(path: str, **params: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        QuantileModel(path=path, **params)
    return caught.value


def test_the_expected_length_is_the_mean_of_the_levels_and_the_high_one_is_a_level(tmp_path: Path) -> None:
    path = saved(tmp_path)

    assert QuantileModel(path=path).predict(asked()) == OutputEstimate(25, 64)
    assert QuantileModel(path=path, quantile=0.7).predict(asked()) == OutputEstimate(25, 32)
    assert QuantileModel(path=path).quantile_tokens(asked(), 0.5) == 16


def test_each_level_is_cut_at_what_may_come(tmp_path: Path) -> None:
    model = QuantileModel(path=saved(tmp_path))

    assert model.predict(asked(max_output_tokens=20)) == OutputEstimate(14, 20)
    assert model.predict(asked(max_output_tokens=1)) == OutputEstimate(1, 1)


def test_a_median_below_the_mean_does_not_make_the_high_length_the_smaller_one(tmp_path: Path) -> None:
    assert QuantileModel(path=saved(tmp_path), quantile=0.5).predict(asked()) == OutputEstimate(25, 25)


def test_words_tenants_and_sizes_can_each_move_the_estimate(tmp_path: Path) -> None:
    weights = arrays()
    weights["output_weight"][0] = 1.0
    weights["hidden_weight"][:4, [0, 2, 3, 4]] = np.eye(4)  # an n-gram's first number, the tenant's, prompt, bound
    weights["ngram_embedding"][5, 0] = 1.5
    weights["tenant_embedding"][tenant_row("acme", 3)] = 1.0
    model = QuantileModel(path=saved(tmp_path, weights))

    def median(**request: Any) -> float:
        return model.log2_quantiles(asked(**{"prompt_tokens": 1, "max_output_tokens": 1, "tenant": "x", **request}))[2]

    other = next(each for each in "abcdef" if tenant_row(each, 3) != tenant_row("acme", 3))
    assert median(tenant=other) == pytest.approx(4.0)
    assert median(tenant="acme") == pytest.approx(5.0)
    assert median(tenant=other, prompt_tokens=8) == pytest.approx(7.0)
    assert median(tenant=other, max_output_tokens=4) == pytest.approx(6.0)
    assert median(tenant=other, ngrams=(1, 2, 3, 4)) == pytest.approx(4.0)
    assert median(tenant=other, ngrams=(5, 1, 2, 3)) == pytest.approx(4.75)


def test_learning_nothing_online_it_says_the_same_again(tmp_path: Path) -> None:
    model = QuantileModel(path=saved(tmp_path))

    for _ in range(100):
        model.observe(asked(), 4000)

    assert model.predict(asked()) == OutputEstimate(25, 64)


def test_it_wants_ngrams_as_its_training_data_had_them(tmp_path: Path) -> None:
    assert QuantileModel(path=saved(tmp_path)).wants_ngrams == NGRAMS


def test_a_file_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    card = msgspec.structs.replace(CARD, training={"epochs": 3.0})
    weights = {name: each + np.float32(0.1) for name, each in arrays().items()}

    loaded = ModelFile.load(Path(saved(tmp_path, weights, card)))

    assert loaded.card == card
    assert loaded.arrays.keys() == weights.keys()
    assert all(np.array_equal(loaded.arrays[name], each) for name, each in weights.items())


def test_the_file_can_be_pinned_by_its_hash(tmp_path: Path) -> None:
    path = saved(tmp_path)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()

    assert QuantileModel(path=path, sha256=digest).predict(asked()) == OutputEstimate(25, 64)
    assert refusal(path, sha256="0" * 64).field == f"{FIELD}.sha256"


@for_each("quantile", [0.8, 0.3, 1.0])
def test_a_quantile_that_the_model_does_not_have_is_refused(tmp_path: Path, quantile: float) -> None:
    refused = refusal(saved(tmp_path), quantile=quantile)

    assert (refused.field, refused.value) == (f"{FIELD}.quantile", quantile)
    assert refused.allowed.startswith("one of [0.5, 0.7, 0.9]")


def broken(name: str, value: Any) -> dict[str, Weights]:
    return {**arrays(), name: value}


@for_each(
    ("weights", "card"),
    [
        ({name: each for name, each in arrays().items() if name != "hidden_bias"}, CARD),
        (broken("extra", np.zeros(1, dtype=np.float32)), CARD),
        (broken("hidden_bias", np.zeros(5, dtype=np.float32)), CARD),
        (broken("hidden_bias", np.full(4, np.nan, dtype=np.float32)), CARD),
        (broken("hidden_bias", np.zeros(4)), CARD),
        (broken("feature_scale", np.zeros(3, dtype=np.float32)), CARD),
        (broken("tenant_embedding", np.zeros((0, 1), dtype=np.float32)), CARD),
        (broken("ngram_embedding", np.float32(0.0)), CARD),
        (arrays(), msgspec.structs.replace(CARD, version=2)),
        (arrays(), msgspec.structs.replace(CARD, format="another model")),
        (arrays(), msgspec.structs.replace(CARD, levels=(0.1, 0.2, 0.3, 0.4, 0.5))),
        (arrays(), msgspec.structs.replace(CARD, levels=())),
        (arrays(), msgspec.structs.replace(CARD, ngrams=replace(NGRAMS, num_buckets=9))),
    ],
    ids="missing extra shape nan dtype scale tenants scalar version format levels no_levels buckets".split(),
)
def test_a_file_that_does_not_fit_together_is_refused(
    tmp_path: Path, weights: dict[str, Weights], card: ModelCard
) -> None:
    path = saved(tmp_path, weights, card)

    refused = refusal(path)

    assert (refused.field, refused.value) == (f"{FIELD}.path", path)
    assert refused.allowed.startswith("a file that loadtests.length_models.train has written (")


def a_card(**changes: Any) -> str:
    return json.dumps({**msgspec.to_builtins(CARD), **changes})


@for_each(
    "card", ["", "[]", "{}", a_card(surplus=1), a_card(ngrams={"num_buckets": 0, "limit": 4}), a_card(levels="all")]
)
def test_a_card_that_cannot_be_read_is_refused(tmp_path: Path, card: str) -> None:
    path = tmp_path / "model.npz"
    np.savez(path, allow_pickle=False, **{**arrays(), "card": np.array(card)})

    assert refusal(str(path)).field == f"{FIELD}.path"


@for_each("content", [b"", b"PK\x03\x04 and no more", b"\x93NUMPY", b"{}"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(content)

    assert refusal(str(path)).field == f"{FIELD}.path"


def test_a_folder_and_a_single_array_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros(3))

    assert refusal(str(tmp_path)).field == f"{FIELD}.path"
    assert refusal(str(tmp_path / "array.npy")).field == f"{FIELD}.path"


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    np.savez(path, allow_pickle=True, **{**arrays(), "card": np.array([{"a": 1}], dtype=object)})

    assert "pickle" in refusal(str(path)).allowed


def test_asking_the_model_does_not_import_what_it_was_trained_with(tmp_path: Path) -> None:
    script = (
        "import sys; from routing import build_predictor; from policies import PolicyChoice;"
        f"build_predictor(PolicyChoice(name='quantile_model', params={{'path': {saved(tmp_path)!r}}}));"
        "sys.exit('torch' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True)
