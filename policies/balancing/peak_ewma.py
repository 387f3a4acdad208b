"""The replica that is expected to be through soonest, going by how fast each has lately been."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from policies.balancing.pair import draw_pair
from policies.candidates import Candidates
from policies.contracts import Need, Rng
from policies.errors import ConfigError
from policies.signals import AttemptSignal, Cancelled, Completed, Dispatched, Failed, FirstToken, Signal, Superseded
from policies.views import ReplicaView, RequestView

FORGET_AFTER = 8.0
"""Time constants after which a pace has faded into the common one, and need not be kept."""
MEAN_OVER = 1000
"""Samples that the common pace is a mean of, about."""


@dataclass(slots=True)
class _Pace:
    token_s: float
    at_s: float


class PeakEwma:
    """Which replica takes the attempt? The one whose work left times its recent pace is least.

    Rule: a replica's pace is seconds of latency for each token of an attempt's work. A sample above the pace replaces
        it; one below moves it by ``1 - exp(-dt / decay_s)``. Without samples a pace fades, with the same time constant,
        into the mean of all samples, which also stands for replicas that nobody has measured. An attempt gives one
        sample: its time to first token or, where no first token is told, to its end. Its work is counted as
        ``base_tokens`` more than it is, since the shortest prompt takes a step too. A failure is no latency, which
        would praise the quick ones: it makes the pace at least ``failure_factor`` times the mean. The cost that is
        compared is pace times (work on the replica + this request's + ``base_tokens``), over all candidates if they are
        few, else over two at random and the one with the least work left.
    State: a pace for each replica that was heard of in the last eight ``decay_s``, which lets go of replicas that went;
        the work of each attempt that is open.
    Consumes: Dispatched, FirstToken, Completed, Failed, Cancelled, Superseded; of the attempts that it placed.
    Complexity: O(1) for a signal; for a pick O(``compare_at_most``), and O(log n) amortized with more candidates.
    Failure mode: a peak that was the request's doing, not the replica's, keeps work from a good replica for a while.
    Source: the Peak EWMA load balancer of Twitter's Finagle, with tokens in the place of requests.

    Args:
        decay_s: Time constant with which a peak is forgotten.
        base_tokens: What an attempt costs however short it is, in tokens of work.
        failure_factor: How many times slower than the mean a replica counts that has just failed an attempt.
        compare_at_most: Up to how many candidates are all compared.
        rng: Draws the two.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset(
        {Dispatched, FirstToken, Completed, Failed, Cancelled, Superseded}
    )

    def __init__(
        self,
        *,
        rng: Rng,
        decay_s: float = 10.0,
        base_tokens: int = 512,
        failure_factor: float = 10.0,
        compare_at_most: int = 16,
    ) -> None:
        checked = (
            ("decay_s", decay_s, 0.1),
            ("base_tokens", base_tokens, 1),
            ("failure_factor", failure_factor, 1),
            ("compare_at_most", compare_at_most, 0),
        )
        for name, value, low in checked:
            if not low <= value < math.inf:
                raise ConfigError(f"policies.balancing.params.{name}", value, f"a finite number from {low} on")
        self._rng = rng
        self._decay_s = decay_s
        self._base_tokens = base_tokens
        self._failure_factor = failure_factor
        self._compare_at_most = compare_at_most
        self._placed = "", ""
        self._paces: dict[str, _Pace] = {}  # the longest unheard of comes first
        self._open: dict[str, int] = {}
        self._mean_token_s = 0.0
        self._num_samples = 0

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        own_tokens = request.kv_tokens + self._base_tokens
        cheapest_cost, chosen = (math.inf, 0), candidates[0]
        for each in self._compared(candidates):
            cost = self._pace_at(each.replica_id, now_s) * (each.work_tokens + own_tokens), each.work_tokens
            if cost < cheapest_cost:
                cheapest_cost, chosen = cost, each
        self._placed = request.request_id, chosen.replica_id
        return chosen

    def _compared(self, candidates: Candidates) -> Sequence[ReplicaView]:
        if len(candidates) <= self._compare_at_most:
            return candidates
        return *draw_pair(candidates, self._rng), candidates.least_work_left()

    def observe(self, signal: AttemptSignal) -> None:
        if isinstance(signal, Dispatched):
            if self._placed == (signal.request_id, signal.replica_id):  # another role's balancer has its own paces
                self._open[signal.attempt_id] = signal.work_tokens + self._base_tokens
            return
        work_tokens = self._open.pop(signal.attempt_id, None)
        if work_tokens is None:
            return
        if isinstance(signal, Failed):
            self._fail(signal.replica_id, signal.at_s)
        elif isinstance(signal, FirstToken | Completed) and work_tokens:
            self._learn(signal.replica_id, signal.latency_s / work_tokens, signal.at_s)
        if isinstance(signal, FirstToken):
            self._open[signal.attempt_id] = 0

    def _learn(self, replica_id: str, token_s: float, now_s: float) -> None:
        self._num_samples = min(self._num_samples + 1, MEAN_OVER)
        self._mean_token_s += (token_s - self._mean_token_s) / self._num_samples
        pace = self._paces.get(replica_id)
        if pace is not None and token_s < pace.token_s:
            token_s += (pace.token_s - token_s) * math.exp((pace.at_s - now_s) / self._decay_s)
        self._set(replica_id, token_s, now_s)

    def _fail(self, replica_id: str, now_s: float) -> None:
        if self._num_samples:
            token_s = max(self._pace_at(replica_id, now_s), self._mean_token_s * self._failure_factor)
            self._set(replica_id, token_s, now_s)

    def _set(self, replica_id: str, token_s: float, now_s: float) -> None:
        self._paces.pop(replica_id, None)
        self._paces[replica_id] = _Pace(token_s, now_s)
        oldest = next(iter(self._paces))
        if now_s - self._paces[oldest].at_s > FORGET_AFTER * self._decay_s:
            del self._paces[oldest]

    def _pace_at(self, replica_id: str, now_s: float) -> float:
        pace = self._paces.get(replica_id)
        if pace is None:
            return self._mean_token_s
        kept = math.exp((pace.at_s - now_s) / self._decay_s)
        return self._mean_token_s + (pace.token_s - self._mean_token_s) * kept
