"""How much work comes in behind a request, or unseen beside it, and goes before it all the same."""

import math

from policies.estimators.fading import FadingRate

SLACKS_PER_OCTAVE = 2  # requests whose SLOs are about as long are taken together
LEAST_SLACK_S, LEAST_IDLE_FRACTION = 1e-3, 0.1
UNTOLD_S = 0.05
"""Until one gateway knows what another has let in, in the mean."""


class LaterWork:
    """Service-seconds that were let in of late, by how long their SLOs are.

    Args:
        memory_s: In which what was let in fades to 1/e.
        num_gateways: Each is taken to let in as much as this one.
    """

    def __init__(self, memory_s: float, num_gateways: int) -> None:
        self._memory_s = memory_s
        self._num_gateways = num_gateways
        self._slack_s: dict[int, float] = {}
        self._let_in_s: dict[int, FadingRate] = {}
        self._just_let_in_s = FadingRate(UNTOLD_S)

    def let_in(self, slack_s: float, work_s: float, now_s: float) -> None:
        """A request has been, whose first token is due in ``slack_s`` seconds."""
        slack_s = max(LEAST_SLACK_S, slack_s)
        octave = round(SLACKS_PER_OCTAVE * math.log2(slack_s))
        self._slack_s[octave] = slack_s
        self._let_in_s.setdefault(octave, FadingRate(self._memory_s)).add(work_s, now_s)
        self._just_let_in_s.add(work_s, now_s)

    def overtaking_s(self, slack_s: float, wait_s: float, num_replicas: int, now_s: float) -> float:
        """What those add to a request's wait that will come while it waits, and will be due before it."""
        if not wait_s:
            return 0.0
        gaps_s = ((each, slack_s - its_slack_s) for each, its_slack_s in self._slack_s.items())
        share = self._num_gateways / max(1, num_replicas)
        busy = [(self._let_in_s[each].per_s_at(now_s) * share, gap_s) for each, gap_s in gaps_s if gap_s > 0]
        longer_s = wait_s / max(LEAST_IDLE_FRACTION, 1.0 - sum(fraction for fraction, _ in busy))
        return sum(fraction * min(longer_s, gap_s) for fraction, gap_s in busy)

    def untold_s(self, now_s: float) -> float:
        """Work that the other gateways can have let in and not told yet: each as much as this one meanwhile."""
        return (self._num_gateways - 1) * self._just_let_in_s.per_s_at(now_s) * UNTOLD_S
