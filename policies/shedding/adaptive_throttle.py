"""Each gateway turns away at once the share of what would be turned away later."""

from dataclasses import dataclass
from typing import ClassVar

from policies.contracts import Need, Rng
from policies.decisions import Keep, Reason, Reject, SheddingDecision
from policies.estimators import FadingRate
from policies.params import SHEDDING
from policies.signals import Admitted, Answering, Ended, RequestSignal, Signal
from policies.views import BacklogView, RequestView


@dataclass(slots=True)
class _Asked:
    """The work of a request, until it is counted."""

    work: float


class AdaptiveThrottle:
    """Is this request among those that the fleet gives up now? Perhaps, when many before it got nothing.

    Rule: it goes with a probability of ``(asked - excess * answered) / asked``, over the last while and in work: all
        that has its answer or its refusal, and what of it got a first token. As long as an ``excess``-th of the work is
        answered nobody goes.
    State: the two rates; the work of a request that has no first token yet is its permit.
    Consumes: ``Admitted``, ``Answering`` and ``Ended``: what ends without a first token was not answered.
    Complexity: O(1).
    Failure mode: what it lets in is ``excess`` times what is answered, so there has to be somebody behind it who
        refuses the rest. It draws anew for every request, so who asks again may be let in, and a session of several
        calls hardly ever ends. It remembers an overload for ``window_s`` after its end.
    Source: Google's SRE book, Handling Overload: client-side throttling.

    Args:
        rng: Draws.
        excess: How much more is let in than is answered, over 1.
        window_s: How long what was seen counts.
        most_fraction: That is turned away.
        retry_after_s: What those are told who go.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES, Need.FIRST_TOKEN})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Admitted, Answering, Ended})

    def __init__(
        self,
        *,
        rng: Rng,
        excess: float = 1.5,
        window_s: float = 30.0,
        most_fraction: float = 0.9,
        retry_after_s: float = 5.0,
    ) -> None:
        SHEDDING.check_number("excess", excess, 1, 10)
        SHEDDING.check_positive("window_s", window_s)
        SHEDDING.check_number("most_fraction", most_fraction, 0, 1)
        SHEDDING.check_positive("retry_after_s", retry_after_s)
        self._rng = rng
        self._excess = excess
        self._most_fraction = most_fraction
        self._retry_after_s = retry_after_s
        self._asked = FadingRate(window_s)
        self._answered = FadingRate(window_s)
        self._unsettled = 0.0

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> SheddingDecision:
        self._asked.add(self._unsettled, now_s)  # the one before came no further than admission
        self._unsettled = 0.0
        work = request.geometry.work_s(backlog.stage)
        fraction = self.shed_fraction(now_s)
        if fraction > 0.0 and self._rng.random() < fraction:
            self._asked.add(work, now_s)
            return Reject(reason=Reason.SHED, retry_after_s=self._retry_after_s)
        self._unsettled = work
        return Keep(_Asked(work))

    def shed_fraction(self, now_s: float) -> float:
        asked_per_s = self._asked.per_s_at(now_s)
        if asked_per_s <= 0.0:
            return 0.0
        unanswered_per_s = asked_per_s - self._excess * self._answered.per_s_at(now_s)
        return min(self._most_fraction, max(0.0, unanswered_per_s / asked_per_s))

    def observe(self, signal: RequestSignal) -> None:
        its: _Asked | None = signal.permit
        if its is None:
            return
        if isinstance(signal, Admitted):
            self._unsettled = 0.0
            return
        work, its.work = its.work, 0.0
        self._asked.add(work, signal.at_s)
        if isinstance(signal, Answering):
            self._answered.add(work, signal.at_s)
