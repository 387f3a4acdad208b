"""What binds: which part of a request's way takes more than it would on an idle fleet, and what helps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

LEAST_EXCESS_FRACTION = 0.25
"""Of the time that requests take on an idle fleet; with less beyond it, nothing binds but the engine itself."""


class Bound(StrEnum):
    """Where requests lose time.

    ``ENGINE``: nowhere, they take about as long as on an idle fleet. ``QUEUE``: they wait at the gateway for a replica.
    ``PREFILL``: prompts wait in the engine, or share its steps. ``MEMORY``: decode steps read more weights and KV than
    those of one request alone. ``TRANSFER``: KV on its way from prefill to decode. ``FRONT_END``: parsing, tokenizing,
    decisions, and the way to a replica and back. ``CLIENT``: it reads more slowly than tokens come. ``LOST``: attempts
    that came to nothing.
    """

    ENGINE = "engine"
    QUEUE = "queue"
    PREFILL = "prefill"
    MEMORY = "memory"
    TRANSFER = "transfer"
    FRONT_END = "front_end"
    CLIENT = "client"
    LOST = "lost"


LEVERS: Mapping[Bound, str] = {
    Bound.ENGINE: "a faster engine or a cached prompt: quantisation, more GPUs a replica, prefix affinity",
    Bound.QUEUE: "more replicas of the pool that they wait for, or admission that refuses earlier",
    Bound.PREFILL: "more prefill replicas, a prefill window, or prefix affinity, so that less is computed",
    Bound.MEMORY: "more decode replicas, a smaller max_num_seqs, or quantised weights and KV",
    Bound.TRANSFER: "a faster network or connector, or whole requests where prompts are short",
    Bound.FRONT_END: "more gateways, or more CPUs for them",
    Bound.CLIENT: "nothing here: clients read more slowly than tokens come",
    Bound.LOST: "ejection and the replicas' logs: attempts are lost",
}
"""What helps, by what binds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What binds.

    Args:
        bound: Where most time is lost.
        fraction: Of all the time that is lost, how much is lost there; 0 where nothing binds.
    """

    bound: Bound
    fraction: float

    @property
    def lever(self) -> str:
        """What helps."""
        return LEVERS[self.bound]

    def __str__(self) -> str:
        share = f", {self.fraction:.0%} of the time that requests lose" if self.fraction else " itself"
        return f"what binds: {self.bound}{share}; {self.lever}"


NOTHING_BINDS = Verdict(Bound.ENGINE, 0.0)


def added_up(accounts: Iterable[Mapping[Bound, float]]) -> dict[Bound, float]:
    """What requests spent their time on in several places."""
    total_s = dict.fromkeys(Bound, 0.0)
    for spent_s in accounts:
        for bound, each_s in spent_s.items():
            total_s[bound] += each_s
    return total_s


def lost(spent_s: Mapping[Bound, float]) -> dict[Bound, float]:
    """What was spent beyond an idle fleet's time."""
    return {bound: each_s for bound, each_s in spent_s.items() if bound is not Bound.ENGINE}


def what_binds(spent_s: Mapping[Bound, float]) -> Verdict:
    """The bound that most of the lost time is lost to.

    ``lost = sum(spent_s) - spent_s[ENGINE]``, and ``bound = argmax spent_s`` of the others, unless ``lost <=
    LEAST_EXCESS_FRACTION * spent_s[ENGINE]``.

    Args:
        spent_s: Seconds of all requests of a window: for ``ENGINE`` what they take on an idle fleet, for the others
            what they took beyond it. One that is missing is 0.
    """
    lost_s = lost(spent_s)
    total_s = sum(lost_s.values())
    if total_s <= LEAST_EXCESS_FRACTION * spent_s.get(Bound.ENGINE, 0.0):
        return NOTHING_BINDS
    bound = max(lost_s, key=lambda each: lost_s[each])
    return Verdict(bound, lost_s[bound] / total_s)
