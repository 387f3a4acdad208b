"""Replicas that have just started: few attempts at first, and twice as many in each stage that follows."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from routing.fleet.fleet import Fleet
from routing.fleet.replica import NO_BOUND
from routing.request.effects import Effect, SetTimer

RAMP_TIMER = "ramp"
"""What its timers are for, at the end of their tokens."""


class _Stage(NamedTuple):
    """Of a replica: how many attempts it may have, and the name of the timer that ends it."""

    attempts: int
    token: str


class Ramp:
    """Keeps fresh replicas to one attempt of this gateway's in their first stage, to two in the second, and so on.

    A replica that has nothing to do looks best to every balancer, and its first requests are what its engine compiles,
    allocates and connects for. With the ramp those that wait are not all among them.

    Source: the slow start of Envoy and of HAProxy, with a number of attempts in the place of a weight.

    Args:
        fleet: Where replicas are limited.
        stage_s: How long a stage lasts; 0: replicas take all that they can from the start.
    """

    def __init__(self, fleet: Fleet, stage_s: float) -> None:
        self._fleet = fleet
        self._stage_s = stage_s
        self._stages: dict[str, _Stage] = {}
        self._num_stages = 0

    def use(self, stage_s: float) -> None:
        """From here on a stage lasts so long; with 0 every replica takes all that it can at once."""
        self._stage_s = stage_s
        if not stage_s:
            for replica_id in list(self._stages):
                self.forget(replica_id)

    def begin(self, replica_ids: Iterable[str], now_s: float) -> list[Effect]:
        """Replicas have just started."""
        if not self._stage_s:
            return []
        return [self._enter(replica_id, 1, now_s) for replica_id in replica_ids]

    def ends(self, token: str, now_s: float) -> Sequence[Effect]:
        """A stage is over: the next one begins, or the replica takes all that it can."""
        replica_id = token.rpartition(":")[0].rpartition(".")[0]
        stage, replica = self._stages.get(replica_id), self._fleet.get(replica_id)
        if stage is None or replica is None or stage.token != token:
            return ()
        if 2 * stage.attempts >= replica.max_ongoing_requests:
            self.forget(replica_id)
            return ()
        return (self._enter(replica_id, 2 * stage.attempts, now_s),)

    def forget(self, replica_id: str) -> None:
        """It is not fresh any more, or has gone."""
        if self._stages.pop(replica_id, None) is not None:
            self._fleet.limit(replica_id, after_start=NO_BOUND)

    def _enter(self, replica_id: str, attempts: int, now_s: float) -> SetTimer:
        self._num_stages += 1
        token = f"{replica_id}.{self._num_stages}:{RAMP_TIMER}"
        self._stages[replica_id] = _Stage(attempts, token)
        self._fleet.limit(replica_id, after_start=attempts)
        return SetTimer(token=token, at_s=now_s + self._stage_s)
