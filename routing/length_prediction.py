"""Tier 1: how long will the answer be?"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from policies.catalog import Factory, PolicyChoice, make_policy
from policies.views import RequestView


class OutputEstimate(NamedTuple):
    """What a predictor says, both at least 1 and at most the request's ``max_output_tokens``.

    Args:
        tokens: Expected length of the answer.
        high_tokens: The length that it stays below with the predictor's ``quantile``.
    """

    tokens: int
    high_tokens: int


class LengthPredictor(Protocol):
    """Answers: how many tokens will this request generate? Pure and quick, like a policy: no I/O, no clock."""

    def predict(self, request: RequestView) -> OutputEstimate: ...

    def observe(self, request: RequestView, output_tokens: int) -> None:
        """Learns how long the answer of a finished request was."""
        ...


class MaxTokens:
    """The upper bound that the client gave. Never too short, and usually many times too long."""

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(request.max_output_tokens, request.max_output_tokens)

    def observe(self, request: RequestView, output_tokens: int) -> None:
        """Nothing to learn."""


PREDICTORS: Mapping[str, Factory] = {"max_tokens": MaxTokens}


def build_predictor(choice: PolicyChoice) -> LengthPredictor:
    """Builds a length predictor: a key of ``PREDICTORS``, or ``package.module:factory``.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy`.
    """
    predictor: LengthPredictor = make_policy("length_prediction", choice, PREDICTORS, ("predict", "observe"))
    return predictor
