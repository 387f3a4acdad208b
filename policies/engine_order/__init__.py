"""Policies that answer: which request of its class goes next inside an engine?"""

from policies.engine_order.by_arrival import ByArrival
from policies.engine_order.shortest_prompt import ShortestPrompt

__all__ = ["ByArrival", "ShortestPrompt"]
