"""Whether one policy is asked: it is not for a while, once it has failed too often."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

Answer = TypeVar("Answer")
Returned = TypeVar("Returned")

MOST_FAILURES = 3.0
"""With so many it is not asked for a while."""
FORGIVEN_FRACTION = 0.1
"""Of a failure, by each answer that is none: who fails less often than that is asked for ever."""
ASKS_LEFT_OUT = 1000
"""A number of asks and no time, so that an event log replays; the next one is a trial."""
MOST_WORDS = 200


class FailureKind(StrEnum):
    """What a policy did: it raised, answered what its contract does not allow, took too long, or never answered and was
    ended.
    """

    RAISED = "raised"
    NONSENSE = "nonsense"
    SLOW = "slow"
    STUCK = "stuck"


class PolicyStuck(BaseException):
    """Raised inside of a policy that does not return; one that catches every ``Exception`` does not catch it."""


class AskWatch:
    """Is told when a policy is asked and when it has answered, and may raise :class:`PolicyStuck` in between."""

    def begin(self, now_s: float) -> None:
        """A policy is asked now."""

    def end(self) -> None:
        """It has answered, or raised. What was raised in it for its time comes out of here at the latest."""


NO_WATCH = AskWatch()
"""For those who wait for as long as it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFailure:
    """One failure of a policy.

    Args:
        question: The question that it answers, such as ``balancing``.
        policy: Its name in the configuration.
        kind: What it did.
        said: The same in words.
        is_left_out: Whether it is not asked from here on, for a while.
    """

    question: str
    policy: str
    kind: FailureKind
    said: str
    is_left_out: bool


OnFailure = Callable[[PolicyFailure], None]


class Breaker:
    """One policy's.

    Args:
        question: The question that it answers.
        policy: Its name in the configuration.
        on_failure: Is told of each failure.
        stopwatch: Seconds, monotonic; a host without one says 0 for ever.
        budget_s: How long a decision may take.
        watch: Ends asks that take for ever.
    """

    def __init__(
        self,
        question: str,
        policy: str,
        on_failure: OnFailure,
        stopwatch: Callable[[], float],
        budget_s: float,
        *,
        watch: AskWatch = NO_WATCH,
    ) -> None:
        self._question = question
        self._policy = policy
        self._on_failure = on_failure
        self._stopwatch = stopwatch
        self._budget_s = budget_s
        self._watch = watch
        self._failures = 0.0
        self._num_left_out = 0

    @property
    def is_open(self) -> bool:
        """Whether the policy is not asked now."""
        return self._num_left_out > 0

    def ask(
        self, call: Callable[[], Answer], is_allowed: Callable[[Answer], bool], instead: Callable[[], Answer]
    ) -> Answer:
        """The policy's answer, or the one in its place.

        Args:
            call: Asks the policy.
            is_allowed: Whether it may answer that.
            instead: The answer where it does not answer, or is not asked.
        """
        if self._num_left_out:
            self._num_left_out -= 1
            return instead()
        begun_s = self._stopwatch()

        def looked_at() -> tuple[Answer, bool]:
            answer = call()
            return answer, is_allowed(answer)  # what looks like an answer may raise when it is looked at

        try:
            answer, is_fine = self._watched(looked_at, begun_s)
        except BaseException as error:  # a policy may raise anything, the end of the process included
            self._fail_of(error)
            return instead()
        took_s = self._stopwatch() - begun_s
        if not is_fine:
            self._fail(FailureKind.NONSENSE, answer)
            return instead()
        if took_s > self._budget_s:
            self._fail(FailureKind.SLOW, f"{took_s:.3f} s")
        else:
            self._failures = max(0.0, self._failures - FORGIVEN_FRACTION)
        return answer

    def tell(self, call: Callable[[], object]) -> None:
        """Tells the policy something that wants no answer; nothing, while it is left out. That is no ask."""
        if not self._num_left_out:
            try:
                self._watched(call, self._stopwatch())
            except BaseException as error:
                self._fail_of(error)

    def _watched(self, call: Callable[[], Returned], now_s: float) -> Returned:
        """What it returns. However it ends, and even where it is ended while it returns, nothing is raised later on."""
        self._watch.begin(now_s)
        try:
            return call()
        finally:
            try:
                self._watch.end()
            except PolicyStuck:
                self._watch.end()  # it may have been raised before the first one had begun
                raise

    def _fail_of(self, error: BaseException) -> None:
        """One that had to be ended is not asked again soon: each time costs all requests seconds."""
        if isinstance(error, PolicyStuck):
            self._failures = MOST_FAILURES
            self._fail(FailureKind.STUCK, "it did not return")
        else:
            self._fail(FailureKind.RAISED, error)

    def _fail(self, kind: FailureKind, what: object) -> None:
        self._failures = min(MOST_FAILURES, self._failures + 1.0)
        if self._failures >= MOST_FAILURES:
            self._num_left_out = ASKS_LEFT_OUT
        said = what if kind in (FailureKind.SLOW, FailureKind.STUCK) else _in_words(what)
        self._on_failure(
            PolicyFailure(
                question=self._question, policy=self._policy, kind=kind, said=str(said), is_left_out=self.is_open
            )
        )


def _in_words(what: object) -> str:
    """Of something that may not even have a ``repr``."""
    try:
        return repr(what)[:MOST_WORDS]
    except BaseException:
        return f"a {type(what).__name__} that can't be shown"
