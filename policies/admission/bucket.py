"""What a tenant may still use."""

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Fills at a steady rate until it is full; may be overdrawn.

    Args:
        rate_per_s: Units a second.
        burst: Units when it is full.
        level: Units at ``at_s``.
        at_s: When it was last looked into to take something.
    """

    rate_per_s: float
    burst: float
    level: float
    at_s: float = 0.0

    def level_at(self, now_s: float) -> float:
        """Units that are in it now."""
        return min(self.burst, self.level + self.rate_per_s * max(0.0, now_s - self.at_s))

    def take(self, amount: float, now_s: float) -> None:
        """Takes units out or, if fewer than 0, gives them back as far as there is room."""
        self.level = self.level_at(now_s) - amount
        self.at_s = max(self.at_s, now_s)
