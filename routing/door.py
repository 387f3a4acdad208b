"""Tier 1, put together: a request that comes in is sized up, put in a lane and given a plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from policies.errors import PolicyMisbehaved
from policies.views import RequestView
from routing.fleet import Fleet
from routing.geometry import GeometryEstimator
from routing.lanes import Lane, LaneClassifier


class Door:
    """Classifies requests.

    Args:
        geometry: Sizes them up.
        classifier: Chooses the lane.
        lanes: In the order of the configuration.
    """

    def __init__(self, geometry: GeometryEstimator, classifier: LaneClassifier, lanes: Sequence[Lane]) -> None:
        self._geometry = geometry
        self._classifier = classifier
        self._lanes = tuple(lanes)
        self._num_requests = {lane.name: 0 for lane in lanes}

    def classify(self, request: RequestView, fleet: Fleet, now_s: float) -> RequestView:
        """The request as policies see it from here on.

        Raises:
            PolicyMisbehaved: The classifier named something that is no lane.
        """
        sized = replace(request, geometry=self._geometry.estimate(request), lane=self._lanes[0].name)
        if len(self._lanes) == 1:
            self._num_requests[sized.lane] += 1
            return sized
        lane = self._classifier.classify(sized, self._lanes, fleet, now_s)
        if lane not in self._lanes:
            names = [each.name for each in self._lanes]
            raise PolicyMisbehaved("lanes", self._classifier, f"one of the lanes {names}", lane)
        self._num_requests[lane.name] += 1
        return replace(sized, lane=lane.name)

    def answered(self, request: RequestView, output_tokens: int) -> None:
        """A request was answered in full."""
        self._geometry.observe(request, output_tokens)

    def gauges(self) -> Mapping[str, float]:
        """For metrics: ``lane_requests_total:<lane>``, and what the classifier has to say."""
        gauges: Callable[[], Mapping[str, float]] = getattr(self._classifier, "gauges", dict)
        return {**{f"lane_requests_total:{lane}": count for lane, count in self._num_requests.items()}, **gauges()}
