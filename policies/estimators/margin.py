"""How much must be added to a prediction so that it is too low as seldom as it may be."""


class Margin:
    """A factor that finds itself: it grows when the prediction was too low, and shrinks a little whenever it held.

    Where the steps balance, ``too_low_fraction`` of all predictions are too low (Robbins and Monro, "A Stochastic
    Approximation Method", 1951).

    Args:
        too_low_fraction: Of predictions, that may be.
        step: By how much it grows each time.
        start: What it is at first, 0 or more.

    Attributes:
        value: What it is now, 0 or more.
    """

    def __init__(self, too_low_fraction: float, *, step: float, start: float) -> None:
        self._up, self._down = step * (1.0 - too_low_fraction), step * too_low_fraction
        self.value = start

    def was_too_low(self) -> None:
        """A prediction was."""
        self.value += self._up

    def held(self) -> None:
        """A prediction was not."""
        self.value = max(0.0, self.value - self._down)
