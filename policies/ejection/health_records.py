"""What a gateway has seen of every replica, from what becomes of its attempts."""

from collections.abc import Iterable, Sequence

from policies.decisions import Reason
from policies.ejection.health import Health, OpenAttempt
from policies.ejection.trail import Trail
from policies.signals import AttemptSignal, Completed, Dispatched, Failed, FirstToken, Superseded
from policies.views import ReplicaView

BLAMED = frozenset({Reason.REPLICA_LOST, Reason.ENGINE_ERROR})
"""Failures that may be the replica's doing; a transfer that failed is rather that of the side that held the KV."""


class HealthRecords:
    """All replicas that attempts were sent to.

    Args:
        window_s: How long a value counts.
        allowance_s: Seconds more that a first token may take than was expected.

    Attributes:
        by_replica: Their health. After an ejection another object stands there, so that attempts from before it, which
            hold on to the former one, count no more.
        has_news: Whether something has come that should not wait: a failure, or a result of a newcomer.
    """

    def __init__(self, window_s: float, allowance_s: float) -> None:
        self._window_s = window_s
        self._allowance_s = allowance_s
        self._open: dict[str, OpenAttempt] = {}
        self.by_replica: dict[str, Health] = {}
        self.has_news = False

    def begin_anew(self, replica_id: str, num_ejections: int, out_until_s: float) -> None:
        """It is out, and what it did so far is forgotten."""
        health = self.by_replica[replica_id] = self._new()
        health.num_ejections, health.out_until_s, health.is_newcomer = num_ejections, out_until_s, True

    def of(self, pool: Sequence[ReplicaView]) -> dict[str, Health]:
        """Those replicas of a pool that attempts were sent to, in order."""
        known = self.by_replica
        return {each.replica_id: known[each.replica_id] for each in pool if each.replica_id in known}

    def forget(self, replica_ids: Iterable[str]) -> None:
        """They have gone for good."""
        for replica_id in replica_ids:
            self.by_replica.pop(replica_id, None)

    def observe(self, signal: AttemptSignal) -> None:
        """An attempt has been sent, has its first token, or has ended."""
        if isinstance(signal, Dispatched):
            self._begin(signal)
            return
        take = self._open.get if isinstance(signal, FirstToken) else self._open.pop
        attempt = take(signal.attempt_id, None)
        if attempt is None:
            return
        was_waiting = attempt.health.waiting.pop(signal.attempt_id, None) is not None
        if attempt.health is not self.by_replica.get(signal.replica_id):
            return
        if was_waiting and isinstance(signal, FirstToken | Completed | Superseded):
            attempt.health.slowdowns.add(attempt.slowdown(signal.at_s), signal.at_s)
        if isinstance(signal, Failed):
            self._fail(attempt.health, signal.reason)
        elif isinstance(signal, FirstToken | Completed):
            self._succeed(attempt, signal, was_waiting=was_waiting)

    def _begin(self, signal: Dispatched) -> None:
        health = self.by_replica.get(signal.replica_id)
        if health is None:
            health = self.by_replica[signal.replica_id] = self._new()
        health.out_until_s = min(health.out_until_s, signal.at_s)  # it is back, for whatever reason
        is_known = signal.expected_s > 0
        allowed_s = signal.expected_s + self._allowance_s if is_known else 0.0
        attempt = self._open[signal.attempt_id] = OpenAttempt(health, signal.at_s, allowed_s)
        if is_known:
            health.waiting[signal.attempt_id] = attempt

    def _succeed(self, attempt: OpenAttempt, signal: FirstToken | Completed, *, was_waiting: bool) -> None:
        """What was measured by its first token is not a good result once more when it is over."""
        health = attempt.health
        if isinstance(signal, FirstToken):
            attempt.first_token_at_s = signal.at_s
        else:
            attempt.measure_tokens(signal.output_tokens, signal.at_s)
        health.num_failures = 0
        health.num_good += was_waiting or (attempt.allowed_s == 0 and isinstance(signal, Completed))
        self.has_news |= health.is_newcomer

    def _fail(self, health: Health, reason: Reason) -> None:
        if reason in BLAMED:
            health.num_failures += 1
            self.has_news = True

    def _new(self) -> Health:
        return Health(Trail(self._window_s), Trail(self._window_s))
