"""The replica where a request delays everybody least: itself, and those that come after it."""

import math
from collections.abc import Sequence
from typing import ClassVar

from policies.candidates import Candidates, load_of
from policies.contracts import Need
from policies.estimators import FadingMean
from policies.params import BALANCING
from policies.signals import Signal
from policies.views import FirstTokenView, PrefixView, ReplicaView, RequestView

MEMORY_S = 10.0
LOADS = 2
"""That a request leads to whose adapter is not there: its own, and one more of the adapter that makes room for it."""


class LeastDelay:
    """Which replica takes the attempt? The one where it delays itself and those that come after it least.

    Rule: minimum of ``ahead_s + own_s / (1 - busy_fraction) + answer_s``: the prompts before it at a replica, what is
        left of its own there and its KV's way there, and its answer in that replica's batch, all in seconds.
        ``busy_fraction`` is the share of replicas that requests of late have found computing prompts. On an idle fleet
        that is the earliest first token; on a busy one, where what is computed twice keeps others waiting, it is the
        longest match. No weight is set between the two. A LoRA adapter that is not loaded costs two loads, once for the
        request and once for each that the replica has. A request waits for the replica that wins as long as that has
        part of its prompt; any other waits for whichever has room first.
    State: a fading mean of the fraction of busy replicas; the prefix index is shared with the rest of the router.
    Consumes: no signal; the estimate of first tokens, the prefix index and the views' accounts, which need the
        replicas' reports.
    Complexity: O(n): every candidate is looked at.
    Failure mode: as good as the engine profile: one that is too fast makes waiting look cheap, and texts that everybody
        shares gather on few replicas. Answers are spread as far as a larger batch takes longer for its steps, and by
        expected lengths.
    Source: cost as in NVIDIA Dynamo's KV router, in seconds; ``1 / (1 - rho)`` is what a second of work costs those who
        come after it in an M/G/1 queue (Kleinrock, "Queueing Systems", vol. 1, 5.8).

    Args:
        first_tokens: How long first tokens take.
        prefixes: What replicas have in their caches.
        most_weight: ``1 / (1 - busy_fraction)`` at the most, 1 or more.

    Raises:
        ConfigError: A weight out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.SERVICE_RATES, Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, first_tokens: FirstTokenView, prefixes: PrefixView, most_weight: float = 10.0) -> None:
        BALANCING.check_number("most_weight", most_weight, 1.0)
        self._first_tokens = first_tokens
        self._prefixes = prefixes
        self._least_idle_fraction = 1.0 / most_weight
        self._busy_fraction = FadingMean(MEMORY_S)
        self._looked_at_s = -math.inf

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        return candidates[0] if len(candidates) == 1 else self._best(request, candidates, now_s)

    def home(
        self, request: RequestView, live: Sequence[ReplicaView], anywhere_tokens: int, now_s: float
    ) -> ReplicaView | None:
        if now_s > self._looked_at_s:
            self._looked_at_s = now_s
            self._busy_fraction.add(sum(each.prefill_tokens > 0 for each in live) / len(live), now_s)
        cached = self._prefixes.cached_tokens(request) if request.prefix_blocks else ()
        if not cached:
            return None
        ahead_s = [self._first_tokens.ahead_s(each) for each in live]
        best = self._best(request, live, now_s, self._first_tokens.level_s(live, ahead_s, anywhere_tokens))
        return best if best.replica_id in cached else None

    def _best(
        self, request: RequestView, replicas: Sequence[ReplicaView], now_s: float, at_least_s: float = 0.0
    ) -> ReplicaView:
        weight = 1.0 / max(self._least_idle_fraction, 1.0 - self._busy_fraction.at(now_s))
        times = self._first_tokens
        ahead_s, own_s, load_s, answer_s = times.ahead_s, times.own_s, times.load_s, times.answer_s

        def cost(replica: ReplicaView) -> tuple[float, tuple[int, int, str]]:
            prompt_s = max(at_least_s, ahead_s(replica)) + own_s(request, replica) * weight
            if request.adapter:
                stalled = max(replica.num_ongoing_requests, replica.kv_tokens / request.kv_tokens)
                prompt_s += LOADS * load_s(request, replica) * (1 + stalled)
            return prompt_s + answer_s(request, replica), load_of(replica)

        return min(replicas, key=cost)
