"""What every host needs and no policy may touch: clocks, random streams, and what goes into a simulated run."""

from cluster.clock import Clock, MonotonicClock
from cluster.event_log.frames import DispatcherListener, LogHeader, NoEventLog
from cluster.event_log.writer import EventLogFile
from cluster.seeds import GatewayStreams, Seeds
from cluster.sim.traffic import Arrival, PlannedRequest, Traffic

__all__ = [
    "Arrival",
    "Clock",
    "DispatcherListener",
    "EventLogFile",
    "GatewayStreams",
    "LogHeader",
    "MonotonicClock",
    "NoEventLog",
    "PlannedRequest",
    "Seeds",
    "Traffic",
]
