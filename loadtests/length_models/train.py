"""Trains the quantile model of answer lengths from logged requests.

``python -m loadtests.length_models.train --log requests.jsonl --output length-model.npz``. The logs are lines of JSON
(:mod:`routing.sizing.length_log`); ``python -m cluster.event_log.request_log`` makes them from a gateway's event log.
This is the only module here that knows torch: whoever asks the model does it with numpy
(:mod:`routing.sizing.quantile_model`).

Every level learns by its pinball loss, on log2 of the tokens. An answer that was truncated at its ``max_output_tokens``
says only that the length is no less, so a prediction is truncated there too before it is compared (Powell, "Censored
regression quantiles", Journal of Econometrics 32, 1986).
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from policies.errors import ConfigError
from routing.sizing.length_log import LoggedRequest, read_log
from routing.sizing.length_model_file import (
    NUM_FEATURES,
    ModelCard,
    ModelFile,
    Weights,
    geometry_features,
    shapes,
    tenant_row,
)
from routing.sizing.prompt_ngrams import DEFAULT_NGRAMS, NgramParams

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Few, because each one costs time in the request path; the middles of equal parts, so that their mean is a mean."""
MIN_REQUESTS = 100
LEAST_DEVIATION = 1e-3
"""In log2 tokens: what differs by less is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How the model is built and trained.

    Args:
        ngrams: How the prompts in the log were hashed.
        seed: Of the first weights and of the order of the requests.
        max_epochs: Most passes over the training requests.
        patience_epochs: Passes without a better validation loss after which it stops.
        batch_requests: Requests in one step.
        learning_rate: Of Adam.
        weight_decay: Of Adam, decoupled.
        validation_fraction: The last part of the requests, which says when to stop and is not trained on.
        least_ngram_fraction: Of the requests, that have an n-gram from which anything is learnt.
        ngram_dim: Length of an n-gram's embedding.
        num_tenants: Embeddings for tenants, which share them by hash.
        tenant_dim: Length of a tenant's embedding.
        hidden: Width of the hidden layer.
    """

    ngrams: NgramParams = DEFAULT_NGRAMS
    seed: int = 1
    max_epochs: int = 60
    patience_epochs: int = 10
    batch_requests: int = 256
    learning_rate: float = 1e-2
    weight_decay: float = 1e-3
    validation_fraction: float = 0.15
    least_ngram_fraction: float = 0.01
    ngram_dim: int = 16
    num_tenants: int = 64
    tenant_dim: int = 4
    hidden: int = 32


class Trained(NamedTuple):
    """A model, and the network that it was read off."""

    model: ModelFile
    network: "Network"


class Network:
    """The model in torch.

    Embeddings begin at zero, so that a tenant that never occurs stays without effect. Rare n-grams have no embedding:
    theirs would say which request it was, not what it wanted.

    Args:
        settings: Sizes.
        inputs: What it will be trained on; its features' scales and first quantiles are taken from there.
    """

    def __init__(self, settings: TrainingSettings, inputs: "Inputs") -> None:
        generator = torch.Generator().manual_seed(settings.seed)
        self.weights = {name: torch.zeros(shape) for name, shape in _shapes(settings).items()}
        for name in ("hidden_weight", "output_weight"):
            self.weights[name].normal_(std=self.weights[name].shape[1] ** -0.5, generator=generator)
        self._frequent = _frequent_ngrams(inputs, settings)
        self._num_buckets = settings.ngrams.num_buckets
        self._row_of = torch.full((self._num_buckets + 1,), len(self._frequent))
        self._row_of[self._frequent] = torch.arange(len(self._frequent))
        self.weights["ngram_embedding"] = torch.zeros(len(self._frequent) + 1, settings.ngram_dim)
        deviation = inputs.features.std(dim=0)
        varies = deviation > LEAST_DEVIATION
        self.weights["feature_mean"] = inputs.features.mean(dim=0)
        self.weights["feature_scale"] = torch.where(varies, deviation, torch.ones_like(deviation))
        self.weights["hidden_weight"][:, -NUM_FEATURES:] *= varies  # what never varied says nothing later either
        quantiles = torch.quantile(inputs.target, torch.tensor(LEVELS))
        steps = torch.diff(quantiles).clamp(min=LEAST_DEVIATION)
        self.weights["output_bias"] = torch.cat((quantiles[:1], torch.log(torch.expm1(steps))))
        self.trained = [name for name in self.weights if not name.startswith("feature_")]

    def log2_quantiles(self, inputs: "Inputs") -> torch.Tensor:
        """Log2 tokens, a row for each request and a column for each level."""
        of = self.weights
        num_ngrams = (inputs.ngrams < self._num_buckets).sum(dim=1, keepdim=True).clamp(min=1)
        rows, unknown = self._row_of[inputs.ngrams], len(self._frequent)
        words = functional.embedding_bag(rows, of["ngram_embedding"], mode="sum", padding_idx=unknown)
        words = words * num_ngrams**-0.5
        features = (inputs.features - of["feature_mean"]) / of["feature_scale"]
        seen = torch.cat((words, of["tenant_embedding"][inputs.tenants], features), dim=1)
        hidden = torch.relu(seen @ of["hidden_weight"].T + of["hidden_bias"])
        outputs = hidden @ of["output_weight"].T + of["output_bias"]
        return torch.cumsum(torch.cat((outputs[:, :1], functional.softplus(outputs[:, 1:])), dim=1), dim=1)

    def arrays(self) -> dict[str, Weights]:
        """The weights as a file has them, with a row for every n-gram."""
        found: dict[str, Weights] = {
            name: each.detach().numpy().astype(np.float32) for name, each in self.weights.items()
        }
        embedding = np.zeros((self._num_buckets, found["ngram_embedding"].shape[1]), dtype=np.float32)
        embedding[self._frequent.numpy()] = found["ngram_embedding"][:-1]
        return {**found, "ngram_embedding": embedding}


