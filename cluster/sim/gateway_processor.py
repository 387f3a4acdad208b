"""What a gateway's processor takes from requests: a single server, first come, first served.

Reading a request and passing it on costs processor time, and so does every chunk of a stream on its way out. Requests
take the processor one after the other; streams are no events here but a share of it, so that a request takes longer
the more streams are open. Where a request costs nothing, as it nearly does on machines with processors to spare, there
is no queue.
"""

from cluster.pacing import flush_pause_s
from cluster.sim.topology import FleetSpec
from policies.views import Role

MOST_STREAM_SHARE = 0.8
"""Of the processor; streams that ask for more get their chunks later, and requests are still read."""


class GatewayProcessor:
    """The processor of one gateway.

    Args:
        fleet: The costs, and what decides how often a stream sends a chunk.
    """

    def __init__(self, fleet: FleetSpec) -> None:
        self._request_s = fleet.gateway_request_s
        self._chunk_s = fleet.gateway_chunk_s
        self._flush_interval_s = fleet.flush_interval_s
        pool = next(pool for pool in fleet.pools if pool.role is not Role.PREFILL)
        self._step_s = pool.profile.step.step_s
        self._streams_per_replica = fleet.num_gateways / pool.replicas
        self._free_s = 0.0

    @property
    def is_free_of_charge(self) -> bool:
        """Whether nothing ever waits."""
        return not self._request_s

    def done_s(self, now_s: float, num_streams: int) -> float:
        """When a request that arrives now has been read, with so many streams open.

        Called once for each request, in order of arrival.
        """
        begins_s = max(now_s, self._free_s)
        self._free_s = begins_s + self._request_s / (1 - self.stream_share(num_streams))
        return self._free_s

    def stream_share(self, num_streams: int) -> float:
        """Share of the processor that open streams take.

        A stream sends a chunk with every pause of its replica, and not more often than its engine makes steps.
        """
        if not num_streams or not self._chunk_s:
            return 0.0
        pause_s = flush_pause_s(max(1, round(num_streams * self._streams_per_replica)), self._flush_interval_s)
        return min(MOST_STREAM_SHARE, num_streams * self._chunk_s / max(pause_s, self._step_s))
