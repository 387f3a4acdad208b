"""Requests of a gateway's own, by which it finds out whether an engine that failed, or was slow, is well again."""

from enum import IntEnum
from typing import NamedTuple

from policies.views import ReplicaView
from routing.fleet.first_token import FirstTokenEstimator
from routing.request.effects import CancelProbe, CancelTimer, Effect, Probe, SetTimer

PROBE_TIMER = "probe"
"""What its timers are for, at the end of their tokens."""


SMALL_PROMPT_TOKENS, SMALL_OUTPUT_TOKENS = 8, 1
LARGE_PROMPT_TOKENS, LARGE_OUTPUT_TOKENS = 2048, 64
"""So many that what an engine takes is what it computes, and not what every request takes beside."""
MOST_SLOW_PROBES = 3
"""In a row, that a replica fails: its profile may be too good for all of its pool, and clients' requests will tell."""
MOST_SLOWDOWN, ALLOWANCE_S = 2.5, 0.05
"""How many times what is expected a large probe may take, as ``outlier`` has it of attempts, and seconds beside."""


class ProbeKind(IntEnum):
    """What a replica has to show before it gets requests; the more, the higher."""

    NONE = 0
    """Nothing: clients' requests will tell."""
    ANSWERS = 1
    """That its engine answers at all."""
    FIRST_TOKEN = 2
    """That it computes a prompt about as fast as its profile says."""
    TOKENS = 3
    """That it decodes about as fast."""


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
        probe_s: How long a small one may take; 0: there are none.
        first_tokens: Knows how long a large one should take.
    """

    def __init__(self, probe_s: float, first_tokens: FirstTokenEstimator) -> None:
        self._under_way: dict[str, str] = {}
        self._num_probes = 0
        self.use(probe_s, first_tokens)

    def use(self, probe_s: float, first_tokens: FirstTokenEstimator) -> None:
        """From here on these count."""
        self.are_on = probe_s > 0
        self._probe_s = probe_s
        self._first_tokens = first_tokens

    def begin(self, replica: ReplicaView, kind: ProbeKind, now_s: float) -> BegunProbe:
        """Has a replica tried. Where nobody has said how fast engines are, none has to show that.

        A prompt has one token of an answer, and an answer a short prompt: of both together one would hide the other.
        """
        self._num_probes += 1
        probe_id = f"{replica.replica_id}.{self._num_probes}"
        self._under_way[replica.replica_id] = probe_id
        prompt_tokens, output_tokens, for_s = SMALL_PROMPT_TOKENS, SMALL_OUTPUT_TOKENS, self._probe_s
        if kind > ProbeKind.ANSWERS and self._first_tokens.rates.are_known:
            if kind is ProbeKind.FIRST_TOKEN:
                prompt_tokens = LARGE_PROMPT_TOKENS
            else:
                output_tokens = LARGE_OUTPUT_TOKENS
            for_s = MOST_SLOWDOWN * self._first_tokens.answer_of_s(replica, prompt_tokens, output_tokens) + ALLOWANCE_S
        probe = Probe(
            probe_id=probe_id,
            replica_id=replica.replica_id,
            pool=replica.pool,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )
        until_s = now_s + for_s
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
