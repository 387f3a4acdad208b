"""What a gateway sees between two reports to the load coordinator."""

import math
from typing import NamedTuple

from policies.load_reports import NUM_CLASSES, AdmissionThresholds, ControlLaw, LoadReport
from policies.shedding.queue_delay import queue_delay_s
from policies.signals import Admitted, RequestSignal, Started
from policies.views import BacklogView, RequestView


class Asked(NamedTuple):
    """A request that was let in: its work, its class, and what it adds to the work of sessions that have begun."""

    work: float
    rank: int
    later_s: float


class LoadAccount:
    """Adds up, and begins anew with every report.

    Args:
        target_s: How long requests may wait.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._is_behind_others = self._is_unsettled = False
        self._num_replicas = 0
        self._begin(math.inf)

    def _begin(self, now_s: float) -> None:
        self._since_s = now_s
        self._demand_s = [0.0] * NUM_CLASSES
        self._first_s = [0.0] * NUM_CLASSES
        self._later_s = [0.0] * NUM_CLASSES
        self._num_first = 0
        self._started_s = 0.0
        self._num_asked = self._num_saturated = 0
        self._wait_s = 0.0

    def asked(self, request: RequestView, backlog: BacklogView, now_s: float) -> float:
        """Somebody has come.

        Returns:
            Its work, in service-seconds of its first stage.
        """
        self._since_s = min(self._since_s, now_s)  # the first one, before the first report
        self._num_asked += 1
        self._num_saturated += self._is_unsettled  # the one before was let in, and then refused at intake
        self._is_unsettled = False
        self._is_behind_others = backlog.num_waiting > 0
        self._num_saturated += self._is_behind_others
        self._wait_s += queue_delay_s(backlog, now_s)
        self._num_replicas = backlog.num_replicas
        return request.geometry.work_s(backlog.stage)

    def first(self, rank: int, work: float, threshold: float) -> Asked:
        """It is let in, of a class of which ``threshold`` is not, and not because of anything that was let in
        before.
        """
        self._is_unsettled = not self._is_behind_others
        self._num_first += 1
        self._first_s[rank] += work
        self._demand_s[rank] += work / (1.0 - threshold)
        return Asked(work, rank, 0.0)

    def later(self, rank: int, work: float, first_per_s: float) -> Asked:
        """It continues a session that began when so much first work a second was let in."""
        self._is_unsettled = not self._is_behind_others
        return Asked(work, rank, work / first_per_s if first_per_s else 0.0)

    def observe(self, signal: RequestSignal) -> None:
        """Work counts as started when it is sent, at what it was taken for when it came."""
        asked: Asked | None = signal.permit
        if asked is None:
            return
        if isinstance(signal, Admitted):
            self._is_unsettled = False
            self._later_s[asked.rank] += asked.later_s
        elif isinstance(signal, Started):
            self._started_s += asked.work

    def report(
        self, law: ControlLaw, known: AdmissionThresholds, session_passes: tuple[int, ...], now_s: float
    ) -> LoadReport:
        """All that was seen since the last one."""
        num_asked = max(1, self._num_asked)
        report = LoadReport(
            interval_s=max(0.0, now_s - self._since_s),
            demand_s=tuple(self._demand_s),
            first_s=tuple(self._first_s),
            num_first=self._num_first,
            later_s=tuple(self._later_s),
            started_s=self._started_s,
            saturated_fraction=min(1.0, self._num_saturated / num_asked),
            wait_ratio=self._wait_s / num_asked / self._target_s,
            num_replicas=self._num_replicas,
            law=law,
            known=known,
            session_passes=session_passes,
        )
        self._begin(now_s)
        return report
