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

    Attributes:
        value: What it is now, 0 or more.
    """

    def __init__(self, too_low_fraction: float, *, step: float, start: float, most: float = math.inf) -> None:
        self._up, self._down = step * (1.0 - too_low_fraction), step * too_low_fraction
        self._most = most
        self._grew_at_s = -math.inf
        self.value = start

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
        if now_s > due_s:
            self._grew_at_s = now_s
        self.learn(was_too_low=now_s > due_s)
