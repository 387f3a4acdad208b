"""How predictors follow when chat becomes code: ``python -m loadtests.length_models.switch``.

The users are those of the suite's family ``switching``, longer before the switch so that everything is learned by then.
Each answer is known 32 requests later. The quantile model is trained on all chat requests.
"""

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from cluster.seeds import Seeds
from loadtests.length_models.train import TrainingSettings, train
from loadtests.workloads.arrivals import Mmpp
from loadtests.workloads.lengths import Constant, LogNormal
from loadtests.workloads.workload import TrafficClass, Workload
from routing.sizing.adaptive_histogram import AdaptiveHistogram
from routing.sizing.length_histogram import Log2Histogram
from routing.sizing.length_log import LoggedRequest
from routing.sizing.length_prediction import LengthPredictor, MaxTokens
from routing.sizing.prompt_ngrams import DEFAULT_NGRAMS
from routing.sizing.quantile_model import QuantileModel

SWITCH_S, CODE_S = 300.0, 600.0
IN_FLIGHT = 32
AFTER = (0, 50, 100, 200, 500)
"""Requests after the switch, between which the ratios are taken."""
SEEDS = range(1, 6)
LIMIT_TOKENS = 600


def switching_requests(seed: int) -> tuple[list[LoggedRequest], int]:
    """Chat at 10 requests a second that becomes code at 2 a second.

    Args:
        seed: Of all draws.

    Returns:
        The requests in order of arrival, and how many of them are chat.
    """
    chat = TrafficClass(
        name="chat",
        arrivals=Mmpp(rate_per_s=10.0, cv=4.0),
        prompt_tokens=LogNormal(median_tokens=500, sigma=1.0, most_tokens=8000),
        output_tokens=LogNormal(median_tokens=120, sigma=0.6, most_tokens=LIMIT_TOKENS),
        max_output_tokens=Constant(num_tokens=LIMIT_TOKENS),
        timeout_s=30.0,
        for_s=SWITCH_S,
    )
    code = TrafficClass(
        name="code",
        arrivals=Mmpp(rate_per_s=2.0, cv=4.0),
        prompt_tokens=LogNormal(median_tokens=4000, sigma=0.8, most_tokens=24_000),
        output_tokens=LogNormal(median_tokens=15, sigma=0.8, most_tokens=300),
        max_output_tokens=Constant(num_tokens=LIMIT_TOKENS),
        timeout_s=30.0,
        from_s=SWITCH_S,
    )
    plan = Workload(classes=(chat, code), duration_s=SWITCH_S + CODE_S).plan(Seeds(seed))
    requests = [each.arrival.request for each in plan]
    logged = [
        LoggedRequest(
            prompt_tokens=each.prompt_tokens, max_output_tokens=each.max_output_tokens, output_tokens=each.output_tokens
        )
        for each in requests
    ]
    return logged, sum(each.traffic_class == 0 for each in requests)


def ratios(predictor: LengthPredictor, requests: Sequence[LoggedRequest], switch: int) -> list[float]:
    """Expected over actual tokens in each part after the switch, then in all of them together."""
    tokens = list(_predicted(predictor, requests))
    parts = [*pairwise(AFTER), (AFTER[0], AFTER[-1])]
    return [_ratio(tokens[switch + begin : switch + end]) for begin, end in parts]


def _predicted(predictor: LengthPredictor, requests: Sequence[LoggedRequest]) -> Iterator[tuple[int, int]]:
    """Expected and actual tokens of each request."""
    unanswered: deque[LoggedRequest] = deque()
    for request in requests:
        yield predictor.predict(request.view()).tokens, request.output_tokens
        unanswered.append(request)
        if len(unanswered) > IN_FLIGHT:
            finished = unanswered.popleft()
            predictor.observe(finished.view(), finished.output_tokens)


def _ratio(tokens: Sequence[tuple[int, int]]) -> float:
    expected, actual = np.array(tokens).sum(axis=0)
    return float(expected / actual)


def predictors(chat: Sequence[LoggedRequest], folder: Path) -> Mapping[str, LengthPredictor]:
    """Those that are compared, the model trained on chat."""
    path = folder / "length-model.npz"
    train(chat, TrainingSettings(ngrams=DEFAULT_NGRAMS)).model.save(path)
    return {
        "max_tokens": MaxTokens(),
        "quantile_model": QuantileModel(path=str(path)),
        "log2_histogram": Log2Histogram(),
        "adaptive_histogram": AdaptiveHistogram(),
    }


def main() -> int:
    """Command line; returns the exit status."""
    found: dict[str, list[list[float]]] = {}
    for seed in SEEDS:
        requests, switch = switching_requests(seed)
        with tempfile.TemporaryDirectory() as folder:
            for name, predictor in predictors(requests[:switch], Path(folder)).items():
                found.setdefault(name, []).append(ratios(predictor, requests, switch))
    table = Table(title=f"expected/actual tokens after the switch, mean of {len(SEEDS)} seeds", box=None)
    table.add_column("predictor")
    for begin, end in [*pairwise(AFTER), (AFTER[0], AFTER[-1])]:
        table.add_column(f"{begin} to {end}", justify="right")
    for name, of_seeds in found.items():
        table.add_row(name, *(f"{each:.2f}" for each in np.mean(of_seeds, axis=0)))
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
