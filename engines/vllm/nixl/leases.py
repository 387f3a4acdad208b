"""Until when KV blocks are held that a decode engine is to pull.

vLLM's prefill side frees blocks when their lease ends. Its decode side reads them by address and is not told: what it
reads then is the KV of whatever has them by now, and it keeps that as the prompt's in its prefix cache. So a handle
says until when its blocks are held, and a decode engine's workers know when they have renewed that.

Times are those of day: the clocks of prefill and decode nodes may differ by :func:`margin_s`.
"""

import time
from collections.abc import Iterable

from engines.contract import KvParams

HELD_UNTIL = "remote_blocks_expiry_time"
"""vLLM has that field for the other direction, where decode engines hold KV: empty here, and passed on to workers."""
RENEWED_FRACTION = 2 / 3
"""Of a lease, for which a heartbeat renews it."""


def margin_s(lease_s: float) -> float:
    """What is left of a lease when its blocks do not count as held any more."""
    return max(1.0, lease_s / 6.0)


def time_of_day_s() -> float:
    """Seconds since 1970: what a prefill engine says of it is read on another machine."""
    return time.time()  # noqa: TID251 - engines know nothing of the package that has the clocks


def held_for(params: KvParams, lease_s: float) -> KvParams:
    """What a handle has of blocks whose lease begins now."""
    return {**params, HELD_UNTIL: time_of_day_s() + lease_s - margin_s(lease_s)}


class LeaseWatch:
    """Until when blocks are held that one worker is to read.

    Args:
        lease_s: Of the prefill engines.
    """

    def __init__(self, lease_s: float) -> None:
        self._renewed_s = RENEWED_FRACTION * lease_s - margin_s(lease_s)
        self._renewed_until_s: dict[str, float] = {}

    def renew(self, request_ids: Iterable[str], sent_at_s: float) -> None:
        """A heartbeat has been sent for these requests of a prefill engine."""
        kept = {name: until_s for name, until_s in self._renewed_until_s.items() if until_s > sent_at_s}
        self._renewed_until_s = kept | dict.fromkeys(request_ids, sent_at_s + self._renewed_s)

    def is_over(self, request_id: str, said_until_s: float | None, now_s: float) -> bool:
        """Whether a request's blocks are not held any more; not where nobody has said until when they are."""
        if said_until_s is None:
            return False
        return now_s > max(said_until_s, self._renewed_until_s.get(request_id, 0.0))
