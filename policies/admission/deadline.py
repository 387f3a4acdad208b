"""Nobody is let in whose first token can't come in time."""

from typing import ClassVar

from policies.admission.params import check_choice, check_number, check_positive
from policies.contracts import Need, Rng
from policies.decisions import ADMIT, Admit, Reason, Reject
from policies.estimators import FadingMean, FadingRate
from policies.signals import Answering, Ended, Signal, Started
from policies.views import BacklogView, RequestView, Role, drain_s

MEMORY_S = 10.0
"""After which what was seen counts for little."""
ORDERS = ("edf", "arrival")


class Deadline:
    """May this request come in? If its first token can be there when it is due.

    Rule: at the door, the wait is the work that will go before it over the pace of the line: with ``edf`` in the
        queue, what waits and is due earlier, and what lanes with tighter promises are offered of late that will come in
        time to be due earlier. To that come its own prefill and what holds it up on its replica: the delay that others
        have seen of late between start and first token, or the prompts that replicas have before them, whichever is
        more; all of it times ``safety``. At the head of the line it is asked again without the wait: what has become
        hopeless never starts. KV tokens that will be in use when it starts, its own included, stay below ``kv_ceiling``
        of what there is. A ``probe_fraction`` of those who would be refused at the door comes in nevertheless, so that
        a prediction that has gone wrong is put right again.
    State: a fading mean of delays, fading rates of KV tokens released and of each lane's work, and the start of every
        request under way.
    Consumes: ``Started``, ``Answering`` and ``Ended``.
    Complexity: O(1), and two looks at each replica of the lane, for their prompts and their KV.
    Failure mode: as good as its predictions: a first come, first served queue that classes with different promises
        share settles at the loosest, and every request with a tighter one is refused; use ``edf``. Work that other
        gateways send shows in the pace only after it has slowed this line down. Promises are ``ttft_slo_s`` of lanes;
        without any, the request's whole time-out counts.
    Source: Clockwork (OSDI 2020), which drops what can't be in time before it starts; Mooncake (FAST 2025) for early
        rejection by the load expected at the decode stage.

    Args:
        rng: For the probes.
        order: How the queue is ordered: ``edf``, or ``arrival``, where nobody who comes later goes first.
        safety: Predictions are multiplied by it.
        probe_fraction: Of refusals, 0 to 1.
        kv_ceiling: Fraction of the KV tokens that replicas can hold.

    Raises:
        ConfigError: A number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES, Need.FIRST_TOKEN})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Started, Answering, Ended})

    def __init__(
        self,
        *,
        rng: Rng,
        order: str = "edf",
        safety: float = 1.3,
        probe_fraction: float = 0.01,
        kv_ceiling: float = 1.0,
    ) -> None:
        check_choice("order", order, ORDERS)
        check_positive("safety", safety)
        check_number("probe_fraction", probe_fraction, 0, 1)
        check_positive("kv_ceiling", kv_ceiling)
        self._rng = rng
        self._order = order
        self._safety = safety
        self._probe_fraction = probe_fraction
        self._kv_ceiling = kv_ceiling
        self._delay_s = FadingMean(MEMORY_S)
        self._released_tokens = FadingRate(MEMORY_S)
        self._started_s: dict[str, float] = {}
        self._slack_s: dict[str, float] = {}
        self._offered_s: dict[str, FadingRate] = {}

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit | Reject:
        ahead_s = backlog.ahead_s + self._expected_ahead_s(request, backlog.stage, now_s)
        wait_s = ahead_s / max(backlog.work_per_s, 1e-9)
        until_token_s = self._safety * (wait_s + self._service_s(request, backlog, now_s))
        if now_s + until_token_s > request.first_token_by_s:
            verdict = Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=wait_s)
        elif self._kv_is_short(request, backlog, until_token_s, now_s):
            verdict = Reject(reason=Reason.QUEUE_FULL, retry_after_s=wait_s)
        else:
            return ADMIT
        return ADMIT if self._rng.random() < self._probe_fraction else verdict

    def start(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit | Reject:
        if now_s + self._safety * self._service_s(request, backlog, now_s) > request.first_token_by_s:
            return Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=drain_s(backlog))
        return ADMIT

    def observe(self, signal: Started | Answering | Ended) -> None:
        request_id = signal.request.request_id
        if isinstance(signal, Started):
            self._started_s[request_id] = signal.at_s
            return
        if isinstance(signal, Ended):
            if request_id in self._started_s:
                del self._started_s[request_id]
                self._released_tokens.add(signal.request.kv_tokens, signal.at_s)
        elif request_id in self._started_s:
            delay_s = signal.at_s - self._started_s[request_id] - signal.request.geometry.prefill_s
            self._delay_s.add(max(0.0, delay_s), signal.at_s)

    def _expected_ahead_s(self, request: RequestView, stage: Role, now_s: float) -> float:
        """Work that has yet to come and will be due before the request is."""
        if self._order != "edf":
            return 0.0
        slack_s = self._slack_s[request.lane] = request.first_token_by_s - now_s
        self._offered_s.setdefault(request.lane, FadingRate(MEMORY_S)).add(request.geometry.work_s(stage), now_s)
        tighter = [(lane, other_s) for lane, other_s in self._slack_s.items() if other_s < slack_s]
        return sum(self._offered_s[lane].per_s_at(now_s) * (slack_s - other_s) for lane, other_s in tighter)

    def _service_s(self, request: RequestView, backlog: BacklogView, now_s: float) -> float:
        """From its start to its first token."""
        under_way_s = backlog.ongoing_s / max(1, backlog.num_replicas)
        return request.geometry.prefill_s + max(under_way_s, self._delay_s.at(now_s))

    def _kv_is_short(self, request: RequestView, backlog: BacklogView, until_s: float, now_s: float) -> bool:
        """Whether there will be too little KV for it: those under way less those that end until then, and the line."""
        released = self._released_tokens.per_s_at(now_s) * until_s
        wanted = backlog.kv_tokens + backlog.waiting_kv_tokens + request.kv_tokens - released
        return wanted > self._kv_ceiling * backlog.kv_capacity_tokens
