"""All gateways give up the same sessions, as few as the whole fleet has to."""

from typing import ClassVar

from policies.contracts import Need
from policies.decisions import Keep, Reason, Reject, SheddingDecision
from policies.load_reports import NO_THRESHOLDS, AdmissionThresholds, ControlLaw, LoadReport, PerClass
from policies.params import SHEDDING
from policies.shedding.fraction_law import check_law
from policies.shedding.load_account import LoadAccount
from policies.shedding.local_correction import LocalCorrection
from policies.shedding.queue_delay import queue_delay_s
from policies.shedding.rank import key_of, shed_rank
from policies.shedding.session_passes import SessionPasses
from policies.signals import Admitted, Ended, RequestSignal, Signal, Started
from policies.views import BacklogView, RequestView

ALONE_GAIN = 0.25
"""Fraction for each target that requests wait longer, where a gateway has only itself to go by: enough for three times
the capacity within a wait of four targets, and a third of what a queue without a delay would bear."""


class SharedFraction:
    """Is this request among those that the fleet gives up now? Yes, if its session ranks below the fleet's threshold.

    Rule: a load coordinator adds up what all gateways are offered, and says which part of it goes: what is more than
        the fleet can do, put right by how long requests wait (:mod:`policies.shedding.fraction_law`). It is taken from
        the lowest class upwards, and within a class from those whose sessions rank lowest, at every gateway alike. A
        session that has been let in has a session pass for what it sends later. Without a word from the load
        coordinator the last admission thresholds hold for ``freeze_s``; then each gateway corrects them by how long its
        own requests wait.
    State: the admission thresholds, session passes, and what came since the last report.
    Consumes: ``Admitted``, ``Started`` and ``Ended``.
    Complexity: O(1) for a request; nothing waits for the load coordinator.
    Failure mode: single requests gain nothing by it. Capacity is what is sent while others wait or are refused: set
        ``prefill_window_tokens``, so that they wait where that is seen, and where decode replicas are what is short,
        ``credit``. Low ranks are given up until the salt changes. Alone, a gateway knows the new sessions it let in.
    Source: DAGOR's ranking of users (SoCC 2018); a global random drop (Raghavan and others, SIGCOMM 2007) for the one
        fraction; the control law is a PI controller with the demand fed forward.

    Args:
        period_s: Between two exchanges with the load coordinator, seconds.
        target_s: How long requests may wait, seconds.
        proportional_gain: Fraction for each ``target_s`` that they wait longer.
        integral_gain_per_s: The same for every second in which they do.
        most_load: Demand over capacity up to which the control must be stable.
        salt_period_s: After so long others are the first to go.
        freeze_s: How long the last admission thresholds hold when the load coordinator is lost.
        session_idle_s: After so long without a request a session is over.
        most_sessions: Session passes kept at a time.
        retry_after_s: What those are told who go.

    Raises:
        ConfigError: A value out of range, or gains that are not stable.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES, Need.LOAD_COORDINATOR})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Admitted, Started, Ended})

    def __init__(
        self,
        *,
        period_s: float = 0.25,
        target_s: float = 0.5,
        proportional_gain: float = 0.1,
        integral_gain_per_s: float = 0.01,
        most_load: float = 3.0,
        salt_period_s: float = 1800.0,
        freeze_s: float = 5.0,
        session_idle_s: float = 300.0,
        most_sessions: int = 200_000,
        retry_after_s: float = 5.0,
    ) -> None:
        self._law = ControlLaw(
            period_s=period_s,
            target_s=target_s,
            proportional_gain=proportional_gain,
            integral_gain_per_s=integral_gain_per_s,
            salt_period_s=salt_period_s,
        )
        check_law(self._law, most_load)
        SHEDDING.check_number("freeze_s", freeze_s, 0)
        SHEDDING.check_number("most_sessions", most_sessions, 1)
        for name, value in (("session_idle_s", session_idle_s), ("retry_after_s", retry_after_s)):
            SHEDDING.check_positive(name, value)
        self._freeze_s = freeze_s
        self._retry_after_s = retry_after_s
        self._session_passes = SessionPasses(session_idle_s, most_sessions)
        self._account = LoadAccount(target_s)
        self._known = NO_THRESHOLDS
        self._frozen_until_s = float("-inf")
        self._alone = LocalCorrection(target_s, ALONE_GAIN)
        self._is_alone = True

    @property
    def period_s(self) -> float:
        return self._law.period_s

    @property
    def thresholds(self) -> PerClass:
        """Those in force."""
        return self._alone.thresholds if self._is_alone else self._known.by_class

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> SheddingDecision:
        self._look_at_clock(now_s)
        work = self._account.asked(request, backlog, now_s)
        key, rank = key_of(request), request.priority.rank
        if request.session_id and (session_pass := self._session_passes.show(key, now_s)):
            return Keep(self._account.later(rank, work, session_pass[rank]))
        if self._sheds(key, rank, work, queue_delay_s(backlog, now_s), now_s):
            may_retry = self._is_alone  # elsewhere the admission threshold is perhaps another one
            return Reject(reason=Reason.SHED, retry_after_s=self._retry_after_s, may_retry=may_retry)
        if request.session_id:
            self._session_passes.give(key, self._known.estimate.first_per_s, now_s)
        return Keep(self._account.first(rank, work, self.thresholds[rank]))

    def shed_fraction(self, now_s: float) -> float:
        self._look_at_clock(now_s)
        return self._alone.fraction if self._is_alone else self._agreed_fraction()

    def _agreed_fraction(self) -> float:
        demand = self._known.estimate.demand_per_s
        shed = sum(threshold * work for threshold, work in zip(self._known.by_class, demand, strict=True))
        return shed / sum(demand) if shed else 0.0

    def report(self, now_s: float) -> LoadReport:
        return self._account.report(self._law, self._known, self._session_passes.news(), now_s)

    def take_in(self, thresholds: AdmissionThresholds, now_s: float) -> None:
        if thresholds.age <= self._known.age:
            return
        self._known = thresholds
        self._frozen_until_s = now_s + thresholds.valid_for_s + self._freeze_s
        self._is_alone = False
        self._session_passes.take_in(thresholds.session_passes, thresholds.estimate.first_per_s, now_s)

    def observe(self, signal: RequestSignal) -> None:
        self._account.observe(signal)

    def _look_at_clock(self, now_s: float) -> None:
        if not self._is_alone and now_s > self._frozen_until_s:
            self._is_alone = True
            self._alone.begin(self._agreed_fraction(), now_s)

    def _sheds(self, key: int, rank: int, work: float, wait_s: float, now_s: float) -> bool:
        if self._is_alone:
            self._alone.note(rank, work, wait_s, now_s)
        return shed_rank(key, self._known.salt) < self.thresholds[rank]
