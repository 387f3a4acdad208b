"""Every length predictor by name, and the one call that builds one."""

from collections.abc import Mapping

from policies.catalog import Factory, PolicyChoice, make_policy
from policies.errors import ConfigError
from routing.length_histogram import Log2Histogram
from routing.length_prediction import FIELD, GlobalMedian, LengthPredictor, MaxTokens
from routing.prompt_ngrams import NgramParams
from routing.quantile_model import QuantileModel

PREDICTORS: Mapping[str, Factory] = {
    "max_tokens": MaxTokens,
    "global_median": GlobalMedian,
    "log2_histogram": Log2Histogram,
    "quantile_model": QuantileModel,
}


def build_predictor(choice: PolicyChoice) -> LengthPredictor:
    """Builds a length predictor by name or import path. Reads the model's file if it has one: call it at the start.

    Args:
        choice: A key of ``PREDICTORS`` or ``package.module:factory``, and its parameters.

    Raises:
        ConfigError: Unknown name, parameters that it doesn't take, or something that is not a length predictor.
    """
    predictor: LengthPredictor = make_policy(FIELD, choice, PREDICTORS, ("predict", "observe"))
    if not isinstance(getattr(predictor, "wants_ngrams", ""), NgramParams | None):
        allowed = "a predictor with `wants_ngrams`: NgramParams, or None if it never looks at them"
        raise ConfigError(FIELD, choice.name, allowed)
    return predictor
