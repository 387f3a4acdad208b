"""Lane classifiers: which lane is a request for?"""

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from policies.errors import ConfigError
from policies.views import FleetView, RequestView
from routing.lanes.lanes import FIELD, Lane, TokenRange


class LaneClassifier(Protocol):
    """Answers: which lane is this request for?"""

    def classify(self, request: RequestView, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> Lane:
        """One of ``lanes``, which are in the order of the configuration; ``request.geometry`` is known."""
        ...


class FirstThatFits:
    """Which lane is this request for? The first whose ranges its prompt and its expected answer are in.

    Rule: every request is in the ranges of one lane, which :func:`check_ranges` sees to.
    State: none.
    Failure mode: ranges that somebody set for another mix of requests leave one lane's pools idle and the other's
        flooded, and a wrong prediction of the answer puts a decode among strangers.
    """

    def classify(self, request: RequestView, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> Lane:
        for lane in lanes:
            if lane.fits(request.prompt_tokens, request.geometry.output_tokens):
                return lane
        return lanes[-1]


def check_ranges(lanes: Sequence[Lane]) -> None:
    """Whether every request has one lane by its geometry: what a classifier needs that goes by the ranges alone.

    Raises:
        ConfigError: Prompt ranges that overlap without being the same, or leave lengths out; or, among lanes for the
            same prompts, ranges of answers that do.
    """
    _check_partition(f"{FIELD}.prompt_tokens", {lane.prompt_tokens for lane in lanes})
    for prompts in {lane.prompt_tokens for lane in lanes}:
        alike = [lane for lane in lanes if lane.prompt_tokens == prompts]
        answers = {lane.output_tokens for lane in alike}
        if len(answers) < len(alike):
            names = [lane.name for lane in alike]
            raise ConfigError(FIELD, names, "other prompts or other answers for each: their ranges are the same")
        _check_partition(f"{FIELD}.{alike[0].name}.output_tokens", answers)


def _check_partition(field: str, ranges: Iterable[TokenRange]) -> None:
    """Whether ranges follow one another from 0 on, without gaps, overlaps or an end."""
    in_order = sorted(ranges)
    bounds = [0.0, *(each.below for each in in_order)]
    if [each.at_least for each in in_order] != bounds[:-1] or bounds[-1] != math.inf:
        found = ", ".join(f"{each.at_least:g} to {each.below:g}" for each in in_order)
        raise ConfigError(field, found, "ranges from 0 on, each from where the one before ends, the last without end")
