"""Lane classifiers for scenarios alone: one that is wrong now and then, and one that knows what is coming."""

from collections.abc import Sequence
from zlib import crc32

from policies.errors import ConfigError
from policies.views import FleetView, RequestView
from routing.lanes.classifiers import FirstThatFits
from routing.lanes.lanes import Lane


class Misclassifying:
    """Which lane is this request for? The first that fits, but for a share of the requests the one after it.

    Whether a request is put in the wrong lane depends on its id alone, so every policy meets the same mistakes.

    Args:
        fraction: Share of the requests that go wrong, 0 to 1.

    Raises:
        ConfigError: The fraction is out of range.
    """

    def __init__(self, *, fraction: float) -> None:
        if not 0 <= fraction <= 1:
            raise ConfigError("policies.lanes.classifier.params.fraction", fraction, "from 0 to 1")
        self._right = FirstThatFits()
        self._below = fraction * 2**32

    def classify(self, request: RequestView, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> Lane:
        """The right lane, or the next one in the order of the configuration; after the last comes the first."""
        right = self._right.classify(request, lanes, fleet, now_s)
        if crc32(request.request_id.encode()) >= self._below:
            return right
        return lanes[(list(lanes).index(right) + 1) % len(lanes)]


class SetByHand:
    """Which lane is this request for? The first of two below a lane border that somebody who knew what was coming has
    set.

    Args:
        first_tokens: Prompts below this are for the first lane.
        then_tokens: The same from ``at_s`` on.
        at_s: When the lane border changes, in the run's time.
    """

    def __init__(self, *, first_tokens: int, then_tokens: int, at_s: float) -> None:
        self._first_tokens = first_tokens
        self._then_tokens = then_tokens
        self._at_s = at_s

    def classify(self, request: RequestView, lanes: Sequence[Lane], fleet: FleetView, now_s: float) -> Lane:
        border_tokens = self._first_tokens if now_s < self._at_s else self._then_tokens
        return lanes[0] if request.prompt_tokens < border_tokens else lanes[1]