class Inputs(NamedTuple):
    """Requests as tensors.

    Args:
        ngrams: Padded with ``num_buckets``.
        tenants: Row of each tenant's embedding.
        features: Unscaled.
        most: Log2 of ``max_output_tokens``.
        target: Log2 of the answers' lengths.
    """

    ngrams: torch.Tensor
    tenants: torch.Tensor
    features: torch.Tensor
    most: torch.Tensor
    target: torch.Tensor

    @classmethod
    def of(cls, requests: Sequence[LoggedRequest], settings: TrainingSettings) -> "Inputs":
        """Requests that :func:`check` has nothing against."""
        width = max((len(each.ngrams) for each in requests), default=0)
        ngrams = np.full((len(requests), max(width, 1)), settings.ngrams.num_buckets, dtype=np.int64)
        for row, request in enumerate(requests):
            ngrams[row, : len(request.ngrams)] = request.ngrams
        return cls(
            ngrams=torch.from_numpy(ngrams),
            tenants=torch.tensor([tenant_row(each.tenant, settings.num_tenants) for each in requests]),
            features=torch.tensor(
                [geometry_features(each.prompt_tokens, each.max_output_tokens, each.ngrams) for each in requests],
                dtype=torch.float32,
            ),
            most=torch.tensor([log2(each.max_output_tokens) for each in requests]),
            target=torch.tensor([log2(max(1, min(each.output_tokens, each.max_output_tokens))) for each in requests]),
        )

    def rows(self, rows: torch.Tensor) -> "Inputs":
        """Some of them."""
        return Inputs(*(each[rows] for each in self))


def check(requests: Sequence[LoggedRequest], settings: TrainingSettings) -> None:
    """Whether :func:`train` can begin.

    Raises:
        ConfigError: Too few requests, or n-grams that were hashed otherwise than the settings say.
    """
    if len(requests) < MIN_REQUESTS:
        raise ConfigError("log", f"{len(requests)} requests", f"{MIN_REQUESTS} requests or more")
    width = max(len(each.ngrams) for each in requests)
    highest = max(max(each.ngrams, default=0) for each in requests)
    if width > settings.ngrams.limit or highest >= settings.ngrams.num_buckets:
        allowed = f"{width} n-grams below {highest + 1} at least, as in the log"
        raise ConfigError("ngrams", settings.ngrams, allowed)


