"""A small quantile model of answer lengths, asked without the framework that it was trained in."""

from collections.abc import Mapping
from hashlib import sha256 as sha256_of
from math import exp, log1p
from pathlib import Path

import numpy as np

from policies.errors import ConfigError
from policies.views import RequestView
from routing.sizing.length_model_file import ModelFile, Weights, geometry_features, tenant_row
from routing.sizing.length_prediction import FIELD, OutputEstimate
from routing.sizing.prompt_ngrams import NgramParams

_LONGEST_LOG2 = 40.0


class QuantileModel:
    """How many tokens will this request generate? As many as the words of its prompt and its size promised before.

    Rule: the model gives lengths at levels that each stand for an equal part of all cases. Each is truncated at
    ``max_output_tokens``, because the answer would be; ``tokens`` is their mean, ``high_tokens`` the one at
    ``quantile``.

    State: none; it learns by being trained again.
    Complexity: some ten microseconds, in proportion to the number of n-grams; nothing is read or imported after the
    start.

    Failure mode: it knows what its training data knew. A new kind of work, a new tenant (which shares the embedding of
    whichever tenants have its hash) or another model behind the gateway makes it wrong without a sign; compare it with
    :class:`routing.sizing.length_histogram.Log2Histogram` from time to time. Of instructions in the middle of a long
    prompt it sees nothing. The mean is that of a few levels, so a tail beyond the highest one is left out. A replay of
    an event log needs the file that the gateway had: ``sha256`` makes sure.

    Args:
        path: The file.
        quantile: Of ``high_tokens``: one of the file's levels, 0.5 or more.
        sha256: What the file must hash to; ``None``: anything.

    Raises:
        ConfigError: The file is missing or not a length model, or has no such level.
    """

    def __init__(self, *, path: str, quantile: float = 0.9, sha256: str | None = None) -> None:
        model = ModelFile.load(Path(path))
        if sha256 is not None and (digest := sha256_of(Path(path).read_bytes()).hexdigest()) != sha256:
            raise ConfigError(f"{FIELD}.params.sha256", sha256, f"{digest}, which is that of {path}")
        levels = model.card.levels
        if not 0.5 <= quantile < 1.0 or quantile not in levels:
            allowed = f"one of {[each for each in levels if each >= 0.5]}, the levels in {path}"
            raise ConfigError(f"{FIELD}.params.quantile", quantile, allowed)
        self.wants_ngrams: NgramParams | None = model.card.ngrams
        self._levels = levels
        self._high = levels.index(quantile)
        self._fold(model.arrays)

    def _fold(self, arrays: Mapping[str, Weights]) -> None:
        """Takes all that does not depend on the request through the hidden layer now."""
        of = {name: array.astype(np.float64) for name, array in arrays.items()}
        ngram_dim, tenant_dim = of["ngram_embedding"].shape[1], of["tenant_embedding"].shape[1]
        for_ngrams, for_tenant, for_features = np.split(
            of["hidden_weight"], [ngram_dim, ngram_dim + tenant_dim], axis=1
        )
        scaled = for_features / of["feature_scale"]
        self._ngrams = np.ascontiguousarray(of["ngram_embedding"] @ for_ngrams.T)
        self._tenants = of["tenant_embedding"] @ for_tenant.T + (of["hidden_bias"] - scaled @ of["feature_mean"])
        self._of_prompt, self._of_most, self._of_any = (np.ascontiguousarray(each) for each in scaled.T)
        self._output_weight, self._output_bias = of["output_weight"], of["output_bias"]

    def predict(self, request: RequestView) -> OutputEstimate:
        lengths = self._lengths(request)
        tokens = max(1, round(sum(lengths) / len(lengths)))
        return OutputEstimate(tokens, max(tokens, round(lengths[self._high])))

    def observe(self, request: RequestView, output_tokens: int) -> None:
        """Nothing to learn from one answer."""

    def quantile_tokens(self, request: RequestView, level: float) -> int:
        """The length at one of the file's levels, at least 1 and at most ``max_output_tokens``.

        Raises:
            ValueError: There is no such level.
        """
        return round(self._lengths(request)[self._levels.index(level)])

    def log2_quantiles(self, request: RequestView) -> list[float]:
        """Log2 tokens at each level, ascending, before anything is truncated."""
        ngrams = request.prompt_ngrams
        prompt, most, has_ngrams = geometry_features(request.prompt_tokens, request.max_output_tokens, ngrams)
        hidden = self._tenants[tenant_row(request.tenant, len(self._tenants))] + prompt * self._of_prompt
        hidden += most * self._of_most
        if has_ngrams:
            hidden += self._of_any
            hidden += self._ngrams.take(ngrams, axis=0).sum(axis=0) * len(ngrams) ** -0.5
        first, *steps = (self._output_weight @ np.maximum(hidden, 0.0) + self._output_bias).tolist()
        quantiles = [first]
        for step in steps:
            first += max(step, 0.0) + log1p(exp(-abs(step)))
            quantiles.append(first)
        return quantiles

    def _lengths(self, request: RequestView) -> list[float]:
        most = float(request.max_output_tokens)
        return [max(1.0, min(2.0 ** min(each, _LONGEST_LOG2), most)) for each in self.log2_quantiles(request)]
