"""What every host needs and no policy may touch: clocks, random streams, and what goes into a simulated run.

Rooms:
    config: what a YAML file says of policies, lanes and tenants, the same for a deployment and for a scenario.
    event_log: event logs: written, read, replayed to the byte, and what must hold in them.
    load_coordinator: what all gateways are offered together, and who is shed, the same to all of them.
    sim: the virtual-time host: simulated gateways and replicas around production dispatchers.
"""

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
