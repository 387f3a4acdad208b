"""Each gateway sheds what its own queue says, by a controller."""

from typing import ClassVar

from policies.contracts import Need
from policies.decisions import KEEP, Reason, Reject, SheddingDecision
from policies.estimators import FadingRate
from policies.load_reports import NOTHING_PER_CLASS, NUM_CLASSES
from policies.params import SHEDDING
from policies.shedding.queue_delay import queue_delay_s
from policies.shedding.rank import key_of, salt_at, shed_rank
from policies.shedding.thresholds import thresholds_for
from policies.signals import Signal
from policies.views import BacklogView, RequestView

DEMAND_MEMORY_S = 2.0
MOST_ERROR = 4.0
"""In targets."""


class Pid:
    """Is this request among those that the fleet gives up now? If it ranks below an admission threshold that a
    controller sets.

    Rule: every ``period_s`` the part of the work that goes follows from how far the wait is from ``target_s``: from its
        present distance, its sum over time and its change. It is taken from the lowest class upwards, and within a
        class from those whose sessions rank lowest.
    State: the sum, the last distance, the work of each class of late.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: it knows nothing of the demand, so after a step it takes as long as its sum takes to grow: at twice
        the capacity ten seconds, in which the queue has become long. Gains that suit one load oscillate at another; the
        defaults keep 45 degrees of phase margin up to twice the capacity.
    Source: the controller of Uber's Cinnamon, with the wait in the place of the queue's length.

    Args:
        target_s: How long requests are to wait, seconds.
        period_s: Between two steps, seconds.
        proportional_gain: Fraction for each ``target_s`` that they wait longer.
        integral_gain_per_s: The same for every second in which they do.
        derivative_gain_s: Fraction for each ``target_s`` a second by which the wait grows.
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
        period_s: float = 0.25,
        proportional_gain: float = 0.2,
        integral_gain_per_s: float = 0.04,
        derivative_gain_s: float = 0.0,
        salt_period_s: float = 1800.0,
        retry_after_s: float = 5.0,
        unix_ahead_s: float = 0.0,
    ) -> None:
        for name, value in (("target_s", target_s), ("period_s", period_s), ("salt_period_s", salt_period_s)):
            SHEDDING.check_positive(name, value)
        gains = (proportional_gain, integral_gain_per_s, derivative_gain_s)
        for name, value in zip(("proportional_gain", "integral_gain_per_s", "derivative_gain_s"), gains, strict=True):
            SHEDDING.check_number(name, value, 0)
        SHEDDING.check_positive("retry_after_s", retry_after_s)
        self._target_s = target_s
        self._period_s = period_s
        self._gains = gains
        self._salt_period_s = salt_period_s
        self._unix_ahead_s = unix_ahead_s
        self._retry_after_s = retry_after_s
        self._demand = tuple(FadingRate(DEMAND_MEMORY_S) for _ in range(NUM_CLASSES))
        self._thresholds = NOTHING_PER_CLASS
        self._fraction = self._integral = self._error = 0.0
        self._stepped_s = float("-inf")

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> SheddingDecision:
        if now_s - self._stepped_s >= self._period_s:
            self._step(queue_delay_s(backlog, now_s), now_s)
        threshold = self._thresholds[request.priority.rank]
        if shed_rank(key_of(request), salt_at(now_s, self._unix_ahead_s, self._salt_period_s)) < threshold:
            return Reject(reason=Reason.SHED, retry_after_s=self._retry_after_s)
        work = request.geometry.work_s(backlog.stage)
        self._demand[request.priority.rank].add(work / (1.0 - threshold), now_s)
        return KEEP

    def shed_fraction(self, now_s: float) -> float:
        return self._fraction

    def _step(self, wait_s: float, now_s: float) -> None:
        passed_s = min(now_s - self._stepped_s, 2 * self._period_s)
        proportional, integral_per_s, derivative_s = self._gains
        error = min(wait_s / self._target_s - 1.0, MOST_ERROR)
        self._integral = min(1.0, max(0.0, self._integral + integral_per_s * passed_s * error))
        change_per_s = (error - self._error) / passed_s
        wanted = proportional * error + self._integral + derivative_s * change_per_s
        self._fraction = min(1.0, max(0.0, wanted))
        self._error, self._stepped_s = error, now_s
        self._thresholds = thresholds_for(self._fraction, [each.per_s_at(now_s) for each in self._demand])
