"""Two different candidates at random, for balancers that compare two."""

from policies.candidates import Candidates
from policies.contracts import Rng
from policies.views import ReplicaView


def draw_pair(candidates: Candidates, rng: Rng) -> tuple[ReplicaView, ReplicaView]:
    """Two different candidates, every ordered pair as likely as any other; of one candidate, that one twice."""
    if len(candidates) == 1:
        return candidates[0], candidates[0]
    first = rng.randrange(len(candidates))
    second = rng.randrange(len(candidates) - 1)
    second += second >= first
    return candidates[first], candidates[second]
