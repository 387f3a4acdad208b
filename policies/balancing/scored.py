"""A weighted sum of scores."""

from collections.abc import Mapping
from typing import ClassVar

from policies.balancing.hash_ring import HashRing
from policies.candidates import Candidates
from policies.contracts import Need
from policies.errors import ConfigError
from policies.signals import Signal
from policies.views import PrefixView, ReplicaView, RequestView

Scores = list[float]
DEFAULT_WEIGHTS: Mapping[str, float] = {"load": 1.0, "prefix": 1.0}


class Scored:
    """Which replica takes the attempt? The one with the highest weighted sum of scores.

    Rule: the maximum of ``sum(weight * score)``, each score from 0 to 1: ``load``: 1 without work, 0 at the most work
        among the candidates; ``prefix``: cached share of the prompt; ``session``: 1 for the first of the candidates on
        the session's ring; ``kv_usage``: free share of the KV cache; ``adapter``: 1 where its adapter is loaded. The
        first by replica id wins a tie.
    State: the ring of ``session_affinity``, where sessions have a weight.
    Consumes: no signal; the prefix index and the views' work accounts, which need the replicas' reports.
    Complexity: O(n) for each score with a weight: every candidate is looked at.
    Failure mode: weights have no unit: ``load`` is relative to the busiest candidate, so on an idle fleet a few tokens
        weigh as much as a long queue does on a busy one, and weights that were tuned at one load are wrong at another.
    Source: the scorers of llm-d's endpoint picker (Kubernetes Gateway API Inference Extension).

    Args:
        weights: Weight of each score; what is not named has none.
        prefixes: What replicas have in their caches.
        points_per_replica: Of the ring.

    Raises:
        ConfigError: A score that does not exist, a negative weight, or no weight at all.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.PREFIXES, Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self,
        *,
        prefixes: PrefixView,
        weights: Mapping[str, float] = DEFAULT_WEIGHTS,
        points_per_replica: int = 128,
    ) -> None:
        self._prefixes = prefixes
        self._ring = HashRing(points_per_replica)
        scorers = {
            "load": self._load,
            "prefix": self._prefix,
            "session": self._session,
            "kv_usage": self._kv_usage,
            "adapter": self._adapter,
        }
        for name, weight in weights.items():
            if name not in scorers:
                raise ConfigError("policies.balancing.params.weights", name, f"scores {sorted(scorers)}")
            if not 0 <= weight < float("inf"):
                raise ConfigError(f"policies.balancing.params.weights.{name}", weight, "a finite number, at least 0")
        self._weighted = [(weight, scorers[name]) for name, weight in weights.items() if weight]
        if not self._weighted:
            raise ConfigError("policies.balancing.params.weights", dict(weights), "at least one weight above 0")

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        sums = [0.0] * len(candidates)
        for weight, scores_of in self._weighted:
            scores = scores_of(request, candidates)
            sums = [total + weight * score for total, score in zip(sums, scores, strict=True)]
        return candidates[sums.index(max(sums))]

    def _load(self, request: RequestView, candidates: Candidates) -> Scores:
        work_tokens = [each.work_tokens for each in candidates]
        most_tokens = max(1, *work_tokens, 1)
        return [1.0 - tokens / most_tokens for tokens in work_tokens]

    def _prefix(self, request: RequestView, candidates: Candidates) -> Scores:
        cached = self._prefixes.cached_tokens(request)
        return [cached.get(each.replica_id, 0) / request.prompt_tokens for each in candidates]

    def _session(self, request: RequestView, candidates: Candidates) -> Scores:
        owner = None
        if request.session_id:
            self._ring.cover(candidates)
            owner = next(filter(None, map(candidates.find, self._ring.order(request.session_id))))
        return [float(each is owner) for each in candidates]

    def _kv_usage(self, request: RequestView, candidates: Candidates) -> Scores:
        return [1.0 - each.kv_cache_usage for each in candidates]

    def _adapter(self, request: RequestView, candidates: Candidates) -> Scores:
        return [float(each.has_loaded(request.adapter)) for each in candidates]
