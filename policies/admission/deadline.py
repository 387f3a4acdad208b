"""Nobody is let in whose first token can't come in time."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from policies.contracts import Need
from policies.decisions import ADMIT, Admit, Reason, Reject
from policies.estimators import FadingMean, FadingRate
from policies.params import ADMISSION
from policies.signals import Admitted, Answering, Ended, RequestSignal, Signal, Started
from policies.views import BacklogView, RequestView, Role, drain_s

MEMORY_S = 10.0  # after which what was seen counts for little
PROBE_AFTER_S = 10.0  # a policy that refuses everybody never learns that there is no reason to
ORDERS = ("edf", "arrival")
SLACKS_PER_OCTAVE = 2  # requests whose SLOs are about as long are taken together


@dataclass(slots=True)
class _LetIn:
    """Whether a request was let in to see what becomes of it, and when it was sent."""

    is_probe: bool = False
    started_s: float = math.inf


class Deadline:
    """May this request come in? If its first token can be there when it is due.

    Rule: at intake, the wait is the work that will go before it over the drain rate of the queue: with ``edf`` in the
        queue, what waits and is due earlier, and what tighter SLOs have come with of late and will come in time to be
        due earlier. To that come its own prefill and what holds it up on its replica: the delay that others
        have seen of late between start and first token, or the prompts that replicas have before them, whichever is
        more; all of it times ``safety``. At the head of the queue it is asked again without the wait: what has become
        hopeless never starts. KV tokens that will be in use when it starts, its own included, stay below ``kv_ceiling``
        of what there is. For so many that are let in, one who would be refused at intake comes in nevertheless and is
        not asked again, and one every ten seconds whoever is let in, so that a prediction that has gone wrong is put
        right by what really becomes of them.
    State: a fading mean of delays, fading rates of KV tokens released and of each SLO's work; permits.
    Consumes: ``Admitted``, ``Started``, ``Answering`` and ``Ended``.
    Complexity: O(1), and two looks at each replica of the lane, for their prompts and their KV.
    Failure mode: as good as its predictions: a first come, first served queue that classes with different SLOs
        share settles at the loosest, and every request with a tighter one is refused; use ``edf``. Work that other
        gateways send shows in the drain rate only after it has slowed this queue down. SLOs are those of
        ``policies.slos``, or of lanes; without any, the request's whole time-out counts.
    Source: Clockwork (OSDI 2020), which drops what can't be in time before it starts; Mooncake (FAST 2025) for early
        rejection by the load expected at the decode stage.

    Args:
        order: How the queue is ordered: ``edf``, or ``arrival``, where nobody who comes later goes first.
        safety: Predictions are multiplied by it.
        probe_fraction: Of those who come in, at the most; they are probably late. 0: nobody.
        kv_ceiling: Fraction of the KV tokens that replicas can hold.

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
    ) -> None:
        ADMISSION.check_choice("order", order, ORDERS)
        ADMISSION.check_positive("safety", safety)
        ADMISSION.check_number("probe_fraction", probe_fraction, 0, 1)
        ADMISSION.check_positive("kv_ceiling", kv_ceiling)
        self._order = order
        self._safety = safety
        self._probe_fraction = probe_fraction
        self._kv_ceiling = kv_ceiling
        self._delay_s = FadingMean(MEMORY_S)
        self._released_tokens = FadingRate(MEMORY_S)
        self._num_since_probe = 0
        self._probed_s = 0.0
        self._slack_s: dict[int, float] = {}
        self._offered_s: dict[int, FadingRate] = {}

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit | Reject:
        ahead_s = backlog.ahead_s + self._expected_ahead_s(request, backlog.stage, now_s)
        wait_s = ahead_s / max(backlog.work_per_s, 1e-9)
        until_token_s = self._safety * (wait_s + self._service_s(request, backlog, now_s))
        if now_s + until_token_s > request.first_token_by_s:
            verdict = Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=wait_s)
        elif self._kv_is_short(request, backlog, until_token_s, now_s):
            verdict = Reject(reason=Reason.QUEUE_FULL, retry_after_s=wait_s)
        else:
            return Admit(_LetIn())
        return Admit(_LetIn(is_probe=True)) if self._may_probe(now_s) else verdict

    def start(self, request: RequestView, backlog: BacklogView, now_s: float, permit: Any) -> Admit | Reject:
        is_late = now_s + self._safety * self._service_s(request, backlog, now_s) > request.first_token_by_s
        if is_late and not (permit and permit.is_probe):
            return Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=drain_s(backlog))
        return ADMIT

    def observe(self, signal: RequestSignal) -> None:
        its: _LetIn | None = signal.permit
        if its is None:
            return
        if isinstance(signal, Admitted):
            self._let_in(its, signal.at_s)
        elif isinstance(signal, Started):
            its.started_s = signal.at_s
        elif its.started_s == math.inf:
            return
        elif isinstance(signal, Ended):
            self._released_tokens.add(signal.request.kv_tokens, signal.at_s)
        else:
            delay_s = signal.at_s - its.started_s - signal.request.geometry.prefill_s
            self._delay_s.add(max(0.0, delay_s), signal.at_s)

    def _may_probe(self, now_s: float) -> bool:
        is_due = self._num_since_probe * self._probe_fraction >= 1.0 or now_s - self._probed_s >= PROBE_AFTER_S
        return is_due and self._probe_fraction > 0.0

    def _let_in(self, its: _LetIn, now_s: float) -> None:
        self._num_since_probe += 1
        if its.is_probe:
            self._num_since_probe = 0
            self._probed_s = now_s

    def _expected_ahead_s(self, request: RequestView, stage: Role, now_s: float) -> float:
        """Work that has yet to come and will be due before the request is."""
        slack_s = request.first_token_by_s - now_s
        if self._order != "edf" or slack_s <= 0.0:
            return 0.0
        octave = round(SLACKS_PER_OCTAVE * math.log2(slack_s))
        self._slack_s[octave] = slack_s
        self._offered_s.setdefault(octave, FadingRate(MEMORY_S)).add(request.geometry.work_s(stage), now_s)
        tighter = ((self._offered_s[each], other_s) for each, other_s in self._slack_s.items() if other_s < slack_s)
        return sum(offered_s.per_s_at(now_s) * (slack_s - other_s) for offered_s, other_s in tighter)

    def _service_s(self, request: RequestView, backlog: BacklogView, now_s: float) -> float:
        """From its start to its first token."""
        under_way_s = backlog.ongoing_s / max(1, backlog.num_replicas)
        return request.geometry.prefill_s + max(under_way_s, self._delay_s.at(now_s))

    def _kv_is_short(self, request: RequestView, backlog: BacklogView, until_s: float, now_s: float) -> bool:
        """Whether there will be too little KV for it: those under way less those that end until then, and the queue."""
        released = self._released_tokens.per_s_at(now_s) * until_s
        wanted = backlog.kv_tokens + backlog.waiting_kv_tokens + request.kv_tokens - released
        return wanted > self._kv_ceiling * backlog.kv_capacity_tokens
