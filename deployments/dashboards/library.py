"""All dashboards."""

from deployments.dashboards.lanes import LANES
from deployments.dashboards.overload import OVERLOAD
from deployments.dashboards.overview import OVERVIEW
from deployments.dashboards.pools import POOLS
from deployments.dashboards.tail import TAIL

DASHBOARDS = (OVERVIEW, LANES, POOLS, OVERLOAD, TAIL)
"""In the order in which they are read."""
