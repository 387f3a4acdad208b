"""A gateway's exchange with the load coordinator: a report every so often, and whatever comes back.

What goes wrong here is no error: a load coordinator that does not answer is a case that the shedding policy knows.
"""

import asyncio
import dataclasses
import random
from collections.abc import Callable
from typing import Any

from ray import serve

from cluster.pacing import jittered
from deployments.coordination.coordinator_actor import LOAD_COORDINATOR
from deployments.telemetry.metrics import GatewayMetrics
from deployments.wire.actor_client import ActorClient, NoAnswerError
from policies.load_reports import AdmissionThresholds, LoadReport
from routing.request.events import Event, LoadDue, ThresholdsReceived

LOOK_AGAIN_S = 1.0
"""Where there is nothing to report: a reload may change that."""
MOST_UNSENT = 4096
"""Session passes that wait for a load coordinator."""
PATIENCE_PERIODS = 2
"""An answer that takes longer is too old to go by."""


class CoordinatorClient:
    """Reminds the dispatcher of its reports, and carries them to the load coordinator, one at a time.

    Args:
        gateway: Names this gateway to the load coordinator.
        model: The dispatcher's.
        handle: Tells the dispatcher.
        period_s: Between two reports, as the dispatcher wants it; endless: none.
        metrics: Where exchanges are counted.
        find: Gives a handle of the load coordinator's actor; blocks; see
            :class:`deployments.wire.actor_client.ActorClient`.

    Attributes:
        tasks: The exchange that is under way, if there is one.
    """

    def __init__(
        self,
        gateway: str,
        model: str,
        handle: Callable[[Event], None],
        period_s: Callable[[], float],
        metrics: GatewayMetrics,
        *,
        find: Callable[[], Any] = lambda: serve.get_deployment_actor(LOAD_COORDINATOR),
    ) -> None:
        self._gateway = gateway
        self._model = model
        self._handle = handle
        self._period_s = period_s
        self._metrics = metrics
        self._coordinator = ActorClient("the load coordinator", find, _check)
        self._unsent: tuple[int, ...] = ()
        self.tasks: set[asyncio.Task[None]] = set()
        self._jitter = random.Random(gateway)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_soon(self._remind)

    def close(self) -> None:
        """No more reports."""
        self._timer.cancel()

    def push(self, report: LoadReport) -> None:
        """Sends a report, unless the one before is still on its way: all but its session passes is lost then."""
        self._unsent = (*self._unsent, *report.session_passes)[-MOST_UNSENT:]
        if not self.tasks:
            report, self._unsent = dataclasses.replace(report, session_passes=self._unsent), ()
            task = self._loop.create_task(self._exchange(report))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def _remind(self) -> None:
        period_s = self._period_s()
        is_wanted = period_s < float("inf")
        delay_s = jittered(period_s, self._jitter.random()) if is_wanted else LOOK_AGAIN_S
        self._timer = self._loop.call_later(delay_s, self._remind)
        if is_wanted:
            self._handle(LoadDue())

    async def _exchange(self, report: LoadReport) -> None:
        patience_s = PATIENCE_PERIODS * report.law.period_s
        try:
            thresholds: AdmissionThresholds = await self._coordinator.ask(
                "exchange", self._gateway, self._model, report, patience_s=patience_s
            )
        except NoAnswerError:
            self._unsent = (*report.session_passes, *self._unsent)[-MOST_UNSENT:]
            self._metrics.count_exchange(is_answered=False)
            return
        self._metrics.count_exchange(is_answered=True)
        self._handle(ThresholdsReceived(thresholds=thresholds))


def _check(thresholds: AdmissionThresholds) -> None:
    """A load coordinator that has nothing to say is one that has been replaced."""
    if not thresholds.epoch:
        raise ValueError("it knows of a later one")