def train(requests: Sequence[LoggedRequest], settings: TrainingSettings | None = None) -> Trained:
    """Trains a model. The same requests and settings give the same model on one machine.

    Args:
        requests: In order of time; the last of them are kept for validation.
        settings: How.

    Raises:
        ConfigError: Too few requests, or n-grams that were hashed otherwise than the settings say.
    """
    settings = settings or TrainingSettings()
    check(requests, settings)
    first_kept = len(requests) - max(1, int(len(requests) * settings.validation_fraction))
    training, validation = (Inputs.of(part, settings) for part in (requests[:first_kept], requests[first_kept:]))
    with _one_thread():
        network = Network(settings, training)
        best_epoch, loss = _fit(network, training, validation, settings)
    with torch.no_grad():
        predicted = _cut(network.log2_quantiles(validation), validation)
    below = (validation.target[:, None] <= predicted).float().mean(dim=0).tolist()
    metrics = {
        "training_requests": float(first_kept),
        "validation_requests": float(len(requests) - first_kept),
        "epochs": float(best_epoch),
        "validation_pinball_log2": loss,
        **{f"validation_coverage_{level}": round(each, 4) for level, each in zip(LEVELS, below, strict=True)},
    }
    card = ModelCard(levels=LEVELS, ngrams=settings.ngrams, training=metrics)
    return Trained(ModelFile(card=card, arrays=network.arrays()), network)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Steps this small take longer on several threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _frequent_ngrams(inputs: Inputs, settings: TrainingSettings) -> torch.Tensor:
    """Those that enough requests have, ascending."""
    counts = np.zeros(settings.ngrams.num_buckets + 1, dtype=np.int64)
    for row in inputs.ngrams.numpy():
        counts[np.unique(row)] += 1
    return torch.from_numpy(np.flatnonzero(counts[:-1] >= settings.least_ngram_fraction * len(inputs.ngrams)))


def _shapes(settings: TrainingSettings) -> dict[str, tuple[int, ...]]:
    return shapes(
        settings.ngrams,
        len(LEVELS),
        ngram_dim=settings.ngram_dim,
        num_tenants=settings.num_tenants,
        tenant_dim=settings.tenant_dim,
        hidden=settings.hidden,
    )


def _fit(network: Network, training: Inputs, validation: Inputs, settings: TrainingSettings) -> tuple[int, float]:
    """Leaves the network as it was after its best epoch; returns that and its validation loss."""
    trained = [network.weights[name].requires_grad_() for name in network.trained]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    best_epoch, best_loss, best = 0, float("inf"), [each.detach().clone() for each in trained]
    for epoch, batches in enumerate(_epochs(len(training.target), settings), start=1):
        for rows in batches:
            optimizer.zero_grad()
            _loss(network, training.rows(rows)).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(_loss(network, validation))
        if loss < best_loss:
            best_epoch, best_loss, best = epoch, loss, [each.detach().clone() for each in trained]
        elif epoch - best_epoch >= settings.patience_epochs:
            break
    network.weights.update(zip(network.trained, best, strict=True))
    return best_epoch, best_loss


def _epochs(num_requests: int, settings: TrainingSettings) -> Iterator[Sequence[torch.Tensor]]:
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.max_epochs):
        yield torch.randperm(num_requests, generator=generator).split(settings.batch_requests)


def _loss(network: Network, inputs: Inputs) -> torch.Tensor:
    """Mean pinball loss over requests and levels."""
    short = inputs.target[:, None] - _cut(network.log2_quantiles(inputs), inputs)
    levels = torch.tensor(LEVELS)
    return torch.maximum(levels * short, (levels - 1.0) * short).mean()


def _cut(quantiles: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return torch.minimum(quantiles.clamp(min=0.0), inputs.most[:, None])


def _check_can_be_written(path: Path) -> None:
    """Leaves everything as it was. Raises ``ConfigError`` when nothing can be written there."""
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigError("--output", str(path), f"a file that can be written ({error.strerror})") from error


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.length_models.train", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--log", type=Path, nargs="+", required=True, help="logged requests, in order of time")
    parser.add_argument("--output", type=Path, required=True, help="where the model goes (.npz)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--ngram-buckets", type=int, default=DEFAULT_NGRAMS.num_buckets, help="as the prompts were hashed"
    )
    parser.add_argument("--ngram-limit", type=int, default=DEFAULT_NGRAMS.limit, help="as the prompts were hashed")
    options = parser.parse_args(arguments)
    try:
        _check_can_be_written(options.output)
        ngrams = NgramParams(num_buckets=options.ngram_buckets, limit=options.ngram_limit)
        requests = [request for path in options.log for request in read_log(path)]
        model = train(requests, TrainingSettings(ngrams=ngrams, seed=options.seed)).model
        model.save(options.output)
    except (OSError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 2
    for name, metric_value in model.card.training.items():
        print(f"{name:28} {metric_value:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
