"""Requests for long answers go to the last lane, whatever their prompts."""

from collections.abc import Sequence

from policies import FleetView, RequestView
from routing.lanes.lanes import Lane


class LongAnswersApart:
    """Which lane is this request for? The last one when a long answer is expected, else the first that its prompt fits.

    Args:
        from_tokens: The length from which an answer is long.
    """

    def __init__(self, *, from_tokens: int) -> None:
        self._from_tokens = from_tokens

    def classify(self, request: RequestView, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> Lane:
        if request.geometry.output_tokens >= self._from_tokens:
            return lanes[-1]
        return next((lane for lane in lanes if request.prompt_tokens in lane.prompt_tokens), lanes[-1])
