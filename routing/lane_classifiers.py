"""Every built-in lane classifier by name."""

from collections.abc import Mapping, Sequence

from policies.catalog import Factory, PolicyChoice, make_policy
from routing.adaptive_cutoffs import AdaptiveCutoffs
from routing.lanes import FirstThatFits, Lane, LaneClassifier, check_ranges

CLASSIFIERS: Mapping[str, Factory] = {"adaptive_cutoffs": AdaptiveCutoffs, "first_that_fits": FirstThatFits}


def build_classifier(choice: PolicyChoice, lanes: Sequence[Lane]) -> LaneClassifier:
    """Builds a lane classifier: a key of ``CLASSIFIERS``, or ``package.module:factory``.

    Args:
        choice: Its name and parameters.
        lanes: Those that it is to choose from; the built-in ones need ranges in which every request has its place.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy` and :func:`routing.lanes.check_ranges`.
    """
    classifier: LaneClassifier = make_policy("policies.lanes.classifier", choice, CLASSIFIERS, ("classify",))
    if choice.name in CLASSIFIERS:
        check_ranges(lanes)
    return classifier
