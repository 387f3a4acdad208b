"""What every host needs and no policy may touch: clocks, random streams, and what goes into a simulated run."""

from cluster.clock import Clock, MonotonicClock
from cluster.seeds import Seeds
from cluster.traffic import Arrival, PlannedRequest, Traffic

__all__ = ["Arrival", "Clock", "MonotonicClock", "PlannedRequest", "Seeds", "Traffic"]
