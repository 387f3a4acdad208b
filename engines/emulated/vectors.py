"""What an emulated model makes of a prompt that gets no answer: a vector that says which tokens there are.

Texts that have most tokens in common have vectors that point nearly the same way, so that a search among them finds
something; what a text means is nothing to it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.contract import EngineRequest, PoolingTask
from policies.errors import ConfigError, RequestInvalid

NUMBERS_OF_A_TOKEN = 16
"""So many of a vector's, so that what is left of a cut one has something of every token."""
ORDER = 0.05
"""What a token's place adds to its weight or takes from it: the same words in another order are another text."""
SPREAD, SIGN = 2_654_435_761, 2_246_822_519
"""Odd numbers that spread neighbouring token ids over all of 32 bits."""
Values = NDArray[Any]
CLASSIFIERS = "ForSequenceClassification"


class Pooler(Protocol):
    """What an emulated engine does with prompts."""

    @property
    def tasks(self) -> tuple[PoolingTask, ...]:
        """What it makes of them; nothing where it gives answers."""
        ...

    def check(self, request: EngineRequest) -> None:
        """Raises ``RequestInvalid`` of a request of the other kind."""
        ...

    def vector(self, request: EngineRequest) -> bytes:
        """What becomes of its prompt."""
        ...


class NoVectors:
    """It gives answers."""

    tasks: tuple[PoolingTask, ...] = ()

    def check(self, request: EngineRequest) -> None:
        if request.pooling:
            raise RequestInvalid("this engine gives answers and makes no vectors", "model")

    def vector(self, request: EngineRequest) -> bytes:
        raise NotImplementedError("no request that is pooled gets so far")


class TokenVectors:
    """Every token adds to some numbers of the vector or takes from them, whichever its id says.

    Args:
        task: ``embed``, or ``classify``: a score for each class.
        num_values: Length of the vector.
    """

    def __init__(self, task: PoolingTask, num_values: int) -> None:
        self.tasks: tuple[PoolingTask, ...] = (task,)
        self._num_values = num_values

    @classmethod
    def load(cls, folder: str) -> "TokenVectors":
        """What a checkpoint's ``config.json`` says of its vectors.

        Raises:
            ConfigError: It says nothing.
        """
        path = Path(folder) / "config.json"
        said: Mapping[str, Any] = msgspec.json.decode(path.read_bytes()) if path.is_file() else {}
        architectures = said.get("architectures") or [""]
        if architectures[0].endswith(CLASSIFIERS):
            return cls("classify", int(said.get("num_labels", len(said.get("id2label", ())) or 2)))
        if "hidden_size" not in said:
            raise ConfigError(
                "model.path", folder, "a folder whose config.json has a hidden_size, for pools that embed"
            )
        return cls("embed", int(said["hidden_size"]))

    def check(self, request: EngineRequest) -> None:
        wanted, own = request.pooling, self.tasks[0]
        if not wanted:
            raise RequestInvalid(f"this engine gives no answers; it is there for {own}", "model")
        if wanted.task != own:
            raise RequestInvalid(f"this engine does not {wanted.task}; it is there for {own}", "model")
        if not 1 <= (wanted.dimensions or 1) <= self._num_values:
            message = f"dimensions must be 1 to {self._num_values}, got {wanted.dimensions}"
            raise RequestInvalid(message, "dimensions")

    def vector(self, request: EngineRequest) -> bytes:
        wanted = request.pooling
        values = self._summed(np.asarray(request.prompt_token_ids, dtype=np.uint32))[: wanted.dimensions]
        if wanted.use_activation is not False:
            values = _of_length_one(values) if wanted.task == "embed" else _probabilities(values)
        return values.astype("<f4").tobytes()

    def _summed(self, token_ids: Values) -> Values:
        rounds = np.arange(1, NUMBERS_OF_A_TOKEN + 1, dtype=np.uint32)
        mixed = (np.multiply.outer(token_ids + np.uint32(1), rounds * np.uint32(SPREAD)) ^ rounds) * np.uint32(SIGN)
        places = (mixed >> np.uint32(8)) % np.uint32(self._num_values)
        signs = np.where(mixed >> np.uint32(31), 1.0, -1.0)
        weights = 1.0 + ORDER * np.sin(np.arange(len(token_ids)))[:, None]
        summed: Values = np.bincount(places.ravel(), weights=(signs * weights).ravel(), minlength=self._num_values)
        return summed / math.sqrt(len(token_ids))


def _of_length_one(values: Values) -> Values:
    length = float(np.linalg.norm(values))
    return values / (length or 1.0)


def _probabilities(values: Values) -> Values:
    """Of one class by itself, of several among each other."""
    if len(values) == 1:
        values = np.append(values, 0.0)
        return _probabilities(values)[:1]
    odds: Values = np.exp(values - values.max())
    return odds / float(odds.sum())
