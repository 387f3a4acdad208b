"""How much must be added to a prediction so that it is too low as seldom as it may be."""

import math


class Margin:
    """A factor that finds itself: it grows when the prediction was too low, and shrinks a little whenever it held.

    Where the steps balance, ``too_low_fraction`` of all predictions are too low (Robbins and Monro, "A Stochastic
    Approximation Method", 1951).

    Args:
        too_low_fraction: Of predictions, that may be.
        step: By how much it grows each time.
        start: What it is at first, 0 or more.
        most: What it is at the most.
        memory_s: Time in which it falls to 1/e by itself: one that keeps out all that it could learn from finds back.

    Attributes:
        value: What it is, 0 or more, before it has faded since it last changed.
    """

    def __init__(
        self,
        too_low_fraction: float,
        *,
        step: float,
        start: float,
        most: float = math.inf,
        memory_s: float = math.inf,
    ) -> None:
        self._up, self._down = step * (1.0 - too_low_fraction), step * too_low_fraction
        self._most = most
        self._memory_s = memory_s
        self._changed_at_s = 0.0
        self._grew_at_s = -math.inf
        self.value = start

    def at(self, now_s: float) -> float:
        """What it is now."""
        return self.value * math.exp(min(0.0, self._changed_at_s - now_s) / self._memory_s)

    def learn(self, *, was_too_low: bool) -> None:
        """A prediction was too low, or held."""
        if was_too_low:
            self.value = min(self._most, self.value + self._up)
        else:
            self.value = max(0.0, self.value - self._down)

    def came(self, now_s: float, *, due_s: float, predicted_at_s: float) -> None:
        """What was predicted to come in time has come. Predictions from before the margin last grew say nothing of the
        margin that there is now, so one bad moment that many went by counts once.
        """
        if predicted_at_s < self._grew_at_s:
            return
        self.value, self._changed_at_s = self.at(now_s), now_s
        if now_s > due_s:
            self._grew_at_s = now_s
        self.learn(was_too_low=now_s > due_s)
