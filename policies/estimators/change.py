"""Whether what comes now is still what came."""

import math
from collections import deque
from collections.abc import Sequence

NUM_CLASSES, OFFSET = 32, 11
"""Log2 classes: one for each octave from ``2**-12`` to ``2**19``, values beyond them in the first and the last."""
LOOK_EVERY = 4
PRIOR = 0.5
_LN_PRIOR = math.lgamma(PRIOR)


class ChangeTest:
    """A likelihood-ratio test between the last values of a stream and those before them, both counted in log2 classes.

    The ratio is that of two sources of values, one for those before and one for the last ones, to one source for all;
    each source's likelihood is the mean over all distributions on the classes (Dirichlet with 1/2), so it needs no
    correction for the number of classes. While nothing changes the ratio's mean over such distributions is 1, and by
    Markov's inequality it exceeds ``1 / p`` with a probability of at most ``p``.

    Args:
        false_alarm_fraction: Alarms over values while nothing changes, at the most; looks at overlapping values are
            counted apart, so there are fewer.
        window: How many values are the last ones.
        half_life: After so many further values one of those before counts half.

    Attributes:
        num_alarms: So far.
    """

    def __init__(self, false_alarm_fraction: float = 1e-4, window: int = 32, half_life: float = 500.0) -> None:
        self._threshold = -math.log(false_alarm_fraction * LOOK_EVERY)
        self._window = window
        self._fading = 0.5 ** (1.0 / half_life)
        self.num_alarms = 0
        self.restart()

    def restart(self) -> None:
        """Forgets every value; so many as are the last ones have to come before it can raise an alarm again."""
        self._latest: deque[int] = deque()
        self._before = [0.0] * NUM_CLASSES
        self._num_before = 0.0
        self._num_since_look = 0

    def add(self, value: float) -> int:
        """Takes a value in.

        Args:
            value: Above 0.

        Returns:
            How many values, this one included, have come since the change, if there has been one; else 0. The test
            begins anew with them.
        """
        self._latest.append(_class_of(value))
        if len(self._latest) > self._window:
            self._before = [each * self._fading for each in self._before]
            self._num_before = self._num_before * self._fading + 1.0
            self._before[self._latest.popleft()] += 1.0
        self._num_since_look += 1
        if self._num_since_look < LOOK_EVERY or self._num_before < self._window:
            return 0
        self._num_since_look = 0
        return self._begin_anew() if self._ratio() > self._threshold else 0

    def _ratio(self) -> float:
        """Logarithm of how much more likely two sources are than one."""
        last = [0.0] * NUM_CLASSES
        for each in self._latest:
            last[each] += 1.0
        together = [one + other for one, other in zip(self._before, last, strict=True)]
        return _log_likelihood(self._before) + _log_likelihood(last) - _log_likelihood(together)

    def _begin_anew(self) -> int:
        """Finds the likeliest moment of the change, and forgets what came before it."""
        before, last = list(self._before), [0.0] * NUM_CLASSES
        for each in self._latest:
            last[each] += 1.0
        best, num_since = -math.inf, len(self._latest)
        for num_earlier, each in enumerate(self._latest):
            likelihood = _log_likelihood(before) + _log_likelihood(last)
            if likelihood > best:
                best, num_since = likelihood, len(self._latest) - num_earlier
            before[each] += 1.0
            last[each] -= 1.0
        for _ in range(len(self._latest) - num_since):
            self._latest.popleft()
        self._before, self._num_before = [0.0] * NUM_CLASSES, 0.0
        self.num_alarms += 1
        return num_since


def _class_of(value: float) -> int:
    return min(max(math.frexp(value)[1] + OFFSET, 0), NUM_CLASSES - 1)


def _log_likelihood(counts: Sequence[float]) -> float:
    """Of values with these counts from one source that nothing is known of, up to what cancels out in a ratio."""
    total = sum(counts)
    prior = NUM_CLASSES * PRIOR
    seen = sum(math.lgamma(each + PRIOR) - _LN_PRIOR for each in counts if each)
    return seen + math.lgamma(prior) - math.lgamma(prior + total)
