"""Policies of an author who makes every mistake there is, for a deployment that names them by import path.

One ask in twelve goes wrong: too few for a circuit breaker to leave a policy out, but for one that never returns.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

from policies.contracts import Need
from policies.decisions import ADMIT, KEEP, Eject, EjectionReason
from policies.signals import ATTEMPT_ENDS, FirstToken, Signal
from policies.views import RequestView

ONE_IN = 12
SLOW_S = 0.1
"""Twice as long as a decision may take."""


Proper = Callable[[], Any]
"""Makes a proper answer."""
Mistake = Callable[[Proper], object]
"""Makes something else of it."""


def _raises(kind: type[BaseException]) -> Mistake:
    def mistake(proper: Proper) -> object:
        raise kind("a mistake")

    return mistake


def _says(nonsense: object) -> Mistake:
    return lambda proper: nonsense


def _allocates(proper: Proper) -> object:
    return [None] * 1_000_000


def _takes_long(proper: Proper) -> object:
    time.sleep(SLOW_S)  # noqa: TID251 - that is the mistake
    return proper()


def _never_returns(proper: Proper) -> object:
    while True:
        pass


MISTAKES: Sequence[Mistake] = (
    _raises(ValueError),
    _says(None),
    _raises(SystemExit),
    _says(42),
    _raises(asyncio.CancelledError),
    _says(math.nan),
    _raises(RecursionError),
    _allocates,
    _says((Eject(replica_id="nobody", reason=EjectionReason.FAILURES, for_s=math.nan),)),
    _takes_long,
)


class _Bad:
    """What all of them have."""

    requires: frozenset[Need] = frozenset()
    consumes: frozenset[type[Signal]] = frozenset({FirstToken, *ATTEMPT_ENDS})
    mistakes: Sequence[Mistake] = MISTAKES

    def __init__(self) -> None:
        self._num_asks = 0
        self._mistakes: Iterator[Mistake] = cycle(self.mistakes)

    def observe(self, signal: Signal) -> None:
        """Nothing goes wrong here, so that each failure is one of a decision."""

    def _answer(self, proper: Proper) -> Any:
        self._num_asks += 1
        return proper() if self._num_asks % ONE_IN else next(self._mistakes)(proper)


class BadAdmission(_Bad):
    """Lets everybody in, when it answers."""

    def decide(self, *_: Any) -> Any:
        return self._answer(lambda: ADMIT)


class BadShedding(_Bad):
    """Sheds nobody, when it answers."""

    def decide(self, *_: Any) -> Any:
        return self._answer(lambda: KEEP)

    def shed_fraction(self, now_s: float) -> Any:
        return self._answer(lambda: 0.0)


class BadBalancing(_Bad):
    """Picks the first, when it answers, and sometimes never does."""

    mistakes = (*MISTAKES, _never_returns)

    def pick(self, request: RequestView, candidates: Any, now_s: float) -> Any:
        return self._answer(lambda: next(iter(candidates)))


class BadQueueing(_Bad):
    """First come, first served, until it goes wrong: what it has then is taken from it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[RequestView] = deque()

    def push(self, request: RequestView, now_s: float) -> Any:
        return self._answer(lambda: self._waiting.append(request))

    def peek(self, now_s: float) -> Any:
        return self._answer(lambda: self._waiting[0])

    def pop(self, now_s: float) -> Any:
        return self._answer(self._waiting.popleft)

    def remove(self, request: RequestView) -> Any:
        return self._answer(lambda: self._waiting.remove(request))

    def __len__(self) -> int:
        return len(self._waiting)

    def work_ahead_s(self, request: RequestView) -> Any:
        return self._answer(lambda: 0.0)


class BadHedging(_Bad):
    """Hedges after half a second, when it answers."""

    def delay_s(self, *_: Any) -> Any:
        return self._answer(lambda: 0.5)

    def target(self, request: RequestView, attempt: Any, candidates: Any, now_s: float) -> Any:
        return self._answer(lambda: next(iter(candidates)))


class BadEjection(_Bad):
    """Ejects the first replica for a second, when it answers."""

    def decide(self, pool: Any, now_s: float) -> Any:
        first = pool[0].replica_id
        return self._answer(lambda: (Eject(replica_id=first, reason=EjectionReason.FAILURES, for_s=1.0),))
