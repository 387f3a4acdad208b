"""How good the length predictors are: ``python -m loadtests.length_models.report``, or ``make length-report``.

Requests are taken in order of time. Online predictors see all of them, each one after ``IN_FLIGHT`` later ones have
been predicted, because an answer is known only when it is there; the quantile model is trained on the first part. All
are judged on the same rest.
"""

import argparse
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

from cluster.clock import MonotonicClock
from loadtests.length_models.data import azure_requests, synthetic_requests
from loadtests.length_models.train import TrainingSettings, check, train
from loadtests.workloads.streams import Ints
from policies.errors import ConfigError
from policies.views import RequestView
from routing.sizing.adaptive_histogram import AdaptiveHistogram
from routing.sizing.length_histogram import Log2Histogram
from routing.sizing.length_log import LoggedRequest, read_log
from routing.sizing.length_prediction import GlobalMedian, LengthPredictor, MaxTokens
from routing.sizing.prompt_ngrams import DEFAULT_NGRAMS, NgramParams, hashed_ngrams
from routing.sizing.quantile_model import QuantileModel

IN_FLIGHT = 32
TRAINING_FRACTION = 0.7
SYNTHETIC_REQUESTS = 20_000
TIMED_PASSES = 5
LONG_PROMPT_TOKENS = 8192
NGRAMS = DEFAULT_NGRAMS


class _Judged(LengthPredictor, Protocol):
    """A predictor that can be asked for more than one quantile."""

    def quantile_tokens(self, request: RequestView, level: float) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Score:
    """How one predictor did.

    Args:
        pinball_median: Mean pinball loss of the predicted median, in tokens.
        pinball_high: Of the 0.9 quantile.
        coverage_fraction: Answers no longer than the 0.9 quantile.
        absolute_error_tokens: Mean absolute error of the expected tokens.
        work_ratio: Expected tokens of all requests over their actual ones.
        predict_us: Microseconds a prediction.
    """

    pinball_median: float
    pinball_high: float
    coverage_fraction: float
    absolute_error_tokens: float
    work_ratio: float
    predict_us: float


def _predictors(training: Sequence[LoggedRequest], folder: Path, ngrams: NgramParams) -> Mapping[str, _Judged]:
    """All of them, with a quantile model that was trained and went through its file."""
    path = folder / "length-model.npz"
    train(training, TrainingSettings(ngrams=ngrams)).model.save(path)
    return {
        "max_tokens": MaxTokens(),
        "global_median": GlobalMedian(),
        "log2_histogram": Log2Histogram(),
        "adaptive_histogram": AdaptiveHistogram(),
        "quantile_model": QuantileModel(path=str(path)),
    }


def score(predictor: _Judged, requests: Sequence[LoggedRequest], first_judged: int) -> _Score:
    """Predicts in order, learns in order, and judges from one request on."""
    unanswered: deque[LoggedRequest] = deque()
    columns = []
    for number, request in enumerate(requests):
        view = request.view()
        if number >= first_judged:
            tokens, high = predictor.predict(view)
            columns.append((tokens, high, predictor.quantile_tokens(view, 0.5), request.output_tokens))
        unanswered.append(request)
        if len(unanswered) > IN_FLIGHT:
            finished = unanswered.popleft()
            predictor.observe(finished.view(), finished.output_tokens)
    tokens_, high_, median_, actual = np.array(columns, dtype=np.int64).T
    return _Score(
        pinball_median=pinball(median_, actual, 0.5),
        pinball_high=pinball(high_, actual, 0.9),
        coverage_fraction=float((actual <= high_).mean()),
        absolute_error_tokens=float(np.abs(tokens_ - actual).mean()),
        work_ratio=float(tokens_.sum() / actual.sum()),
        predict_us=_microseconds(predictor, [each.view() for each in requests[first_judged:]]),
    )


def pinball(predicted: Ints, actual: Ints, level: float) -> float:
    """Mean pinball loss, which the true quantile at that level makes smallest."""
    short = actual - predicted
    return float(np.maximum(level * short, (level - 1.0) * short).mean())


