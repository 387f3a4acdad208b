"""The load coordinator in virtual time: when gateways tell it of their load, and how late they hear of one another."""

import math
from collections.abc import Callable
from random import Random

from cluster.load_coordinator.coordinator import LoadCoordinator
from cluster.load_coordinator.news import SHARE_PERIOD_S
from cluster.pacing import jittered
from cluster.sim.event_queue import EventQueue, Rank
from cluster.sim.gateway import SimGateway
from cluster.sim.topology import FleetSpec
from policies.load_reports import AdmissionThresholds, LoadReport
from routing.request.events import LoadDue, ThresholdsReceived
from routing.request.news import GatewayNews


class SimCoordinator:
    """The one that there is now, if there is one.

    Args:
        fleet: The delays.
        events: Where the future goes.
        is_over: Whether nothing is left to be served.
    """

    def __init__(self, fleet: FleetSpec, events: EventQueue, is_over: Callable[[], bool]) -> None:
        self._delay_s = fleet.load_coordinator_delay_s
        self._events = events
        self._is_over = is_over
        self._gateways: list[tuple[SimGateway, Random]] = []
        self._alive = [LoadCoordinator()]

    def attend(self, gateway: SimGateway, jitter: Random) -> None:
        """Another gateway; they are numbered in this order."""
        self._gateways.append((gateway, jitter))

    def open(self) -> None:
        """Everybody is there."""
        for rank in range(len(self._gateways)):
            self._expect(0.0, rank)
            first_s = SHARE_PERIOD_S * (rank + 1) / len(self._gateways)
            if self._gateways[rank][0].shares_news:
                self._events.push(first_s, Rank.REPORT, self._share, rank)

    def push(self, rank: int, report: LoadReport, now_s: float) -> None:
        """A gateway's report is on its way."""
        self._events.push(now_s + self._delay_s, Rank.REPORT, self._exchange, (rank, report))

    def die(self, now_s: float, _: None) -> None:
        """It is gone, with all that it knows."""
        self._alive.clear()

    def restart(self, now_s: float, _: None) -> None:
        """Another one is there."""
        self._alive = [LoadCoordinator()]

    def _expect(self, now_s: float, rank: int) -> None:
        gateway, jitter = self._gateways[rank]
        if gateway.report_period_s < math.inf:
            due_s = now_s + jittered(gateway.report_period_s, jitter.random())
            self._events.push(due_s, Rank.REPORT, self._remind, rank)

    def _remind(self, now_s: float, rank: int) -> None:
        self._gateways[rank][0].handle(LoadDue(), now_s)
        if not self._is_over():
            self._expect(now_s, rank)

    def _exchange(self, now_s: float, said: tuple[int, LoadReport]) -> None:
        rank, report = said
        for coordinator in self._alive:
            answer = rank, coordinator.exchange(f"gateway-{rank}", report, now_s)
            self._events.push(now_s + self._delay_s, Rank.REPORT, self._deliver, answer)

    def _deliver(self, now_s: float, answer: tuple[int, AdmissionThresholds]) -> None:
        rank, thresholds = answer
        self._gateways[rank][0].handle(ThresholdsReceived(thresholds=thresholds), now_s)

    def _share(self, now_s: float, rank: int) -> None:
        if self._alive:
            news = self._gateways[rank][0].take_news(now_s)
            self._events.push(now_s + self._delay_s, Rank.REPORT, self._relay, (rank, news))
        if not self._is_over():
            self._events.push(now_s + SHARE_PERIOD_S, Rank.REPORT, self._share, rank)

    def _relay(self, now_s: float, told: tuple[int, GatewayNews]) -> None:
        rank, news = told
        for coordinator in self._alive:
            heard = rank, coordinator.news.exchange(f"gateway-{rank}", news, now_s)
            self._events.push(now_s + self._delay_s, Rank.REPORT, self._hear, heard)

    def _hear(self, now_s: float, heard: tuple[int, GatewayNews]) -> None:
        rank, news = heard
        self._gateways[rank][0].hear(news, now_s)
