"""Who has waited too long is not worth starting, once nobody gets through quickly any more."""

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from policies.contracts import Need
from policies.decisions import ADMIT, Admit, Reason, Reject, StartDecision
from policies.params import ADMISSION
from policies.signals import Signal
from policies.views import BacklogView, RequestView, drain_s

MEAN_OVER = 1000
"""Requests that the mean service is a mean of, about."""


@dataclass(slots=True)
class _LaneDelay:
    """What is known of a lane's queue."""

    mean_service_s: float = 0.0
    num_seen: int = 0
    ends_s: float = -inf
    least_wait: float = 0.0
    is_overloaded: bool = False


class Codel:
    """May this request come in? Yes; at the head of its queue it may start, unless everybody there has waited too long.

    Rule: waits are taken as fractions of the time in which the first token is due. A lane is overloaded for an
        interval if in the one before it nobody got to the head of the queue within ``target_fraction``; while it is,
        whoever has waited more than ``drop_factor`` times that is refused instead of started. Whose first token is
        overdue is refused in any case. An interval is ``interval_services`` times the mean work.
    State: for each lane the interval, its shortest wait, and the mean work.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: a client is refused after it has waited, not before, and the queue is as long as its deadlines let it
        be. What starts has used up ``drop_factor * target_fraction`` of its time, so where the rest is too short for
        the prefill, what starts is late: long prompts first. Where requests wait inside engines it sees no wait at
        all: the dispatcher's ``prefill_window_tokens`` keeps them at the gateway. Just past the knee it drops
        requests that would have been in time.
    Source: controlled delay (RFC 8289) in the form of Meta's folly: no schedule of drops, a limit of twice the target.

    Args:
        target_fraction: Wait that somebody has to stay below in each interval.
        interval_services: Length of an interval, in mean works.
        drop_factor: What is refused in overload, in targets.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self, *, target_fraction: float = 0.25, interval_services: float = 10.0, drop_factor: float = 2.0
    ) -> None:
        ADMISSION.check_positive("target_fraction", target_fraction)
        ADMISSION.check_number("target_fraction", target_fraction, 0, 1)
        ADMISSION.check_positive("interval_services", interval_services)
        ADMISSION.check_number("drop_factor", drop_factor, 1)
        self._target_fraction = target_fraction
        self._interval_services = interval_services
        self._drop_fraction = drop_factor * target_fraction
        self._delays: dict[str, _LaneDelay] = {}

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit:
        return ADMIT

    def start(self, request: RequestView, backlog: BacklogView, now_s: float, permit: Any) -> StartDecision:
        due_s = request.first_token_by_s or request.deadline_s
        slo_s = due_s - request.arrival_s
        wait = (now_s - request.arrival_s) / slo_s if slo_s > 0.0 else inf
        is_overloaded = self._take_in(request, backlog, wait, now_s)
        if now_s >= due_s:
            return Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=drain_s(backlog))
        if is_overloaded and wait > self._drop_fraction:
            return Reject(reason=Reason.QUEUE_FULL, retry_after_s=drain_s(backlog))
        return ADMIT

    def _take_in(self, request: RequestView, backlog: BacklogView, wait: float, now_s: float) -> bool:
        """Whether the lane is overloaded, now that somebody is seen who has waited for so long."""
        delay = self._delays.setdefault(request.lane, _LaneDelay())
        delay.num_seen = min(delay.num_seen + 1, MEAN_OVER)
        delay.mean_service_s += (request.geometry.work_s(backlog.stage) - delay.mean_service_s) / delay.num_seen
        if now_s >= delay.ends_s:
            delay.is_overloaded = delay.least_wait > self._target_fraction
            delay.least_wait = wait
            delay.ends_s = now_s + self._interval_services * delay.mean_service_s
        else:
            delay.least_wait = min(delay.least_wait, wait)
        return delay.is_overloaded
