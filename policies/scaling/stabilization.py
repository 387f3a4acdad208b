"""Fewer replicas only when they were too many for a while, so that noise starts and stops none."""

from collections import deque
from collections.abc import Mapping


class Stabilization:
    """The largest of what was wanted of late, for each pool.

    More is wanted at once, less when nothing as large was wanted for so long.

    Source: Kubernetes' horizontal pod autoscaler, ``behavior.scaleDown.stabilizationWindowSeconds``.

    Args:
        down_after_s: How long a wish for less has to last.
    """

    def __init__(self, down_after_s: float) -> None:
        self._down_after_s = down_after_s
        self._wanted: dict[str, deque[tuple[float, int]]] = {}

    def at(self, pool: str, wanted: int, now_s: float) -> int:
        """What a pool is to have, when ``wanted`` is wanted now. O(1) in the mean."""
        kept = self._wanted.setdefault(pool, deque())
        while kept and kept[-1][1] <= wanted:
            kept.pop()
        kept.append((now_s, wanted))
        while kept[0][0] <= now_s - self._down_after_s and len(kept) > 1:
            kept.popleft()
        return kept[0][1]

    def forget_above(self, targets: Mapping[str, int]) -> None:
        """Pools that give replicas away do not want them back because they wanted them of late."""
        for pool, target in targets.items():
            kept = self._wanted.setdefault(pool, deque())
            if kept and kept[0][1] > target:
                self._wanted[pool] = deque((at_s, min(wanted, target)) for at_s, wanted in kept)
