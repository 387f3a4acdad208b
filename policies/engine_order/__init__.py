"""Policies that answer: which of the requests that wait inside an engine goes next?"""

from policies.engine_order.by_class import ByClass
from policies.engine_order.shortest_prompt import ShortestPrompt

__all__ = ["ByClass", "ShortestPrompt"]
