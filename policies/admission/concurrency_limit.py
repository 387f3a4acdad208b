"""As much is in flight as keeps the latency where it belongs."""

import math
from typing import ClassVar

from policies.admission.in_flight import InFlightRequest, InFlightWork
from policies.admission.latency_window import LatencyWindow
from policies.admission.limit_algorithms import Aimd, Gradient2, LimitAlgorithm, Vegas
from policies.contracts import Need, Rng
from policies.decisions import AdmissionDecision, Admit, Reason, Reject
from policies.params import ADMISSION
from policies.signals import Admitted, Answering, Ended, RequestSignal, Signal
from policies.views import BacklogView, RequestView, drain_s

SLOWDOWN, TPOT = "slowdown", "tpot"
CEILINGS = {SLOWDOWN: 4.0, TPOT: 0.05}
"""What AIMD bears where nothing else is said: times the predicted time to first token; seconds a token."""


class ConcurrencyLimit:
    """May this request come in? Yes, while less is in flight than a limit that follows the latency.

    Rule: what is in flight, counted in requests of mean work (``unit: work``) or in requests, is compared with a limit.
        With ``signal: slowdown`` that is who has no first token, and the latency is the time from arrival to first
        token over the prefill's service-seconds; with ``tpot``, who has no verdict, and seconds a token after the
        first. Neither depends on the lengths of prompts and answers, as plain latency would. After each window the
        algorithm moves the limit. A request that ends without a first token after that was due counts as if it had come
        then.
    State: the limit, the window, the algorithm's averages; a request's weight and first token are its permit.
    Consumes: Admitted, Answering, Ended.
    Complexity: O(1).
    Failure mode: it learns from what goes through, so it finds its limit after some windows of overload, and serves
        some requests late before. ``gradient2`` takes for normal what it has seen long enough, ``vegas`` the least
        latency that it has seen, so both keep too long a queue where there never was a quiet time; where there was,
        vegas keeps hardly any and refuses bursts that would fit (one in twenty at 0.8 of the capacity); ``aimd`` has to
        be told what is bearable. Predictions that are wrong for some requests let the limit wander with the mix.
    Source: Gradient2, Vegas and AIMD of Netflix' concurrency-limits.

    Args:
        rng: Spreads the probes of ``vegas``.
        algorithm: ``gradient2``, ``vegas`` or ``aimd``.
        signal: ``slowdown`` or ``tpot``.
        unit: ``work`` or ``requests``.
        initial: First limit.
        least: Lowest limit.
        most: Highest limit.
        tolerance: Of gradient2: multiple of the long average that is normal.
        smoothing: Of gradient2: share of each step's wish that is fulfilled.
        ceiling: Of aimd: the latency that is bearable; ``None``: a slowdown of 4, or 50 ms a token.
        backoff: Of aimd: what the limit is multiplied by beyond that.
        window_s: Shortest time between two steps, seconds.
        min_samples: Fewest samples of a step.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES, Need.FIRST_TOKEN})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Admitted, Answering, Ended})

    def __init__(
        self,
        *,
        rng: Rng,
        algorithm: str = "gradient2",
        signal: str = SLOWDOWN,
        unit: str = "work",
        initial: float = 20.0,
        least: float = 4.0,
        most: float = 1000.0,
        tolerance: float = 1.5,
        smoothing: float = 0.2,
        ceiling: float | None = None,
        backoff: float = 0.9,
        window_s: float = 1.0,
        min_samples: int = 10,
    ) -> None:
        ADMISSION.check_choice("signal", signal, tuple(CEILINGS))
        ADMISSION.check_choice("unit", unit, ("work", "requests"))
        for name, value, low in (("least", least, 1.0), ("initial", initial, least), ("most", most, initial)):
            ADMISSION.check_number(name, value, low)
        algorithms: dict[str, LimitAlgorithm] = {
            "gradient2": Gradient2(tolerance, smoothing),
            "vegas": Vegas(rng),
            "aimd": Aimd(CEILINGS[signal] if ceiling is None else ceiling, backoff),
        }
        ADMISSION.check_choice("algorithm", algorithm, tuple(algorithms))
        self.limit = float(initial)
        self._bounds = least, most
        self._algorithm = algorithms[algorithm]
        self._by_tpot = signal == TPOT
        self._by_work = unit == "work"
        self._window = LatencyWindow(window_s, min_samples)
        self._work = InFlightWork()

    @property
    def in_flight(self) -> float:
        """What is compared with the limit."""
        return self._work.num_mean_requests

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> AdmissionDecision:
        work = 1.0
        if self._by_work:
            work = request.geometry.work_s(backlog.stage)
            self._work.note_asked(work)
        if self.in_flight < self.limit:
            return Admit(InFlightRequest(work))
        return Reject(reason=Reason.ADMISSION_REJECTED, retry_after_s=drain_s(backlog))

    def observe(self, signal: RequestSignal) -> None:
        its: InFlightRequest | None = signal.permit
        if its is None:
            return
        if isinstance(signal, Admitted):
            self._work.enter(its)
            self._window.note_in_flight(self.in_flight)
        elif isinstance(signal, Answering):
            self._answers(its, signal.request, signal.at_s)
        elif isinstance(signal, Ended):
            self._ends(its, signal)

    def _answers(self, its: InFlightRequest, request: RequestView, now_s: float) -> None:
        if self._by_tpot:
            its.first_token_s = now_s
        elif self._work.leave(its):
            self._learn(now_s - request.arrival_s, request.geometry.prefill_s, now_s)

    def _ends(self, its: InFlightRequest, ended: Ended) -> None:
        request, now_s = ended.request, ended.at_s
        had_no_first_token = self._work.leave(its) and not self._by_tpot
        if its.first_token_s < math.inf and ended.output_tokens > 1:
            self._learn(now_s - its.first_token_s, ended.output_tokens - 1, now_s)
        elif had_no_first_token and now_s >= request.first_token_by_s:
            self._learn(now_s - request.arrival_s, request.geometry.prefill_s, now_s)

    def _learn(self, latency_s: float, expected: float, now_s: float) -> None:
        seen = self._window.add(latency_s, expected, now_s)
        if seen is not None:
            least, most = self._bounds
            self.limit = min(most, max(least, self._algorithm.step(self.limit, *seen)))
