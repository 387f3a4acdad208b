"""Attempts over Ray's deployment handles: one call, one task and one message for each item.

That is the way where a replica takes no connections of the data plane, or none of this gateway's: it speaks another
version, its port can't be reached, or the configuration says ``gateway.inner_hop: ray_handle``.
"""

import asyncio
import logging
from typing import Any

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.wire.attempt_call import WINDOW_ITEMS, AttemptListener, AttemptOrder
from deployments.wire.inner_hop import decode_item, is_last
from deployments.wire.serve_internals import use_own_internal_request_id
from policies.decisions import Reason
from policies.views import Role

LOGGER = logging.getLogger("ray.serve")
UNANSWERED = (RayError, RayServeException, TimeoutError)
"""What a call raises that a replica does not answer: it is dead or fails, its pool can't be deployed, or time is up."""
METHODS = {Role.UNIFIED: "generate", Role.PREFILL: "prefill", Role.DECODE: "decode"}


class HandleCaller:
    """Calls the replicas of a pool for one stage; the pool's router honours the target.

    Args:
        handle: The pool's.
        stage: The stage.
        tasks: Keeps the tasks of all calls that are not over.
    """

    def __init__(self, handle: DeploymentHandle, stage: Role, tasks: set[asyncio.Task[None]]) -> None:
        self._caller = handle.options(
            stream=stage is not Role.PREFILL,
            method_name=METHODS[stage],
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
        )
        self._tasks = tasks

    def call(self, order: AttemptOrder, listener: AttemptListener, *, target: str) -> "_HandleCall":
        """Has a replica run an attempt; what comes of it goes to the listener.

        Args:
            order: What is to be done.
            listener: Hears of it.
            target: The replica's id.
        """
        call = _HandleCall(self._caller, order, target, listener)
        task = call.start()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return call


class _HandleCall:
    """One attempt; see :class:`deployments.wire.attempt_call.AttemptCall`."""

    def __init__(self, caller: DeploymentHandle, order: AttemptOrder, target: str, listener: AttemptListener) -> None:
        self._caller = caller
        self._order = order
        self._target = target
        self._listener = listener
        self._credit = asyncio.Semaphore(WINDOW_ITEMS - 1)  # before the first item it needs none

    def start(self) -> "asyncio.Task[None]":
        """Begins the call in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    def cancel(self) -> None:
        self._task.cancel()

    def consumed(self) -> None:
        self._credit.release()

    async def _run(self) -> None:
        use_own_internal_request_id()
        try:
            await (self._receive_one if self._order.stage is Role.PREFILL else self._receive_all)()
        except RayActorError as error:
            LOGGER.warning("attempt %s: replica %s is lost: %s", self._order.attempt_id, self._target, str(error))
            self._listener.fail(Reason.REPLICA_LOST)
        except Exception:
            LOGGER.exception("attempt %s failed on its way", self._order.attempt_id)
            self._listener.fail(Reason.ENGINE_ERROR)

    def _call(self) -> Any:
        order = self._order
        arguments = [order.request, order.handle] if order.handle else [order.request]
        more = {} if order.tied_to is None else {"tied_to": order.tied_to}
        return self._caller.remote(
            *arguments,
            attempt_id=order.attempt_id,
            work=order.work,
            priority=order.priority,
            target=self._target,
            **more,
        )

    async def _receive_one(self) -> None:
        call = self._call()
        try:
            self._listener.receive(decode_item(await call))
        except asyncio.CancelledError:
            call.cancel()
            raise

    async def _receive_all(self) -> None:
        call, has_ended = self._call(), False
        try:
            async for raw in call:
                if has_ended:  # what follows the verdict is only the end of the stream
                    continue
                item = decode_item(raw)
                has_ended = is_last(item)
                self._listener.receive(item)
                if not has_ended:
                    await self._credit.acquire()
        except BaseException:
            call.cancel()
            raise
        if not has_ended:
            LOGGER.error("attempt %s: the replica's stream ended without a verdict", self._order.attempt_id)
            self._listener.fail(Reason.REPLICA_LOST)
