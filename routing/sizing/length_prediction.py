"""Tier 1: how long will the answer be?"""

from bisect import bisect_left, insort
from collections import deque
from typing import ClassVar, NamedTuple, Protocol

from policies.errors import ConfigError
from policies.views import RequestView
from routing.sizing.prompt_ngrams import NgramParams

FIELD = "policies.length_prediction"
"""Where a configuration names a predictor, for error messages."""


class OutputEstimate(NamedTuple):
    """What a predictor says, both at least 1 and at most the request's ``max_output_tokens``.

    Args:
        tokens: Expected length of the answer: the mean where the predictor knows it, because what is made of it is
            summed up over requests, and sums of medians are too small when a few answers are long.
        high_tokens: The length that it stays below with the predictor's ``quantile``; never less than ``tokens``.
    """

    tokens: int
    high_tokens: int


class LengthPredictor(Protocol):
    """Answers: how many tokens will this request generate? Pure and quick, like a policy: no I/O, no clock."""

    @property
    def wants_ngrams(self) -> NgramParams | None:
        """How the host is to hash prompts into ``RequestView.prompt_ngrams``; ``None``: not at all."""
        ...

    def predict(self, request: RequestView) -> OutputEstimate:
        """What to expect; asking changes nothing."""
        ...

    def observe(self, request: RequestView, output_tokens: int) -> None:
        """Learns how long the answer of a finished request was."""
        ...


class MaxTokens:
    """The upper bound that the client gave. Never too short, and usually many times too long."""

    wants_ngrams: ClassVar[NgramParams | None] = None

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(request.max_output_tokens, request.max_output_tokens)

    def observe(self, request: RequestView, output_tokens: int) -> None:
        """Nothing to learn."""

    def quantile_tokens(self, request: RequestView, level: float) -> int:
        """The bound again, whatever the level."""
        return request.max_output_tokens


class GlobalMedian:
    """The median of the last answers, whoever asked and whatever for: a baseline to beat.

    Until it has seen ``min_samples`` answers it says what :class:`MaxTokens` says.

    Args:
        quantile: Of ``high_tokens``.
        window_requests: How many answers count.
        min_samples: How many it has to see first.

    Raises:
        ConfigError: A number is out of its range.
    """

    wants_ngrams: ClassVar[NgramParams | None] = None

    def __init__(self, *, quantile: float = 0.9, window_requests: int = 1000, min_samples: int = 20) -> None:
        require_quantile(quantile)
        if not 1 <= min_samples <= window_requests:
            raise ConfigError(f"{FIELD}.params.min_samples", min_samples, f"1 to window_requests={window_requests}")
        self._quantile = quantile
        self._min_samples = min_samples
        self._window: deque[int] = deque(maxlen=window_requests)
        self._sorted: list[int] = []

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(self.quantile_tokens(request, 0.5), self.quantile_tokens(request, self._quantile))

    def observe(self, request: RequestView, output_tokens: int) -> None:
        if len(self._window) == self._window.maxlen:
            del self._sorted[bisect_left(self._sorted, self._window[0])]
        self._window.append(output_tokens)
        insort(self._sorted, output_tokens)

    def quantile_tokens(self, request: RequestView, level: float) -> int:
        """The same quantile for every request, within what it may generate."""
        if len(self._sorted) < self._min_samples:
            return request.max_output_tokens
        tokens = self._sorted[min(int(level * len(self._sorted)), len(self._sorted) - 1)]
        return max(1, min(tokens, request.max_output_tokens))


def require_quantile(quantile: float) -> None:
    """A quantile that can be called high.

    Raises:
        ConfigError: It can't.
    """
    if not 0.5 <= quantile < 1.0:
        raise ConfigError(f"{FIELD}.params.quantile", quantile, "0.5 or more, less than 1")
