"""Runs attempts on a replica's engine, whichever way they have come: over the data plane or over Ray's handles."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import msgspec

from cluster.pacing import flush_pause_s
from deployments.adapters.local_copies import Copies
from deployments.replica.cache_changes import NoCacheChanges
from deployments.replica.replaceable_engine import ReplaceableEngine
from deployments.replica.standby import Standby
from deployments.replica.work_account import OpenWork, WorkAccount
from deployments.wire import inner_hop
from deployments.wire.attempt_call import AttemptOrder
from deployments.wire.inner_hop import Item
from engines.contract import Chunk, Engine, EngineRequest, TiedRequest
from policies.views import Role

LOGGER = logging.getLogger("ray.serve")


class EngineAttempts:
    """The attempts of one replica.

    Args:
        replaceable: Its engine, which another one may take the place of.
        standby: Whether it sleeps, and wakes up for an attempt.
        cache: What its prefix cache has to tell.
        work: The account of all that it has open.
        copies: Adapters, where its engine can read them.
        flush_interval_s: Longest time that a token waits for company.
    """

    def __init__(
        self,
        replaceable: ReplaceableEngine,
        standby: Standby,
        cache: NoCacheChanges,
        work: WorkAccount,
        copies: Copies,
        *,
        flush_interval_s: float,
    ) -> None:
        self._replaceable = replaceable
        self._standby = standby
        self._cache = cache
        self._work = work
        self._copies = copies
        self._flush_interval_s = flush_interval_s

    async def run(self, order: AttemptOrder) -> AsyncGenerator[Item, None]:
        """What comes of an attempt. The last item says how it ended; failures are items, too.

        The first token's item and the last one also tell what has happened in the prefix cache.
        """
        work = OpenWork(*order.work)
        with self._work.doing(work):
            try:
                engine = await self._replaceable.there()
                await self._standby.awake()
                request = await self._named(order)
                if order.stage is Role.PREFILL:
                    yield self._cache.with_changes(await engine.prefill(request))
                    return
                is_first = True
                async with aclosing(cast(Any, _begun(engine, order, request))) as chunks:
                    async for chunk in chunks:
                        is_last = chunk.finish_reason is not None
                        if (is_first and not chunk.is_from_prefill) or is_last:
                            is_first = False
                            self._work.end_prefill(work)
                            yield self._cache.with_changes(chunk)
                        else:
                            yield chunk
                        if self._flush_interval_s and not is_last:
                            await asyncio.sleep(flush_pause_s(self._work.num_open, self._flush_interval_s))
            except Exception as error:
                yield _explained(error)

    async def release_kv(self, handle: bytes) -> None:
        """Gives KV up that a prefill engine holds; its lease does, where this engine can't."""
        try:
            engine = await self._replaceable.there()
            await engine.release_kv(inner_hop.decode_handle(handle))
        except Exception as error:
            LOGGER.warning("KV that nobody pulls is left to its lease: %s", repr(error))

    async def _named(self, order: AttemptOrder) -> EngineRequest:
        """The request as its attempt: under the attempt's id, as two of one request may meet in one engine."""
        tied_to = None if order.tied_to is None else TiedRequest(*order.tied_to)
        request = inner_hop.decode_request(order.request)
        named = {"request_id": order.attempt_id, "priority": order.priority, "tied_to": tied_to}
        if request.adapter:
            named["adapter"] = await self._copies.local(request.adapter)
        return msgspec.structs.replace(request, **named)


def _begun(engine: Engine, order: AttemptOrder, request: EngineRequest) -> AsyncIterator[Chunk]:
    if order.stage is Role.DECODE:
        return engine.decode(request, inner_hop.decode_handle(order.handle))
    return engine.generate(request)


def _explained(error: Exception) -> inner_hop.Failure | inner_hop.Withdrawn:
    failure = inner_hop.failure_of(error)
    if isinstance(failure, inner_hop.Failure):
        LOGGER.warning("an attempt failed: %s: %s", failure.reason.value, failure.message)
    return failure
