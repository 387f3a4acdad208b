"""How many replicas a traffic needs: waits in closed form, without I/O."""

from policies.capacity.sizing import fewest_servers, highest_rate_per_s
from policies.capacity.stationary_queue import StationaryQueue, erlang_c

__all__ = ["StationaryQueue", "erlang_c", "fewest_servers", "highest_rate_per_s"]
