"""What a gateway has seen of one replica."""

import math
from dataclasses import dataclass, field
from itertools import islice

from policies.ejection.trail import NUM_RECENT, Trail

MIN_STREAM_TOKENS = 8
"""A shorter answer says little about the time of a token."""
SHORTEST_S = 1e-6
"""What takes no time has no logarithm."""


@dataclass(eq=False, slots=True)
class Health:
    """One replica since it was last let in.

    Args:
        slowdowns: Times to first token over what was expected.
        token_times: Seconds a token.
        num_ejections: How often in a row it has been out.
        out_until_s: When it is, or was, to come back.
        is_newcomer: Whether it has been out and has not yet shown that it is well.

    Attributes:
        waiting: Its attempts without a first token, the oldest first.
        num_failures: Of its attempts, since one went well.
        num_good: Attempts that went well.
        num_good_told: How many of them routing knows of.
    """

    slowdowns: Trail
    token_times: Trail
    num_ejections: int = 0
    out_until_s: float = -math.inf
    is_newcomer: bool = False
    waiting: dict[str, "OpenAttempt"] = field(default_factory=dict)
    num_failures: int = 0
    num_good: int = 0
    num_good_told: int = 0

    def is_out(self, now_s: float) -> bool:
        """Whether its time is not over."""
        return now_s < self.out_until_s

    def slowdowns_so_far(self, now_s: float) -> list[float]:
        """Of the attempts that have waited longest."""
        return [each.slowdown(now_s) for each in islice(self.waiting.values(), NUM_RECENT)]


@dataclass(eq=False, slots=True)
class OpenAttempt:
    """An attempt under way.

    Args:
        health: Of the replica that it was sent to, as it was then.
        sent_at_s: When.
        allowed_s: Seconds that its first token may take; 0: nobody knows.
        first_token_at_s: When that came; NaN: it has not.
    """

    health: Health
    sent_at_s: float
    allowed_s: float
    first_token_at_s: float = math.nan

    def slowdown(self, now_s: float) -> float:
        """The logarithm of how many times what is allowed has gone by."""
        return math.log(max(now_s - self.sent_at_s, SHORTEST_S) / self.allowed_s)

    def measure_tokens(self, output_tokens: int, end_s: float) -> None:
        """Its answer is over: the time of a token between the first and the last; a prefill has no such time."""
        num_tokens, streamed_s = output_tokens - 1, end_s - self.first_token_at_s
        if num_tokens >= MIN_STREAM_TOKENS and streamed_s >= 0:
            self.health.token_times.add(math.log(max(streamed_s, SHORTEST_S) / num_tokens), end_s)
