"""How a fraction of all work becomes an admission threshold for each class: from the lowest class upwards."""

from collections.abc import Sequence

from policies.load_reports import NUM_CLASSES, PerClass

MOST_THRESHOLD = 0.98
"""Of a class: what little is let in of those who are all given up shows how many of them there are."""


def thresholds_for(fraction: float, demand: Sequence[float]) -> PerClass:
    """The part of each class that goes, so that ``fraction`` of all work does.

    Args:
        fraction: Of the work of all classes together, 0 to 1.
        demand: Work of each class, in the order of :class:`policies.views.Priority`.

    Returns:
        An admission threshold for each class; a class loses nothing as long as one below it has more than a fiftieth
        left.
    """
    left = fraction * sum(demand)
    thresholds = [0.0] * NUM_CLASSES
    for rank in reversed(range(NUM_CLASSES)):
        if left <= MOST_THRESHOLD * demand[rank]:
            thresholds[rank] = min(MOST_THRESHOLD, left / demand[rank]) if left else 0.0
            break  # and not what rounding would leave over for the next class
        if demand[rank] > 0.0:
            thresholds[rank] = MOST_THRESHOLD
            left -= MOST_THRESHOLD * demand[rank]
    return tuple(thresholds)