def _microseconds(predictor: _Judged, views: Sequence[RequestView]) -> float:
    """For each prediction; the median pass."""
    clock, passes_s = MonotonicClock(), []
    for _ in range(TIMED_PASSES):
        began_s = clock.now_s()
        for view in views:
            predictor.predict(view)
        passes_s.append(clock.now_s() - began_s)
    return median(passes_s) / len(views) * 1e6


def compare(requests: Sequence[LoggedRequest], ngrams: NgramParams = NGRAMS) -> dict[str, _Score]:
    """Every predictor on the same requests.

    Raises:
        ConfigError: Too few requests to train on, or n-grams that were hashed otherwise.
    """
    training = _training_part(requests)
    with tempfile.TemporaryDirectory() as folder:
        built = _predictors(training, Path(folder), ngrams)
    return {name: score(predictor, requests, len(training)) for name, predictor in built.items()}


def _table_of(title: str, scores: Mapping[str, _Score]) -> Table:
    """One line for each predictor."""
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("predictor")
    for name in ("pinball 0.5", "pinball 0.9", "coverage 0.9", "abs. error", "expected/actual", "us/prediction"):
        table.add_column(name, justify="right")
    for name, each in scores.items():
        table.add_row(
            name,
            f"{each.pinball_median:.1f}",
            f"{each.pinball_high:.1f}",
            f"{each.coverage_fraction:.3f}",
            f"{each.absolute_error_tokens:.1f}",
            f"{each.work_ratio:.2f}",
            f"{each.predict_us:.1f}",
        )
    return table


def _sources(options: argparse.Namespace) -> list[tuple[str, Sequence[LoggedRequest]]]:
    """All that is compared on, files first: what is wrong with one is said before the training begins."""
    read: list[tuple[str, Sequence[LoggedRequest]]] = []
    if options.trace is not None:
        requests, cap = azure_requests(options.trace)
        title = f"{options.trace.name}: no words, no tenants; max_output_tokens is {cap:,}, the longest answer"
        read.append((title, requests))
    read += [(path.name, read_log(path)) for path in options.log]
    made_up = synthetic_requests(options.requests, options.seed, NGRAMS)
    title = "synthetic: words decide, tenants differ, both drift half-way; max_output_tokens is 256, 1024 or 4096"
    sources = [(title, made_up), *read]
    for title, compared in sources:
        try:
            check(_training_part(compared), TrainingSettings(ngrams=NGRAMS))
        except ConfigError as error:
            allowed = f"{error.allowed}, in the first {TRAINING_FRACTION:.0%}, on which models are trained"
            raise ConfigError(f"{title.partition(':')[0]}: {error.field}", error.value, allowed) from error
    return sources


def _training_part(requests: Sequence[LoggedRequest]) -> Sequence[LoggedRequest]:
    return requests[: int(len(requests) * TRAINING_FRACTION)]


def _hashing_us() -> float:
    token_ids, clock, repetitions = list(range(LONG_PROMPT_TOKENS)), MonotonicClock(), 2_000
    began_s = clock.now_s()
    for _ in range(repetitions):
        hashed_ngrams(token_ids, NGRAMS.num_buckets, NGRAMS.limit)
    return (clock.now_s() - began_s) / repetitions * 1e6


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.length_models.report", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--trace", type=Path, help="an Azure LLM inference trace (CSV)")
    parser.add_argument("--log", type=Path, nargs="*", default=[], help="your own logged requests (JSON lines)")
    parser.add_argument("--requests", type=int, default=SYNTHETIC_REQUESTS, help="of the synthetic set")
    parser.add_argument("--seed", type=int, default=1, help="of the synthetic set")
    options = parser.parse_args(arguments)
    console = Console()
    wide = console if console.is_terminal else Console(width=120)
    try:
        for title, requests in _sources(options):
            wide.print(_table_of(f"{title} ({len(requests):,} requests)", compare(requests)))
            wide.print()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    wide.print(f"Hashing the n-grams of a prompt of {LONG_PROMPT_TOKENS:,} tokens: {_hashing_us():.0f} us.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
