"""The last requests that a gateway gave no answer to, for people who watch it: why and of which class, not whose."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deployments.openai.errors import error_of
from policies.decisions import Reason
from policies.views import RequestView
from routing.request.effects import Outcome, OutcomeKind

NUM_KEPT = 50
INVALID = "invalid"
"""What was refused before a dispatcher saw it, because of the client's own mistake."""
SERVER_ERROR = 500
"""HTTP statuses from here on are not the client's fault."""
_TOLD = frozenset({OutcomeKind.REFUSED, OutcomeKind.FAILED})
_REASONS = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One request without an answer. Neither its tenant nor anything that it asked is here.

    Args:
        number: Counts from 1 at each gateway.
        at_s: When, in seconds of the gateway's clock.
        kind: ``refused``, ``failed``, or ``invalid``.
        reason: A :class:`policies.decisions.Reason`, or an error's code.
        says: What its client was told of the reason; empty when that was about its own request.
        priority: Its class; empty when it did not get so far.
        lane: Its lane, where there are several.
    """

    number: int
    at_s: float
    kind: str
    reason: str
    says: str = ""
    priority: str = ""
    lane: str = ""


class RecentRefusals:
    """A few of them, the oldest of which go first.

    Args:
        now_s: The gateway's clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._number = 0
        self._kept: deque[Refusal] = deque(maxlen=NUM_KEPT)

    def note_outcome(self, request: RequestView, lane: str, outcome: Outcome) -> None:
        """How a request ended; only those are kept that were refused or failed."""
        if outcome.kind in _TOLD:
            error = error_of(outcome)
            self._keep(outcome.kind.value, error.code, error.message, request.priority.value, lane)

    def note_error(self, status: int, code: str) -> None:
        """An error response; what has a reason among the outcomes is known from there."""
        if code not in _REASONS:
            self._keep(OutcomeKind.FAILED.value if status >= SERVER_ERROR else INVALID, code)

    def latest(self) -> Sequence[Refusal]:
        """All that are kept, in order."""
        return tuple(self._kept)

    def _keep(self, kind: str, reason: str, says: str = "", priority: str = "", lane: str = "") -> None:
        self._number += 1
        self._kept.append(
            Refusal(
                number=self._number,
                at_s=self._now_s(),
                kind=kind,
                reason=reason,
                says=says,
                priority=priority,
                lane=lane,
            )
        )
