"""A gateway tells the others what is new with it, on a real event loop, with an actor that is the test."""

import asyncio
from collections.abc import Callable
from typing import Any

from ray.exceptions import ActorDiedError

from cluster.load_coordinator.news import UnsharedNews
from deployments.coordination.news_client import NewsClient
from routing.request.events import Event, NewsReceived
from routing.request.news import NO_WORK, FirstArrival, GatewayNews, ReplicaWork, SharedWork
from tests.deployments.host_dialogue import FixedClock

MOST_TURNS = 1_000_000
"""Of the event loop; ten seconds or so."""


def arrival(key: int, arrival_s: float = 0.0) -> FirstArrival:
    return FirstArrival(key=key, request_id=str(key), arrival_s=arrival_s, deadline_s=arrival_s + 60.0)


class Actor:
    """Answers with what the test has put there, and then with nothing."""

    def __init__(self, *answers: GatewayNews | Exception) -> None:
        self.told: list[int] = []
        self.num_asked = 0
        self._answers = list(answers)
        self.share = self

    def remote(self, gateway: str, model: str, news: GatewayNews) -> Any:
        self.num_asked += 1
        self.told += [each.key for each in news.arrivals]
        return self._answer()

    async def _answer(self) -> GatewayNews:
        answer = self._answers.pop(0) if self._answers else GatewayNews(at_s=0.0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(MOST_TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not happen")


async def test_what_the_others_have_not_answered_reaches_the_dispatcher_on_its_own_clock() -> None:
    told: list[Event] = []
    work = SharedWork(waiting={"q": ((1002.0, 100),)}, replicas={"r": ReplicaWork(10)})
    actor = Actor(GatewayNews(arrivals=(arrival(7, 1000.0),), work=work, at_s=1001.0))
    clock = FixedClock()
    clock.time_s = 50.0
    unshared = UnsharedNews()
    client = NewsClient(
        "g", "llama", told.append, unshared, lambda _: NO_WORK, clock=clock, find=lambda: actor, period_s=0.0
    )
    await until(lambda: actor.num_asked >= 3)
    client.close()

    first, *others = told
    here = SharedWork(waiting={"q": ((51.0, 100),)}, replicas=work.replicas)
    assert first == NewsReceived(news=GatewayNews(arrivals=(arrival(7, 49.0),), work=here, at_s=50.0))
    assert set(map(repr, others)) == {repr(NewsReceived(news=GatewayNews(at_s=50.0)))}


async def test_what_it_has_not_answered_is_told_once_however_often_the_actor_is_lost() -> None:
    actors = [Actor(ActorDiedError()), Actor(ActorDiedError()), Actor()]
    last, found = actors[-1], iter(actors)
    unshared = UnsharedNews()
    client = NewsClient(
        "g",
        "llama",
        lambda _: None,
        unshared,
        lambda _: NO_WORK,
        clock=FixedClock(),
        find=lambda: next(found),
        period_s=0.0,
    )
    unshared.add_arrival(arrival(1))
    await until(lambda: last.num_asked >= 2)
    unshared.add_arrival(arrival(2))
    await until(lambda: len(last.told) >= 2)
    client.close()

    assert last.told == [1, 2]
