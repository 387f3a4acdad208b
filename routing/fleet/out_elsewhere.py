"""Replicas that other gateways keep out: what one has found out, all go by."""

from collections.abc import Collection, Mapping

from routing.fleet.fleet import Fleet
from routing.request.effects import SetTimer

MOST_OUT_FRACTION = 0.5
"""Of a pool, whoever keeps them out: gateways that are each sure of something else don't empty it together."""
TIMER_EVERY_S = 0.25
"""What is told again and again is out until a little later each time; timers need not follow each."""
OUT_ELSEWHERE_TIMER = "out_elsewhere"
"""What its timers are for, at the end of their tokens."""


class OutElsewhere:
    """Keeps replicas out that other gateways keep out, for as long as they say.

    A gateway tells of what it has found out itself, and of nothing that it was told. The one that put a replica out is
    also the one that tries it again: it says so until it is sure of it, and the others wait for that.

    Source: Envoy's outlier detection decides by each proxy's own hosts; that gateways share what they find is ours.

    Args:
        fleet: Where replicas are kept out.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._until_s: dict[str, float] = {}
        self._timed_until_s: dict[str, float] = {}
        self._num_timers = 0

    def hear(self, out: Mapping[str, float], own: Collection[str], now_s: float) -> list[SetTimer]:
        """Takes in who is out elsewhere.

        Args:
            out: Until when, by replica.
            own: Those that this gateway has a say about itself.
            now_s: Now.

        Returns:
            Timers for when they are back, and those who wait have to be looked at.
        """
        self._timed_until_s = {name: at_s for name, at_s in self._timed_until_s.items() if at_s > now_s}
        self._until_s = {name: at_s for name, at_s in self._until_s.items() if at_s > now_s}
        timers = []
        for replica_id, until_s in out.items():
            if replica_id not in own and until_s > now_s and self._may_be_out(replica_id, now_s):
                self._fleet.quarantine(replica_id, until_s)
                self._until_s[replica_id] = until_s
                if until_s >= self._timed_until_s.get(replica_id, 0.0) + TIMER_EVERY_S:
                    timers.append(self._timer(replica_id, until_s))
        return timers

    def ends(self, token: str, now_s: float) -> list[SetTimer]:
        """One of its timers has fired: another one, where the replica is out for longer by now."""
        replica_id = token.rpartition(":")[0].rpartition(".")[0]
        until_s = self._until_s.get(replica_id, 0.0)
        return [self._timer(replica_id, until_s)] if token.endswith(OUT_ELSEWHERE_TIMER) and until_s > now_s else []

    def release(self, pool: str) -> None:
        """A pool has nobody else: those that are out for what others say come back."""
        for replica_id, until_s in list(self._until_s.items()):
            replica = self._fleet.get(replica_id)
            if replica is not None and replica.pool == pool and replica.quarantined_until_s <= until_s:
                del self._until_s[replica_id]
                self._fleet.end_suspicion(replica_id)

    def _may_be_out(self, replica_id: str, now_s: float) -> bool:
        replica = self._fleet.get(replica_id)
        if replica is None or not replica.is_up:
            return False
        live, num_up = self._fleet.live_in((replica.pool,), now_s), len(self._fleet.up(replica.pool))
        num_left = sum(each.replica_id != replica_id for each in live)
        return num_left > 0 and num_up - num_left <= max(1.0, MOST_OUT_FRACTION * num_up)

    def _timer(self, replica_id: str, until_s: float) -> SetTimer:
        self._timed_until_s[replica_id] = until_s
        self._num_timers += 1
        return SetTimer(token=f"{replica_id}.{self._num_timers}:{OUT_ELSEWHERE_TIMER}", at_s=until_s)
