"""Policies that do anything: they raise, answer nonsense, lose what they were given, and sometimes do what they should.

Each is named by its import path, as somebody's own would be, with the seed of what it does.
"""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

from policies.decisions import (
    ADMIT,
    AS_ASKED,
    KEEP,
    Admit,
    Again,
    Degradation,
    Eject,
    EjectionReason,
    Reason,
    Reject,
)
from policies.signals import SIGNAL_TYPES
from policies.views import Role
from routing.request.stages import DISAGGREGATED, UNIFIED
from routing.sizing.length_prediction import OutputEstimate


class Leaves(BaseException):
    """Has no ``repr`` either."""

    def __repr__(self) -> str:
        raise SystemExit("no")


class Unshowable:
    """Not even its ``repr`` works, nor does comparing it."""

    def __repr__(self) -> str:
        raise SystemExit("no")

    def __eq__(self, other: object) -> bool:
        raise Leaves

    __hash__ = object.__hash__


class OddAdmit(Admit):
    """Looks like an answer."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


EXCEPTIONS: tuple[type[BaseException], ...] = (
    ValueError,
    KeyError,
    StopIteration,
    RecursionError,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    KeyboardInterrupt,
    Leaves,
)
NONSENSE: tuple[Callable[[], object], ...] = (
    lambda: None,
    lambda: 42,
    lambda: -1,
    lambda: True,
    lambda: math.nan,
    lambda: math.inf,
    lambda: 10**400,
    lambda: iter(()),
    lambda: "first",
    lambda: (),
    lambda: [None, None],
    lambda: {"pick": 1},
    Unshowable,
    lambda: Reject(reason="because", retry_after_s=math.nan),  # type: ignore[arg-type]
    lambda: Again(after_s=-1.0),
    lambda: Again(after_s=10**400),
    lambda: Reject(reason=Reason.CLIENT_GONE, retry_after_s=1.0),
    lambda: Reject(reason=Reason.SHED, retry_after_s=10**400),
    lambda: Degradation(output_time_limit_s=10**400),
    lambda: Degradation(max_output_tokens=10**400),
    OddAdmit,
    lambda: (Eject(replica_id="nobody", reason=EjectionReason.FAILURES, for_s=math.nan),),
    lambda: (Role.DECODE, Role.PREFILL),
    lambda: OutputEstimate(0, 1),
    lambda: OutputEstimate(7, 10**400),
    lambda: {"a": 10**400},
)


class Wild:
    """What all of them have.

    Args:
        seed: Of what it does.
        sanity: How often it does what it should, 0 to 1.
    """

    requires: frozenset[Any] = frozenset()
    consumes = frozenset(SIGNAL_TYPES)
    roles = frozenset({Role.UNIFIED})

    def __init__(self, *, seed: int = 1, sanity: float = 0.3) -> None:
        self._rng = random.Random(seed)
        self._sanity = sanity

    def _do(self, proper: Callable[[], Any]) -> Any:
        dice = self._rng.random()
        if dice < self._sanity:
            return proper()
        if dice < self._sanity + 0.3:
            raise self._rng.choice(EXCEPTIONS)
        return self._rng.choice(NONSENSE)()

    def observe(self, signal: object) -> None:
        self._do(lambda: None)


class WildAdmission(Wild):
    def decide(self, *_: Any) -> Any:
        return self._do(lambda: ADMIT)

    def start(self, *_: Any) -> Any:
        return self._do(lambda: ADMIT)


class WildShedding(Wild):
    def decide(self, *_: Any) -> Any:
        return self._do(lambda: KEEP)

    def shed_fraction(self, now_s: float) -> Any:
        return self._do(lambda: 0.0)


class WildDegradation(Wild):
    def decide(self, *_: Any) -> Any:
        return self._do(lambda: AS_ASKED)


class WildPreemption(Wild):
    def victims(self, request: Any, num_wanted: int, slots: Any, now_s: float) -> Any:
        return self._do(lambda: iter(list(slots.stoppable())[:num_wanted]))


class WildHedging(Wild):
    def delay_s(self, *_: Any) -> Any:
        return self._do(lambda: 0.5)

    def target(self, request: Any, attempt: Any, candidates: Any, now_s: float) -> Any:
        return self._do(lambda: next(iter(candidates)))


class WildRetrying(Wild):
    def decide(self, *_: Any) -> Any:
        return self._do(lambda: Again(after_s=0.5))


class WildEjection(Wild):
    def decide(self, pool: Any, now_s: float) -> Any:
        first = pool[0].replica_id
        return self._do(lambda: (each for each in [Eject(replica_id=first, reason=EjectionReason.FAILURES, for_s=1.0)]))


class WildOrder(Wild):
    def place(self, *_: Any) -> Any:
        return self._do(lambda: 7)


class WildBalancing(Wild):
    def pick(self, request: Any, candidates: Any, now_s: float) -> Any:
        return self._do(lambda: next(iter(candidates)))

    def home(self, request: Any, live: Any, anywhere_tokens: int, now_s: float) -> Any:
        return self._do(lambda: next(iter(live), None))


class StuckBalancing(WildBalancing):
    """Never finds anybody, and is sane otherwise."""

    def __init__(self, *, seed: int = 1, sanity: float = 1.0) -> None:
        super().__init__(seed=seed, sanity=1.0)

    def pick(self, request: Any, candidates: Any, now_s: float) -> Any:
        while True:
            pass


class WildQueueing(Wild):
    """Loses what it was given, and gives what it was not."""

    def __init__(self, *, seed: int = 1, sanity: float = 0.3) -> None:
        super().__init__(seed=seed, sanity=sanity)
        self._waiting: list[Any] = []

    def push(self, request: Any, now_s: float) -> Any:
        return self._do(lambda: self._waiting.append(request))

    def peek(self, now_s: float) -> Any:
        return self._do(lambda: self._rng.choice(self._waiting))

    def pop(self, now_s: float) -> Any:
        return self._do(lambda: self._rng.choice(self._waiting))

    def remove(self, request: Any) -> Any:
        return self._do(lambda: self._waiting.remove(request))

    def __len__(self) -> int:
        return 10_000

    def work_ahead_s(self, request: Any) -> Any:
        return self._do(lambda: 1.0)


class WildPredictor(Wild):
    wants_ngrams = None

    def predict(self, request: Any) -> Any:
        return self._do(lambda: OutputEstimate(1, request.max_output_tokens))

    def observe(self, *_: Any) -> Any:
        self._do(lambda: None)

    def quantile_tokens(self, *_: Any) -> Any:
        return self._do(lambda: 1)


class WildClassifier(Wild):
    def classify(self, request: Any, lanes: Any, *_: Any) -> Any:
        return self._do(lambda: self._rng.choice(lanes))


class WildGuard(Wild):
    def look(self, *_: Any) -> Any:
        self._do(lambda: None)

    def are_on(self, role: Role) -> Any:
        return self._do(lambda: self._rng.random() < 0.5)


class WildTracker(Wild):
    def cached_tokens(self, request: Any) -> Any:
        return self._do(lambda: {"a": request.prompt_tokens})

    def _hears(self, *_: Any) -> Any:
        return self._do(lambda: None)

    sent = sent_elsewhere = cache_changed = forget = _hears


class WildPlanning(Wild):
    def plan(self, *_: Any) -> Any:
        return self._do(lambda: self._rng.choice([UNIFIED, DISAGGREGATED]))
