"""A gateway's exchange with the load coordinator on a real event loop, with an actor that is the test."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ray.exceptions import ActorDiedError

from deployments.coordination.coordinator_client import CoordinatorClient
from deployments.telemetry.metrics import GatewayMetrics
from policies.load_reports import NOTHING_PER_CLASS, AdmissionThresholds, ControlLaw, LoadReport
from routing.request.events import Event, LoadDue, ThresholdsReceived
from tests.deployments.metrics_text import text_of
from tests.tables import for_each

PERIOD_S = 0.001
MOST_TURNS = 1_000_000
"""Of the event loop; ten seconds or so."""
LAW = ControlLaw(period_s=1.0, target_s=0.5, proportional_gain=0.1, integral_gain_per_s=0.01, salt_period_s=1800.0)
REPORT = LoadReport(
    interval_s=0.25,
    demand_s=NOTHING_PER_CLASS,
    first_s=NOTHING_PER_CLASS,
    num_first=0,
    later_s=NOTHING_PER_CLASS,
    started_s=0.0,
    saturated_fraction=0.0,
    wait_ratio=0.0,
    num_replicas=1,
    law=LAW,
)


class Actor:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.session_passes: list[tuple[int, ...]] = []
        self.answers: asyncio.Queue[AdmissionThresholds | Exception] = asyncio.Queue()
        self.exchange = self

    def remote(self, gateway: str, model: str, report: LoadReport) -> Any:
        self.asked.append(gateway)
        self.session_passes.append(report.session_passes)
        return self._answer()

    async def _answer(self) -> AdmissionThresholds:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


def thresholds(version: int, epoch: int = 1) -> AdmissionThresholds:
    return AdmissionThresholds(epoch=epoch, version=version)


class Exchange:
    """One client, what it told the dispatcher, and the actors that it found."""

    def __init__(self, *actors: Actor, period_s: float = math.inf) -> None:
        self.told: list[Event] = []
        self.metrics = GatewayMetrics()
        self._actors = list(actors)
        self.client = CoordinatorClient("g", "llama", self.told.append, lambda: period_s, self.metrics, find=self._find)

    def _find(self) -> Actor:
        if not self._actors:
            raise ValueError("no actor of that name")
        return self._actors.pop(0)

    async def ends(self) -> None:
        """Waits until nothing is under way."""
        await asyncio.gather(*self.client.tasks)
        await asyncio.sleep(0)

    async def reports(self, actor: Actor, answer: AdmissionThresholds | Exception, *session_passes: int) -> None:
        """A report with these session passes, to which the actor answers."""
        self.client.push(replace(REPORT, session_passes=session_passes))
        actor.answers.put_nowait(answer)
        await self.ends()

    @property
    def versions(self) -> list[int]:
        return [each.thresholds.version for each in self.told if isinstance(each, ThresholdsReceived)]

    def count(self, result: str) -> bool:
        return f'spillway_load_coordinator_exchanges_total{{result="{result}"}} 1.0' in text_of(self.metrics)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(MOST_TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not happen")


async def test_the_dispatcher_is_reminded_as_often_as_it_wants() -> None:
    exchange = Exchange(period_s=PERIOD_S)
    await until(lambda: len(exchange.told) >= 3)
    exchange.client.close()
    assert set(exchange.told) == {LoadDue()}


async def test_a_dispatcher_with_nothing_to_report_is_left_alone() -> None:
    exchange = Exchange()
    for _ in range(50):
        await asyncio.sleep(0)
    exchange.client.close()
    assert exchange.told == []


async def test_what_the_coordinator_says_reaches_the_dispatcher() -> None:
    exchange = Exchange(actor := Actor())
    await exchange.reports(actor, thresholds(7))
    assert exchange.versions == [7]
    assert actor.asked == ["g"]
    assert exchange.count("answered")


async def test_reports_don_t_queue_up_behind_a_slow_coordinator() -> None:
    exchange = Exchange(actor := Actor())
    for _ in range(4):
        exchange.client.push(REPORT)
    await exchange.reports(actor, thresholds(1))

    assert actor.asked == ["g"]
    assert exchange.versions == [1]


@for_each("loss", [ActorDiedError(), ValueError("it is being made again"), thresholds(0, epoch=0)])
async def test_after_a_loss_or_an_answer_that_says_nothing_the_next_report_looks_for_the_coordinator_anew(
    loss: AdmissionThresholds | Exception,
) -> None:
    first, second = Actor(), Actor()
    exchange = Exchange(first, second)
    await exchange.reports(first, loss)
    assert exchange.count("lost")
    await exchange.reports(second, thresholds(2))

    assert exchange.versions == [2]


async def test_session_passes_of_reports_that_are_lost_go_with_the_next() -> None:
    first, second = Actor(), Actor()
    exchange = Exchange(first, second)
    exchange.client.push(replace(REPORT, session_passes=(1,)))
    await exchange.reports(first, ActorDiedError(), 2)
    await exchange.reports(second, thresholds(1), 3)

    assert exchange.versions == [1]
    assert (first.session_passes, second.session_passes) == ([(1,)], [(1, 2, 3)])


async def test_a_coordinator_that_is_not_there_is_no_error() -> None:
    exchange = Exchange()
    exchange.client.push(REPORT)
    await exchange.ends()
    assert exchange.count("lost")
    assert exchange.told == []
