"""What is new with a gateway, told to the others through the load coordinator's actor, and what is with them.

What goes wrong here is no error: a retry of which nothing is known is served as a request like any other, the work of
others is known from replicas' reports, and a prompt that nobody told of is computed twice.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from ray import serve

from cluster.clock import Clock
from cluster.load_coordinator.news import SHARE_PERIOD_S, UnsharedNews
from deployments.coordination.coordinator_actor import LOAD_COORDINATOR
from deployments.wire.actor_client import ActorClient, NoAnswerError
from routing.request.events import Event, NewsReceived
from routing.request.news import GatewayNews, SharedWork

PATIENCE_S = 1.0
"""An answer that takes longer is as good as lost."""


class NewsClient:
    """Asks once in ``SHARE_PERIOD_S``, one question at a time.

    Args:
        gateway: Names this gateway to the actor.
        model: The dispatcher's.
        handle: Tells the dispatcher.
        unshared: What is new with this gateway, until it is told.
        work: Gives what this gateway has waiting and under way at a time.
        clock: This gateway's.
        find: Gives a handle of the load coordinator's actor; blocks; see
            :class:`deployments.wire.actor_client.ActorClient`.
        period_s: Pause between an answer and the next question, seconds.
    """

    def __init__(
        self,
        gateway: str,
        model: str,
        handle: Callable[[Event], None],
        unshared: UnsharedNews,
        work: Callable[[float], SharedWork],
        *,
        clock: Clock,
        find: Callable[[], Any] = lambda: serve.get_deployment_actor(LOAD_COORDINATOR),
        period_s: float = SHARE_PERIOD_S,
    ) -> None:
        self._gateway = gateway
        self._model = model
        self._handle = handle
        self._work = work
        self._clock = clock
        self._period_s = period_s
        self._unshared = unshared
        self._coordinator = ActorClient("the load coordinator's relay of news", find)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Nothing is told any more."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._exchange()
            await asyncio.sleep(self._period_s)

    async def _exchange(self) -> None:
        now_s = self._clock.now_s()
        news = self._unshared.take(self._work(now_s), now_s)
        try:
            heard: GatewayNews = await self._coordinator.ask(
                "share", self._gateway, self._model, news, patience_s=PATIENCE_S
            )
        except NoAnswerError:
            self._unshared.give_back(news)
            return
        self._handle(NewsReceived(news=heard.on_clock(self._clock.now_s())))
