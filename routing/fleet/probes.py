"""Small requests of a gateway's own, by which it finds out whether an engine that failed is well again."""

from typing import NamedTuple

from routing.request.effects import CancelProbe, CancelTimer, Effect, Probe, SetTimer

PROBE_TIMER = "probe"
"""What its timers are for, at the end of their tokens."""


class BegunProbe(NamedTuple):
    """A probe that is under way.

    Args:
        probe_id: Its name.
        until_s: When it has failed, whatever comes of it.
        effects: What begins it.
    """

    probe_id: str
    until_s: float
    effects: tuple[Effect, ...]


class Probes:
    """At most one for each replica.

    Args:
        probe_s: How long one may take; 0: there are none.
    """

    def __init__(self, probe_s: float) -> None:
        self.probe_s = probe_s
        self._under_way: dict[str, str] = {}
        self._num_probes = 0

    def begin(self, replica_id: str, pool: str, now_s: float) -> BegunProbe:
        """Has a replica tried."""
        self._num_probes += 1
        probe_id, until_s = f"{replica_id}.{self._num_probes}", now_s + self.probe_s
        self._under_way[replica_id] = probe_id
        probe = Probe(probe_id=probe_id, replica_id=replica_id, pool=pool)
        return BegunProbe(probe_id, until_s, (probe, SetTimer(token=_timer_of(probe_id), at_s=until_s)))

    def end(self, probe_id: str) -> str:
        """It has gone well or badly: whose it was; empty where that counts no more."""
        replica_id = probe_id.rpartition(".")[0]
        if self._under_way.get(replica_id) != probe_id:
            return ""
        del self._under_way[replica_id]
        return replica_id

    def has(self, replica_id: str) -> bool:
        """Whether a replica is being tried."""
        return replica_id in self._under_way

    def drop(self, replica_id: str) -> tuple[Effect, ...]:
        """Nobody waits for a replica's probe any more; what ends it, if there is one."""
        probe_id = self._under_way.pop(replica_id, None)
        if probe_id is None:
            return ()
        return (CancelTimer(token=_timer_of(probe_id)), CancelProbe(probe_id=probe_id))


def _timer_of(probe_id: str) -> str:
    return f"{probe_id}:{PROBE_TIMER}"
