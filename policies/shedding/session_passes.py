"""Sessions that have been let in: what they send later is let in too."""

import math
from collections import OrderedDict, deque

from policies.load_reports import PerClass

MOST_NEWS = 4096
"""Session passes in one report; what is more stays with this gateway alone."""
NO_PASS: tuple[float, PerClass] = (-math.inf, ())


class SessionPasses:
    """Who has one, the latest used last.

    Args:
        idle_s: After so long without a request a session is over.
        most: So many are kept; the one that was used longest ago goes first.
    """

    def __init__(self, idle_s: float, most: int) -> None:
        self._idle_s = idle_s
        self._most = most
        self._of: OrderedDict[int, tuple[float, PerClass]] = OrderedDict()
        self._news: deque[int] = deque(maxlen=MOST_NEWS)

    def __len__(self) -> int:
        return len(self._of)

    def show(self, key: int, now_s: float) -> PerClass:
        """What was noted on the session's pass; empty: it has none. Using it makes it last."""
        used_s, note = self._of.get(key, NO_PASS)
        if now_s - used_s > self._idle_s:
            return ()
        self._of[key] = now_s, note
        self._of.move_to_end(key)
        return note

    def give(self, key: int, note: PerClass, now_s: float) -> None:
        """Lets a session in, and keeps that for the next report.

        Args:
            key: The session.
            note: First requests' work a second that was let in when it began, by class.
            now_s: Now.
        """
        self._news.append(key)
        self._keep(key, note, now_s)

    def take_in(self, keys: tuple[int, ...], note: PerClass, now_s: float) -> None:
        """Other gateways have let these in."""
        for key in keys:
            self._keep(key, note, now_s)

    def news(self) -> tuple[int, ...]:
        """Those given since the last time that somebody asked."""
        news = tuple(self._news)
        self._news.clear()
        return news

    def _keep(self, key: int, note: PerClass, now_s: float) -> None:
        self._of[key] = now_s, note
        self._of.move_to_end(key)
        while self._of:
            oldest = next(iter(self._of))
            if len(self._of) <= self._most and now_s - self._of[oldest][0] <= self._idle_s:
                break
            del self._of[oldest]
