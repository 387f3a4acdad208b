"""Each gateway finds for itself below which priority it gives up."""

from typing import ClassVar

from policies.contracts import Need
from policies.decisions import KEEP, Reason, Reject, SheddingDecision
from policies.params import SHEDDING
from policies.shedding.queue_delay import queue_delay_s
from policies.shedding.rank import key_of, salt_at, shed_rank
from policies.shedding.work_threshold import WorkThreshold
from policies.signals import Signal
from policies.views import BacklogView, RequestView


class PriorityThreshold:
    """Is this request among those that the fleet gives up now? Yes, if its class and its session are above a cursor.

    Rule: after each window, when requests had to wait longer than ``target_s`` on average, in the queue and in
        replicas, the cursor goes down so far that ``decrease`` of the work goes that was let in, and else up by
        ``increase`` of the work that came. Higher classes go last; within a class those go first whose sessions rank
        lowest, and they do at every gateway.
    State: work by level in this window, and the cursor.
    Consumes: nothing.
    Complexity: O(1), and a step for each of 384 levels after a window.
    Failure mode: a saw-tooth: a twentieth less at a time on the way down and a hundredth more on the way up, so it
        takes fifteen windows to the half of the work. Each gateway has its own cursor, so sessions between two cursors
        are let in here and turned away there.
    Source: DAGOR (SoCC 2018), in work and with a target that fits prompts.

    Args:
        target_s: How long requests may wait, seconds.
        window_s: Between two moves of the cursor, seconds.
        decrease: Part of the work that goes, 0 to 1.
        increase: Part of the work that is let in on top, 0 to 1.
        increase_quiet: The same while nobody waits.
        salt_period_s: After so long others are the first to go.
        retry_after_s: What those are told who go.
        unix_ahead_s: How far the time of day is ahead of the gateway's clock: salts change everywhere at once.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        target_s: float = 0.5,
        window_s: float = 1.0,
        decrease: float = 0.05,
        increase: float = 0.01,
        increase_quiet: float = 0.05,
        salt_period_s: float = 1800.0,
        retry_after_s: float = 5.0,
        unix_ahead_s: float = 0.0,
    ) -> None:
        for name, value in (("target_s", target_s), ("window_s", window_s), ("salt_period_s", salt_period_s)):
            SHEDDING.check_positive(name, value)
        for name, value in (("decrease", decrease), ("increase", increase), ("increase_quiet", increase_quiet)):
            SHEDDING.check_number(name, value, 0, 1)
        SHEDDING.check_positive("retry_after_s", retry_after_s)
        self._salt_period_s = salt_period_s
        self._unix_ahead_s = unix_ahead_s
        self._retry_after_s = retry_after_s
        self._threshold = WorkThreshold(
            target_s=target_s,
            window_s=window_s,
            decrease=decrease,
            increase=increase,
            increase_quiet=increase_quiet,
        )

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> SheddingDecision:
        place = shed_rank(key_of(request), salt_at(now_s, self._unix_ahead_s, self._salt_period_s))
        work = request.geometry.work_s(backlog.stage)
        wait_s = queue_delay_s(backlog, now_s)
        if self._threshold.sheds(request.priority.rank, place, work, wait_s, now_s):
            return Reject(reason=Reason.SHED, retry_after_s=self._retry_after_s)
        return KEEP

    def shed_fraction(self, now_s: float) -> float:
        return self._threshold.shed_fraction
