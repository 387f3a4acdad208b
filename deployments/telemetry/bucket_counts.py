"""A histogram that costs next to nothing to add to.

prometheus-client's own looks through its buckets one by one, under a lock: ten of them take longer than all else that
is counted of an answer. Gateways count on one thread, so a bisection is enough.
"""

from bisect import bisect_left
from itertools import accumulate


class BucketCounts:
    """How values are spread over buckets.

    Args:
        bounds: The largest value of each bucket, ascending; a last one has no bound.

    Attributes:
        sum: Of all values.
    """

    __slots__ = ("_bounds", "_counts", "_names", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._names = [*(f"{float(bound)}" for bound in bounds), "+Inf"]
        self._counts = [0] * len(self._names)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """A value; a bucket holds those up to its bound."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Each bound with the number of values up to it."""
        return list(zip(self._names, accumulate(self._counts), strict=True))
