"""A trained length model as one file, and what training and serving must agree on.

::

    n-grams -> sum of their embeddings, -+
               over the root of how many |
    tenant  -> embedding ----------------+-> hidden layer (ReLU) -> log2 tokens at each level, each one
    log2 prompt, log2 max_output_tokens, +                          a softplus above the one before it
    has it any n-grams ------------------+
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from policies.errors import ConfigError
from routing.sizing.length_prediction import FIELD
from routing.sizing.prompt_ngrams import NgramParams

FORMAT = "spillway length model"
VERSION = 1
NUM_FEATURES = 3
PATH_FIELD = f"{FIELD}.params.path"

_CARD = "card"

Weights = npt.NDArray[np.float32]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model file says about itself.

    Args:
        format: What kind of file it is.
        version: Of the format: arrays, features and hashes.
        levels: Quantile levels of the outputs, in the middle of equal parts of 0 to 1.
        ngrams: How the prompts in its training data were hashed.
        training: Figures of the training run, for people.
    """

    format: str = FORMAT
    version: int = VERSION
    levels: tuple[float, ...]
    ngrams: NgramParams
    training: dict[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A trained model.

    Args:
        card: What it says about itself.
        arrays: Its weights, by name.
    """

    card: ModelCard
    arrays: Mapping[str, Weights] = field(repr=False)

    def save(self, path: Path) -> None:
        """Writes the file.

        Raises:
            OSError: It can't be written.
        """
        arrays: dict[str, Any] = {**self.arrays, _CARD: np.array(json.dumps(msgspec.to_builtins(self.card)))}
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> "ModelFile":
        """Reads the file and checks that all in it fits together.

        Raises:
            ConfigError: There is no such file, or it is not a length model of this version.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            card = msgspec.json.decode(str(arrays.pop(_CARD)), type=ModelCard)
            _check(card, arrays)
        except FileNotFoundError as error:
            raise ConfigError(PATH_FIELD, str(path), "a file that exists") from error
        except (
            OSError,
            ValueError,
            TypeError,
            EOFError,
            LookupError,
            AttributeError,
            zipfile.BadZipFile,
            ConfigError,
        ) as error:
            allowed = f"a file that loadtests.length_models.train has written ({type(error).__name__}: {error})"
            raise ConfigError(PATH_FIELD, str(path), allowed) from error
        return cls(card=card, arrays=arrays)


def tenant_row(tenant: str, num_rows: int) -> int:
    """Which embedding stands for a tenant; the same on every machine."""
    return crc32(tenant.encode(errors="replace")) % num_rows


def geometry_features(prompt_tokens: int, max_output_tokens: int, ngrams: Sequence[int]) -> tuple[float, float, bool]:
    """What the hidden layer sees of a request beside embeddings, before it is scaled."""
    return log2(max(prompt_tokens, 1)), log2(max(max_output_tokens, 1)), len(ngrams) > 0


def shapes(
    ngrams: NgramParams, num_levels: int, *, ngram_dim: int, num_tenants: int, tenant_dim: int, hidden: int
) -> dict[str, tuple[int, ...]]:
    """The shape of each array of a model."""
    return {
        "ngram_embedding": (ngrams.num_buckets, ngram_dim),
        "tenant_embedding": (num_tenants, tenant_dim),
        "feature_mean": (NUM_FEATURES,),
        "feature_scale": (NUM_FEATURES,),
        "hidden_weight": (hidden, ngram_dim + tenant_dim + NUM_FEATURES),
        "hidden_bias": (hidden,),
        "output_weight": (num_levels, hidden),
        "output_bias": (num_levels,),
    }


def _check(card: ModelCard, arrays: Mapping[str, Weights]) -> None:
    """Raises ``ValueError`` for what would be found out in the request path otherwise."""
    if (card.format, card.version) != (FORMAT, VERSION):
        raise ValueError(f"a {card.format!r} of version {card.version}, not a {FORMAT!r} of version {VERSION}")
    num_levels = len(card.levels)
    if not num_levels or not np.allclose(card.levels, (np.arange(num_levels) + 0.5) / num_levels):
        raise ValueError(f"the levels {list(card.levels)} are not in the middle of equal parts of 0 to 1")
    (num_tenants, tenant_dim), (hidden,) = arrays["tenant_embedding"].shape, arrays["hidden_bias"].shape
    ngram_dim = arrays["ngram_embedding"].shape[-1]
    wanted = shapes(
        card.ngrams, num_levels, ngram_dim=ngram_dim, num_tenants=num_tenants, tenant_dim=tenant_dim, hidden=hidden
    )
    if (found := {name: array.shape for name, array in arrays.items()}) != wanted or num_tenants < 1:
        raise ValueError(f"arrays of the shapes {found}, not {wanted}")
    if not all(array.dtype == np.float32 and np.isfinite(array).all() for array in arrays.values()):
        raise ValueError("weights that are not finite 32-bit floats")
    if not (arrays["feature_scale"] > 0).all():
        raise ValueError("a feature without a scale")
