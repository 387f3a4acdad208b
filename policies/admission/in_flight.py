"""How much is in flight, in requests of mean work."""

import math
from dataclasses import dataclass

MEAN_OVER = 1000
"""Requests that the mean work is a mean of, about."""


@dataclass(slots=True)
class InFlightRequest:
    """A request's permit: what it weighs, whether that counts now, and when its first token came."""

    weight: float
    counts: bool = False
    first_token_s: float = math.inf


class InFlightWork:
    """The weight of all requests that count now, against the mean work of those that have asked."""

    def __init__(self) -> None:
        self._num_requests = 0
        self._weight = 0.0
        self._mean_work = 1.0
        self._num_asked = 0

    def note_asked(self, work: float) -> None:
        """A request with so much work has come."""
        self._num_asked = min(self._num_asked + 1, MEAN_OVER)
        self._mean_work += (work - self._mean_work) / self._num_asked
        self._mean_work = max(self._mean_work, 1e-9)

    @property
    def num_mean_requests(self) -> float:
        """How much is in flight."""
        return self._weight / self._mean_work

    def enter(self, request: InFlightRequest) -> None:
        """It counts from now on."""
        request.counts = True
        self._num_requests += 1
        self._weight += request.weight

    def leave(self, request: InFlightRequest) -> bool:
        """It counts no more; whether it did until now."""
        if not request.counts:
            return False
        request.counts = False
        self._num_requests -= 1
        self._weight = self._weight - request.weight if self._num_requests else 0.0
        return True
