"""Short prompts before long ones, in each class."""

from typing import ClassVar

from policies.contracts import MOST_PLACE, Need
from policies.signals import Signal
from policies.views import RequestView


class ShortestPrompt:
    """Which of its class goes next inside an engine? The one with the least left to compute of its prompt.

    Rule: its place is what the engine is expected to compute of the prompt, without what it has in its cache. One that
        has begun is not stopped for a shorter one, unless the engine is short of KV blocks: then the longest gives up
        its own.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: a long prompt waits for every shorter one that comes, however long it has waited; in overload, until
        its client gives up. A router that lets in by an estimate of waits (``deadline``) reckons with engines that
        serve in order of arrival, and takes short prompts' waits for longer than they are.
    Source: shortest job first at each server of a fleet; Grosof, Scully and Harchol-Balter, "Load Balancing Guardrails:
        Keeping Your Heavy Traffic on the Road to Low Response Times" (SIGMETRICS 2019), for the dispatching beside it.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.ENGINE_PRIORITY})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def place(self, request: RequestView, prefill_tokens: int) -> int:
        return min(prefill_tokens, MOST_PLACE)
