"""Nobody is let in whose first token can't come in time."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from policies.admission.probes import Probes
from policies.contracts import Need
from policies.decisions import ADMIT, Admit, Reason, Reject
from policies.estimators import FadingMean, KvForecast, KvUse, LaterWork, Margin
from policies.params import ADMISSION
from policies.signals import Admitted, Answering, Ended, RequestSignal, Signal, Started
from policies.views import BacklogView, RequestView, drain_s

MEMORY_S = 10.0  # after which what was seen counts for little
LATE_FRACTION, MARGIN_STEP, MARGIN_AT_FIRST = 0.007, 0.2, 1.0  # of refusals, that may come at the head of the queue
UNTOLD, UNTOLD_BY_LATE = 0.5, 5.0  # of what others can have let in, how much counts, and how much more by ``late``
OF_WAIT, MOST_OF_WAIT = 0.03, 0.06  # what a margin of 1 adds to it, and any, where there is one gateway
LATE_TOKENS_FRACTION, LATE_STEP, MOST_LATE, LATE_MEMORY_S = 0.02, 0.1, 1.0, 60.0  # of first tokens; what each adds


@dataclass(slots=True)
class _LetIn:
    """Whether a request was let in to see what becomes of it, and the KV that it uses."""

    is_probe: bool = False
    kv: KvUse | None = None


class Deadline:
    """May this request come in? If its first token can be there when it is due.

    Rule: ``safety * (1 + late) * (first_token_s + more_s)`` is no more than the time until that is due, with ``more_s =
        (1 + margin) * overtaking_s + untold_s``, and ``min(0.06, 0.03 * margin) * wait_s`` where there is one gateway.
        ``first_token_s`` is the router's estimate: its own prompt after ``wait_s``, those first in the queue and the
        prompts at its replica. ``overtaking_s`` is what will come while it waits and be due before it, as of late.
        ``untold_s`` is what ``min(1, 0.5 + 5 * late)`` of this gateway's last 50 ms add to the wait where least is to
        be done: each other one can have let in as much since it told. With ``size_fairness`` below 1 the wait of a
        prompt longer than the mean counts ``(work / mean work) ** (1 - size_fairness)`` times. ``margin`` grows until
        less than a hundredth of refusals come at the head of the queue, where the estimate alone is asked again;
        ``late``, up to 1, until 2% of first tokens come late. KV in use at the same time, common tokens once, stays
        below ``kv_ceiling`` of what there is. Probes put wrong predictions right. Without a replica all come in.
    State: a forecast of KV, fading rates of each SLO's work, a fading mean of prompts' work, two margins; permits.
    Consumes: ``Admitted``, ``Started``, ``Answering`` and ``Ended``.
    Complexity: O(n log n) in the replicas, O(log m) in what waits for each; short of KV, in open requests, too.
    Failure mode: as good as its predictions; ``order: arrival`` with different SLOs settles at the loosest and refuses
        the tighter ones; gateways without a load coordinator let in too much. Without SLOs the time-out counts.
    Source: Clockwork (OSDI 2020); Mooncake (FAST 2025), rejection by the load expected at the decode stage.

    Args:
        order: How the queue is ordered: ``edf``, or ``arrival``, where nobody who comes later goes first.
        safety: Predictions are multiplied by it.
        probe_fraction: Of those who come in, at the most, or one in ten seconds; probably late. 0: nobody.
        kv_ceiling: Fraction of the KV tokens that replicas can hold.
        size_fairness: From 0, where overload serves short prompts first, to 1, where it serves all alike.
        num_gateways: Each is taken to let in as much as this one.

    Raises:
        ConfigError: A number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES, Need.FIRST_TOKEN})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Admitted, Started, Answering, Ended})

    def __init__(
        self,
        *,
        order: str = "edf",
        safety: float = 1.3,
        probe_fraction: float = 0.005,
        kv_ceiling: float = 1.0,
        size_fairness: float = 1.0,
        num_gateways: int = 1,
    ) -> None:
        ADMISSION.check_choice("order", order, ("edf", "arrival"))
        ADMISSION.check_positive("safety", safety)
        ADMISSION.check_number("probe_fraction", probe_fraction, 0, 1)
        ADMISSION.check_positive("kv_ceiling", kv_ceiling)
        ADMISSION.check_number("size_fairness", size_fairness, 0, 1)
        self._is_edf = order == "edf"
        self._safety = safety
        self._probes = Probes(probe_fraction, num_gateways)
        self._kv_ceiling, self._size_unfairness = kv_ceiling, 1.0 - size_fairness
        self._work_s = FadingMean(MEMORY_S)
        self._kv = KvForecast(MEMORY_S)
        self._margin = Margin(LATE_FRACTION, step=MARGIN_STEP, start=MARGIN_AT_FIRST)
        self._late = Margin(LATE_TOKENS_FRACTION, step=LATE_STEP, start=0.0, most=MOST_LATE, memory_s=LATE_MEMORY_S)
        self._later = LaterWork(MEMORY_S, num_gateways)
        self._most_of_wait = MOST_OF_WAIT if num_gateways == 1 else 0.0

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit | Reject:
        if not backlog.num_replicas:
            return Admit(_LetIn())
        wait_s = max(0.0, backlog.first_token_s - request.geometry.prefill_s)
        more_s = self._longer_by_s(request, backlog, wait_s, now_s)
        until_token_s = self._safety * (1.0 + self._late.at(now_s)) * (backlog.first_token_s + more_s)
        room_s = self._safety * (wait_s + more_s) * self._more_room(request, now_s)
        is_late = now_s + until_token_s + room_s > request.first_token_by_s
        if not is_late and not self._kv_is_short(request, backlog, until_token_s, now_s):
            return Admit(_LetIn())
        self._margin.learn(was_too_low=False)
        if self._probes.is_due(now_s):
            return Admit(_LetIn(is_probe=True))
        return Reject(reason=Reason.DEADLINE_UNREACHABLE if is_late else Reason.KV_FULL, retry_after_s=wait_s)

    def start(self, request: RequestView, backlog: BacklogView, now_s: float, permit: Any) -> Admit | Reject:
        can_be_late = backlog.num_replicas and (permit is None or not permit.is_probe)
        if can_be_late and now_s + self._safety * backlog.first_token_s > request.first_token_by_s:
            self._margin.learn(was_too_low=True)
            return Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=drain_s(backlog))
        return ADMIT

    def observe(self, signal: RequestSignal) -> None:
        its: _LetIn = signal.permit or _LetIn()
        request, now_s = signal.request, signal.at_s
        if isinstance(signal, Admitted):
            self._later.let_in(request.first_token_by_s - now_s, request.geometry.prefill_s, now_s)
            self._probes.let_in(now_s, is_probe=its.is_probe)
            its.kv = self._kv.enter(request)
        elif isinstance(signal, Answering) and not its.is_probe:
            self._late.came(now_s, due_s=request.first_token_by_s, predicted_at_s=request.arrival_s)
        elif its.kv is not None and isinstance(signal, Started):
            self._kv.begin(its.kv, now_s)
        elif its.kv is not None and isinstance(signal, Ended):
            self._kv.end(its.kv, signal.output_tokens, now_s)

    def _longer_by_s(self, request: RequestView, backlog: BacklogView, wait_s: float, now_s: float) -> float:
        """How much longer its wait gets: by those not in the queue yet, and as late refusals say."""
        margin = self._margin.value
        untold_s = min(1.0, UNTOLD + UNTOLD_BY_LATE * self._late.at(now_s)) * self._later.untold_s(now_s)
        more_s = backlog.first_token_behind_s(untold_s) - backlog.first_token_s
        more_s += min(self._most_of_wait, OF_WAIT * margin) * wait_s
        if not self._is_edf:
            return more_s
        overtaking_s = self._later.overtaking_s(request.first_token_by_s - now_s, wait_s, backlog.num_replicas, now_s)
        return more_s + (1.0 + margin) * overtaking_s

    def _more_room(self, request: RequestView, now_s: float) -> float:
        """How many times its wait once more a request has to leave that has more to compute than the mean."""
        work_s = request.geometry.prefill_s
        self._work_s.add(work_s, now_s)
        return math.pow(max(1.0, work_s / max(self._work_s.at(now_s), 1e-9)), self._size_unfairness) - 1.0

    def _kv_is_short(self, request: RequestView, backlog: BacklogView, until_s: float, now_s: float) -> bool:
        """Whether there will be too little KV for it beside those under way and the queue."""
        peaks_tokens = backlog.kv_tokens + backlog.waiting_kv_tokens + request.kv_tokens
        room_tokens = self._kv_ceiling * backlog.kv_capacity_tokens
        return peaks_tokens > room_tokens and not self._kv.fits(
            request, peaks_tokens * (1.0 - backlog.shared_kv_fraction), room_tokens, until_s=until_s, now_s=now_s
        )
