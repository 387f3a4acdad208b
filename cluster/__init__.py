"""What every host needs and no policy may touch: clocks and random streams."""

from cluster.clock import Clock, MonotonicClock
from cluster.seeds import Seeds

__all__ = ["Clock", "MonotonicClock", "Seeds"]
