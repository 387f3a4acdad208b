"""As much may wait as the replicas work off soon."""

from dataclasses import dataclass
from typing import ClassVar

from policies.contracts import Need, Rng
from policies.decisions import AdmissionDecision, Admit, Reason, Reject
from policies.errors import ConfigError
from policies.params import ADMISSION
from policies.signals import Answering, Ended, RequestSignal, Signal, Started
from policies.views import BacklogView, RequestView, drain_s

WORK, COUNT = "work", "count"


@dataclass(slots=True)
class _Place:
    """What a request counts, and whether replicas hold it: it was sent, and has no first token."""

    work: float
    is_held: bool = False


class BoundedQueue:
    """May this request come in? Yes, while what waits is little, compared with what the replicas hold.

    Rule: with ``r`` the work in the request's queue over the work of those that have been sent to a replica and have no
        first token, it is refused with a probability that rises from 0 at ``soft_factor`` to 1 at ``hard_factor``. It
        is also refused when the work that goes before it in its queue takes longer than ``max_wait_s`` at the drain
        rate of late. Into an empty queue everything is let. With ``unit: count``, requests take the place of work, and
        nothing is said about the wait.
    State: the work of all that were sent and have no first token; each request's own is its permit.
    Consumes: Started, Answering, Ended.
    Complexity: O(1).
    Failure mode: it knows one queue at a time, so in a fleet with lanes that share replicas each queue is compared with
        what all of them have sent. Where requests wait inside engines, the queue is empty and nothing is refused: the
        dispatcher's ``prefill_window_tokens`` keeps it at the gateway. What several gateways send meets inside the
        engines all the same: half of the SLO is left for that, and is not always enough. The drain rate forgets in ten
        seconds of waiting, so in the first seconds after a loss of replicas waits are predicted too short.
    Source: the queueing limiter of failsafe-go, which accepts up to twice its limit and refuses all beyond three times.

    Args:
        rng: Draws on the ramp.
        unit: ``work`` or ``count``.
        soft_factor: Up to which multiple of what the replicas hold nothing is refused.
        hard_factor: From which multiple on everything is.
        max_wait_s: Longest predicted wait, seconds; ``None``: half of the time in which the first token is due.
        least_s: What each replica counts as holding at least, service-seconds; with ``unit: count`` one request.

    Raises:
        ConfigError: A value out of range, or factors in the wrong order.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Started, Answering, Ended})

    def __init__(
        self,
        *,
        rng: Rng,
        unit: str = WORK,
        soft_factor: float = 2.0,
        hard_factor: float = 3.0,
        max_wait_s: float | None = None,
        least_s: float = 0.05,
    ) -> None:
        ADMISSION.check_choice("unit", unit, (WORK, COUNT))
        ADMISSION.check_number("soft_factor", soft_factor, 0)
        ADMISSION.check_number("hard_factor", hard_factor, 0)
        if hard_factor < soft_factor:
            allowed = f"at least soft_factor, which is {soft_factor:g}"
            raise ConfigError("policies.admission.params.hard_factor", hard_factor, allowed)
        if max_wait_s is not None:
            ADMISSION.check_positive("max_wait_s", max_wait_s)
        ADMISSION.check_positive("least_s", least_s)
        self._rng = rng
        self._by_count = unit == COUNT
        self._soft_factor = soft_factor
        self._hard_factor = hard_factor
        self._max_wait_s = max_wait_s
        self._least = 1.0 if self._by_count else least_s
        self._num_sent = 0
        self._held = 0.0

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> AdmissionDecision:
        if backlog.num_waiting and (self._is_too_long(request, backlog) or self._draws_refusal(backlog)):
            return Reject(reason=Reason.QUEUE_FULL, retry_after_s=drain_s(backlog))
        return Admit(_Place(1.0 if self._by_count else request.geometry.work_s(backlog.stage)))

    def observe(self, signal: RequestSignal) -> None:
        place: _Place | None = signal.permit
        if place is None:
            return
        if isinstance(signal, Started):
            place.is_held = True
            self._num_sent += 1
            self._held += place.work
        elif place.is_held:  # it has its first token, or has ended without one
            place.is_held = False
            self._num_sent -= 1
            self._held = self._held - place.work if self._num_sent else 0.0

    def refused_fraction(self, waiting: float, held: float) -> float:
        """The ramp: which part of the requests is refused that find so much waiting and held."""
        ratio = waiting / held
        if ratio >= self._hard_factor:
            return 1.0
        return max(0.0, ratio - self._soft_factor) / ((self._hard_factor - self._soft_factor) or 1.0)

    def _draws_refusal(self, backlog: BacklogView) -> bool:
        waiting = backlog.num_waiting if self._by_count else backlog.waiting_s
        held = max(self._held, self._least * max(1, backlog.num_replicas))
        refused_fraction = self.refused_fraction(waiting, held)
        return refused_fraction >= 1.0 or (refused_fraction > 0.0 and self._rng.random() < refused_fraction)

    def _is_too_long(self, request: RequestView, backlog: BacklogView) -> bool:
        if self._by_count:
            return False
        max_wait_s = self._max_wait_s
        if max_wait_s is None:
            max_wait_s = (request.first_token_by_s - request.arrival_s) / 2 or float("inf")
        return backlog.ahead_s > max_wait_s * backlog.work_per_s
