"""Every built-in lane classifier by name."""

from collections.abc import Mapping

from policies.catalog import Factory, PolicyChoice, make_policy
from routing.adaptive_cutoffs import AdaptiveCutoffs
from routing.lanes import FirstThatFits, LaneClassifier

CLASSIFIERS: Mapping[str, Factory] = {"adaptive_cutoffs": AdaptiveCutoffs, "first_that_fits": FirstThatFits}


def build_classifier(choice: PolicyChoice) -> LaneClassifier:
    """Builds a lane classifier: a key of ``CLASSIFIERS``, or ``package.module:factory``.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy`.
    """
    classifier: LaneClassifier = make_policy("lanes.classifier", choice, CLASSIFIERS, ("classify",))
    return classifier
