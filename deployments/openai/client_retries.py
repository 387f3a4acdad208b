"""Which requests are retries of one that a client has sent before: what a fleet is asked for twice.

Two ways tell: the client's library says so (OpenAI's sends ``x-stainless-retry-count``), or an ``idempotency-key``
comes again. A gateway knows only the keys that it has seen itself, and the last ones of them.
"""

from collections.abc import Callable
from enum import StrEnum

from cachetools import TTLCache

RETRY_COUNT_HEADER = "x-stainless-retry-count"
REMEMBERED_S = 600.0
MAX_REMEMBERED = 100_000
"""Keys; some 20 MB."""


class ToldBy(StrEnum):
    """What gave a retry away; closed, because the value is a metric label."""

    HEADER = "header"
    KEY = "key"


class ClientRetries:
    """Counts the requests that are retries.

    Args:
        now_s: The clock.
        count: Called with each of them.
    """

    def __init__(self, now_s: Callable[[], float], count: Callable[[ToldBy], None]) -> None:
        self._count = count
        self._seen: TTLCache[tuple[str, str], None] = TTLCache(MAX_REMEMBERED, REMEMBERED_S, timer=now_s)

    def note(self, retry_count: str, tenant: str, key: str) -> None:
        """A request has come.

        Args:
            retry_count: What its header says; what is no number says nothing.
            tenant: Whose it is: two tenants' keys have nothing to do with each other.
            key: Its idempotency key; empty without one.
        """
        is_known = (tenant, key) in self._seen
        if key:
            self._seen[tenant, key] = None
        if retry_count.isdecimal() and retry_count.strip("0"):
            self._count(ToldBy.HEADER)
        elif is_known:
            self._count(ToldBy.KEY)
