"""Waiting requests in an order that time does not change, and the work of those before any place in it."""

from bisect import bisect_left

from policies.views import RequestView

Key = tuple[float, ...]
"""What requests are sorted by, the smallest first."""

MOST_IN_A_CHUNK = 256
_Entry = tuple[Key, int, str]


class WorkIndex:
    """A sorted line of requests.

    It is a list of sorted chunks, each with the works of its entries and their sum. A sum is taken anew whenever its
    chunk changes, so that nothing is left over of works that came and went. With n requests a change costs a binary
    search and a chunk's length, and the work before a place costs as much and a look at n / 128 sums at most.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[_Entry, RequestView]] = {}
        self._chunks: list[list[_Entry]] = []
        self._works_s: list[list[float]] = []
        self._sums_s: list[float] = []
        self._lasts: list[_Entry] = []
        self._num_pushed = 0

    def push(self, request: RequestView, key: Key, work_s: float) -> None:
        """Lines a request up; among equal keys the one that was pushed first goes first."""
        self._num_pushed += 1
        entry = key, self._num_pushed, request.request_id
        self._found[request.request_id] = entry, request
        if not self._chunks:
            self._insert(0, [entry], [work_s])
            return
        at = min(bisect_left(self._lasts, entry), len(self._lasts) - 1)
        chunk, works_s = self._chunks[at], self._works_s[at]
        place = bisect_left(chunk, entry)
        chunk.insert(place, entry)
        works_s.insert(place, work_s)
        if len(chunk) > MOST_IN_A_CHUNK:
            half = MOST_IN_A_CHUNK // 2
            self._insert(at + 1, chunk[half:], works_s[half:])
            del chunk[half:], works_s[half:]
        self._add_up(at)

    def peek(self) -> RequestView:
        """The first one.

        Raises:
            IndexError: None waits.
        """
        if not self._found:
            raise IndexError("no request waits")
        return self._found[self._chunks[0][0][2]][1]

    def pop(self) -> RequestView:
        """Takes the first one out. Raises ``IndexError`` when none waits."""
        request = self.peek()
        self.remove(request.request_id)
        return request

    def remove(self, request_id: str) -> bool:
        """Takes one out wherever it stands; ``False`` when it does not wait here."""
        found = self._found.pop(request_id, None)
        if found is None:
            return False
        at = bisect_left(self._lasts, found[0])
        chunk = self._chunks[at]
        place = bisect_left(chunk, found[0])
        del chunk[place], self._works_s[at][place]
        if chunk:
            self._add_up(at)
        else:
            del self._chunks[at], self._works_s[at], self._sums_s[at], self._lasts[at]
        return True

    def work_before_s(self, request_id: str, key: Key) -> float:
        """Work of those before a request; one that does not wait here would be the last of its key."""
        found = self._found.get(request_id)
        entry = (key, self._num_pushed + 1, "") if found is None else found[0]
        at = bisect_left(self._lasts, entry)
        before_s = sum(self._sums_s[:at])
        if at < len(self._chunks):
            before_s += sum(self._works_s[at][: bisect_left(self._chunks[at], entry)])
        return before_s

    def __len__(self) -> int:
        return len(self._found)

    def _insert(self, at: int, chunk: list[_Entry], works_s: list[float]) -> None:
        self._chunks.insert(at, chunk)
        self._works_s.insert(at, works_s)
        self._sums_s.insert(at, sum(works_s))
        self._lasts.insert(at, chunk[-1])

    def _add_up(self, at: int) -> None:
        self._sums_s[at] = sum(self._works_s[at])
        self._lasts[at] = self._chunks[at][-1]
