"""The replica whose KV cache has the least to hold."""

from typing import ClassVar

from policies import Candidates, Need, ReplicaView, RequestView
from policies.signals import Signal


class FewestKvTokens:
    """Which replica takes the attempt? The one with the fewest KV tokens, and of those the one with less to prefill.

    Args:
        slack_tokens: Differences up to this count for nothing.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK, Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, slack_tokens: int = 0) -> None:
        self._step = slack_tokens + 1

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        return min(candidates, key=self._load)

    def _load(self, replica: ReplicaView) -> tuple[int, int, str]:
        return replica.kv_tokens // self._step, replica.prefill_tokens, replica.replica_id
