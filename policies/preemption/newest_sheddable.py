"""Sheddable work borrows what is idle and gives it back at once."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import ClassVar

from policies.attempt_views import InFlightView, SlotsView
from policies.contracts import Need
from policies.errors import ConfigError
from policies.signals import Signal
from policies.views import RequestView

FIELD = "policies.preemption.params"
ROUNDING = 1e-9


class NewestSheddable:
    """Which requests in flight are preempted for those that wait? The sheddable ones that were sent last.

    Rule: one slot for each request above sheddable that waits and finds no room, as long as such requests hold less
        than ``floor_fraction`` of the slots: that is their floor, which sheddable work only borrows. Above it they
        wait like everybody, so that the rest is safe from them. The attempt that was sent last has the least to
        compute again. A request is preempted ``most_preemptions`` times; then it is left alone: none starts for ever.
    State: none.
    Consumes: nothing.
    Complexity: O(replicas) for a request that finds no room.
    Failure mode: what a stopped request has computed is computed again, prompt and answer, unless the prefix cache has
        it: with requests above sheddable that come one by one and are short, throughput is lost at each. It makes
        room in what the gateway gives out; an engine whose KV cache is full, or whose steps are long, answers late all
        the same. Each gateway counts its own requests: with several of them floors add up to more than
        ``floor_fraction``.
    Source: reclaiming of borrowed capacity in cluster schedulers (Borg, EuroSys 2015); victims by lowest class and
        least sunk KV as in llm-d's flow control.

    Args:
        floor_fraction: Share of the slots that requests above sheddable get whenever they want it, in (0, 1].
        most_preemptions: How often one request is preempted, at least 1.

    Raises:
        ConfigError: A parameter out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, floor_fraction: float = 1.0, most_preemptions: int = 2) -> None:
        if not 0 < floor_fraction <= 1:
            raise ConfigError(f"{FIELD}.floor_fraction", floor_fraction, "more than 0, at most 1")
        if most_preemptions < 1:
            raise ConfigError(f"{FIELD}.most_preemptions", most_preemptions, "at least 1")
        self._floor_fraction = floor_fraction
        self._most_preemptions = most_preemptions

    def victims(self, request: RequestView, num_wanted: int, slots: SlotsView, now_s: float) -> Sequence[InFlightView]:
        num_free = math.floor(self._floor_fraction * slots.num_slots + ROUNDING) - slots.num_taken
        if num_free <= 0:
            return ()
        spared = self._most_preemptions
        willing = (each for each in slots.stoppable() if each.num_preemptions < spared)
        return tuple(islice(willing, min(num_wanted, num_free)))
