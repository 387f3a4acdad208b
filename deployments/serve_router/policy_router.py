"""Puts a balancer of ours behind any Ray Serve deployment, by its configuration.

::

    request_router_config:
      request_router_class: deployments.serve_router.PolicyRouter
      request_router_kwargs: {balancing: peak_ewma, params: {decay_s: 5}, work_from: prompt}

Nothing here raises: an exception in ``choose_replicas`` or ``initialize_state`` hangs requests for ever. The first
thing that goes wrong is logged, and whatever the balancer can't place is routed by power of two.

Ray pickles this module by value: an object imported into it would become a copy, so everything that has state is in
:mod:`deployments.serve_router.call_placement`.
"""

import asyncio
import logging
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ray.exceptions import TaskCancelledError
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from cluster import clock
from deployments.serve_router import call_placement, call_work
from policies import catalog, views

LOGGER = logging.getLogger("ray.serve")


class PolicyRouter(FIFOMixin, RequestRouter):
    """Routes calls by a balancer; see the module.

    A replica that has been chosen goes to the call that has waited longest, which is nearly always the one that it was
    chosen for: matched by their ids, as Serve would without ``FIFOMixin``, calls made side by side within one request
    hang.
    """

    def initialize_state(self, **settings: Any) -> None:
        """Takes ``request_router_kwargs``: ``balancing``, and if need be ``params`` and ``work_from``."""
        self._clock = clock.MonotonicClock()
        self._placement: call_placement.CallPlacement | None = None
        self._work_from: str | None = None
        self._number = 0
        self._has_complained = False
        self._looking: dict[asyncio.Future[Any], call_placement.Call] = {}
        self._sent: dict[str, list[call_placement.Call]] = defaultdict(list)
        self._guarded(lambda: self._configure(**settings))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve's controller names the replicas that run, and what they have reported."""
        super().update_replicas(replicas)
        self._with_placement(lambda placement: placement.set_replicas(_called(replicas)))

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The balancer's pick; when it is the same that was full a moment ago, two at random behind it."""
        ranks = [_two_of(candidate_replicas)]
        if pending_request is not None:
            self._guarded(lambda: setattr(pending_request.routing_context, "should_backoff", True))
            self._with_placement(lambda placement: self._choose(placement, candidate_replicas, pending_request, ranks))
        return ranks

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """A replica has accepted the call."""
        self._with_placement(lambda placement: self._accepted(placement, pending_request, replica_id, result))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """The call has ended, or the replica had no room for it."""
        self._with_placement(lambda placement: self._ended(placement, replica_id.unique_id, internal_request_id))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """The replica is gone."""
        super().on_replica_actor_died(replica_id)
        self._with_placement(lambda placement: placement.lose(replica_id.unique_id))

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        """The replica may be gone."""
        super().on_replica_actor_unavailable(replica_id)
        self._with_placement(lambda placement: placement.quarantine(replica_id.unique_id, self._clock.now_s()))

    def _configure(self, balancing: str, params: dict[str, Any] | None = None, work_from: str | None = None) -> None:
        choice = catalog.PolicyChoice(name=balancing, params=params or {})
        self._placement = call_placement.CallPlacement(choice)
        self._work_from = work_from

    def _choose(
        self,
        placement: call_placement.CallPlacement,
        candidates: Sequence[RunningReplica],
        pending: PendingRequest,
        ranks: list[list[RunningReplica]],
    ) -> None:
        if pending.future.done():
            return
        refused = None
        if pending.future in self._looking:  # the pick was full, or went to a call that has waited longer
            self._settle(placement)
            attempt = self._looking[pending.future].attempt
            refused = None if attempt is None else attempt.replica_id
        else:
            self._looking[pending.future] = self._call(pending)
            pending.future.add_done_callback(lambda _: self._with_placement(self._settle))
        chosen = placement.choose(self._looking[pending.future], self._clock.now_s())
        rank = [each for each in candidates if each.replica_id.unique_id == chosen]
        if rank:
            ranks[:] = [rank, *ranks] if chosen == refused else [rank]

    def _call(self, pending: PendingRequest) -> call_placement.Call:
        self._number += 1
        now_s = self._clock.now_s()
        request = views.RequestView(
            request_id=f"{pending.metadata.internal_request_id}#{self._number}",
            prompt_tokens=call_work.work_tokens(pending.args, pending.kwargs, self._work_from),
            max_output_tokens=0,
            arrival_s=now_s,
            deadline_s=math.inf,
            session_id=pending.metadata.session_id or "",
        )
        return call_placement.Call(pending.metadata.internal_request_id, request)

    def _settle(self, placement: call_placement.CallPlacement) -> None:
        """Counts calls that have got their replica where it is, and forgets those that nobody waits for any more."""
        now_s = self._clock.now_s()
        for future in [each for each in self._looking if each.done()]:
            call = self._looking.pop(future)
            if future.cancelled() or future.exception() is not None:
                placement.end(call, now_s)
            else:
                placement.send(call, future.result().replica_id.unique_id, now_s)
                self._remember(call)

    def _remember(self, call: call_placement.Call) -> None:
        """Keeps a call until its end is told; one on a replica that has just gone counts nowhere."""
        if call.attempt is not None:
            self._sent[call.call_id].append(call)

    def _accepted(
        self,
        placement: call_placement.CallPlacement,
        pending: PendingRequest,
        replica_id: ReplicaID,
        result: ReplicaResult,
    ) -> None:
        calls = self._sent.get(pending.metadata.internal_request_id, ())
        call = _at(replica_id.unique_id, (each for each in calls if not each.is_accepted))
        if call is None:  # it got a replica that had been looked for on behalf of another call
            call = self._call(pending)
            placement.send(call, replica_id.unique_id, self._clock.now_s())
            self._remember(call)
        call.is_accepted = True
        attempt, loop = call.attempt, asyncio.get_running_loop()
        if attempt is not None:
            result.add_done_callback(
                lambda outcome: loop.call_soon_threadsafe(self._learn, placement, attempt, _has_failed(outcome))
            )

    def _learn(self, placement: call_placement.CallPlacement, attempt: Any, has_failed: bool | None) -> None:
        self._guarded(lambda: placement.tell(attempt, has_failed=has_failed, now_s=self._clock.now_s()))

    def _ended(self, placement: call_placement.CallPlacement, replica_id: str, internal_request_id: str) -> None:
        calls = self._sent.get(internal_request_id, [])
        call = _at(replica_id, calls)
        if call is not None:
            calls.remove(call)
            placement.end(call, self._clock.now_s())
        if not calls:
            self._sent.pop(internal_request_id, None)

    def _with_placement(self, act: Callable[[call_placement.CallPlacement], object]) -> None:
        placement = self._placement
        if placement is not None:
            self._guarded(lambda: act(placement))

    def _guarded(self, act: Callable[[], object]) -> None:
        """The first thing that goes wrong is logged, and nothing is raised."""
        try:
            act()
        except Exception:
            if not self._has_complained:
                self._has_complained = True
                LOGGER.exception(
                    "calls of %s are routed by power of two where this happens:", getattr(self, "_deployment_id", "?")
                )


def _at(replica_id: str, calls: Iterable[call_placement.Call]) -> call_placement.Call | None:
    return next((each for each in calls if each.attempt is not None and each.attempt.replica_id == replica_id), None)


def _has_failed(outcome: object) -> bool | None:
    """Ray's word on a call that has ended: whether its replica died. ``None`` for a cancelled call, and for gRPC's.

    An exception that the deployment itself raises is part of its answer, which a router does not get to see.
    """
    if isinstance(outcome, TaskCancelledError) or isinstance(getattr(outcome, "cause", None), TaskCancelledError):
        return None
    return None if hasattr(outcome, "code") else isinstance(outcome, BaseException)


def _two_of(candidates: Sequence[RunningReplica]) -> list[RunningReplica]:
    return random.sample(list(candidates), min(2, len(candidates)))


def _called(replicas: Iterable[RunningReplica]) -> list[call_placement.CalledReplica]:
    return [
        call_placement.CalledReplica(
            replica_id=each.replica_id.unique_id,
            max_ongoing_requests=each.max_ongoing_requests,
            stats=dict(each.routing_stats or {}),
        )
        for each in replicas
    ]
