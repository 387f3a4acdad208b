"""Built-in length predictors and lane classifiers by name, and the calls that build them."""

from collections.abc import Mapping, Sequence

from policies.catalog import Factory, PolicyChoice, make_policy
from policies.errors import ConfigError
from routing.lanes.adaptive_cutoffs import AdaptiveCutoffs
from routing.lanes.lanes import FirstThatFits, Lane, LaneClassifier, check_ranges
from routing.sizing.length_histogram import Log2Histogram
from routing.sizing.length_prediction import FIELD, GlobalMedian, LengthPredictor, MaxTokens
from routing.sizing.prompt_ngrams import NgramParams
from routing.sizing.quantile_model import QuantileModel

CLASSIFIERS: Mapping[str, Factory] = {"adaptive_cutoffs": AdaptiveCutoffs, "first_that_fits": FirstThatFits}


def build_classifier(choice: PolicyChoice, lanes: Sequence[Lane]) -> LaneClassifier:
    """Builds a lane classifier: a key of ``CLASSIFIERS``, or ``package.module:factory``.

    Args:
        choice: Its name and parameters.
        lanes: Those that it is to choose from; the built-in ones need ranges in which every request has its place.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy` and :func:`routing.lanes.lanes.check_ranges`.
    """
    classifier: LaneClassifier = make_policy("policies.lanes.classifier", choice, CLASSIFIERS, ("classify",))
    if choice.name in CLASSIFIERS:
        check_ranges(lanes)
    return classifier


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
