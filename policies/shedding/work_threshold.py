"""An admission threshold for each class that follows how long this gateway's own requests wait."""

from policies.load_reports import NUM_CLASSES

LEVELS = 128
"""In a class."""
LAST_LEVEL = NUM_CLASSES * LEVELS - 1
QUIET_RATIO = 0.1
"""Of the target: who waits less waits for nothing."""


class WorkThreshold:
    """Everybody stands on a level; those above the cursor go.

    A level is a class and, within it, a shed rank (:mod:`policies.shedding.rank`). After each window the
    cursor is put where the work of the levels up to it is a little less than what was let in, when requests waited too
    long, and a little more when they did not. Work and not requests, because a level of a few long ones weighs more
    than one of many short ones.

    Source: DAGOR (SoCC 2018), whose histogram counts requests.

    Args:
        target_s: How long requests may wait.
        window_s: Between two moves of the cursor.
        decrease: Part of what was let in that goes when requests wait longer.
        increase: Part of what came that is let in on top when they do not.
        increase_quiet: The same while nobody waits.
    """

    def __init__(
        self, *, target_s: float, window_s: float, decrease: float, increase: float, increase_quiet: float
    ) -> None:
        self._target_s = target_s
        self._window_s = window_s
        self._decrease = decrease
        self._increase = increase
        self._increase_quiet = increase_quiet
        self._cursor = LAST_LEVEL
        self._begin(0.0)

    @property
    def shed_fraction(self) -> float:
        """Part of the work of this window so far that is above the cursor."""
        return 1.0 - self._let_in / self._offered if self._offered else 0.0

    def sheds(self, rank: int, place: float, work: float, wait_s: float, now_s: float) -> bool:
        """Whether somebody goes who stands there.

        Args:
            rank: Of the class.
            place: Where in the class.
            work: What it takes.
            wait_s: How long it would have to wait.
            now_s: Now.
        """
        if now_s - self._began_s >= self._window_s:
            self._move()
            self._begin(now_s)
        level = rank * LEVELS + LEVELS - 1 - int(place * LEVELS)
        is_shed = level > self._cursor
        self._work_of[level] += work
        self._offered += work
        self._let_in += 0.0 if is_shed else work
        self._waited_s += wait_s
        self._num_asked += 1
        return is_shed

    def _begin(self, now_s: float) -> None:
        self._began_s = now_s
        self._work_of = [0.0] * (LAST_LEVEL + 1)
        self._offered = self._let_in = self._waited_s = 0.0
        self._num_asked = 0

    def _move(self) -> None:
        if not self._num_asked:
            return
        mean_s = self._waited_s / self._num_asked
        if mean_s > self._target_s:
            allowed = self._let_in * (1.0 - self._decrease)
        else:
            is_quiet = mean_s <= QUIET_RATIO * self._target_s
            allowed = self._let_in + self._offered * (self._increase_quiet if is_quiet else self._increase)
        self._cursor = self._last_level_within(allowed)

    def _last_level_within(self, allowed: float) -> int:
        """The first level of all stays in: without anybody to see, nothing would ever change again."""
        total = 0.0
        for level, work in enumerate(self._work_of):
            total += work
            if total > allowed:
                return max(0, level - 1)
        return LAST_LEVEL
