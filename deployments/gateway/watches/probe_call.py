"""A gateway's own small request on its way to a replica whose engine has failed."""

from collections.abc import Callable

from deployments.gateway.running_attempt import Order
from deployments.wire import inner_hop
from deployments.wire.attempt_call import NO_CALL, AttemptCall, AttemptOrder
from engines.contract import Chunk
from policies.decisions import Reason
from routing.request.news import CacheChange

HearOfCache = Callable[[CacheChange], None]
TellEnd = Callable[[bool], None]
"""Hears once whether the engine has answered."""


class ProbeCall:
    """Hears what comes of a probe, in the place of an attempt's request; see :class:`AttemptListener`.

    An engine that refuses the request as none of its kind has answered.

    Args:
        replica_id: Where it goes.
        hear_of_cache: Hears what the replica tells on that occasion of its prefix cache.
        tell_end: Hears of its end, unless it is stopped.
    """

    def __init__(self, replica_id: str, hear_of_cache: HearOfCache, tell_end: TellEnd) -> None:
        self._replica_id = replica_id
        self._hear_of_cache = hear_of_cache
        self._tell_end = tell_end
        self._call: AttemptCall = NO_CALL
        self._is_over = False

    def start(self, ask: Order, order: AttemptOrder) -> None:
        """Has the replica run it."""
        self._call = ask(order, self)

    def stop(self) -> None:
        """Nobody waits for it any more."""
        self._is_over = True
        self._call.cancel()

    def receive(self, item: inner_hop.Item) -> None:
        self._call.consumed()
        if isinstance(item, inner_hop.WithCacheChange):
            self._hear_of_cache(CacheChange(self._replica_id, item.stored, item.dropped))
            item = item.item
        if isinstance(item, Chunk) and item.finish_reason is not None:
            self._end(is_well=item.finish_reason != "abort")
        elif inner_hop.is_last(item):
            self._end(is_well=isinstance(item, inner_hop.Failure) and item.reason is Reason.INVALID_REQUEST)

    def fail(self, reason: Reason, *, was_taken: bool = True) -> None:
        self._end(is_well=False)

    def _end(self, *, is_well: bool) -> None:
        if not self._is_over:
            self._is_over = True
            self._tell_end(is_well)
