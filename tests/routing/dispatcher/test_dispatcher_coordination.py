"""What a dispatcher tells the load coordinator, and what becomes of its answer."""

import math

import pytest

from policies import AdmissionThresholds, PolicyChoice, Reason, Role
from policies.load_reports import FleetEstimate
from routing import LoadDue, OutcomeKind, PushLoad, ThresholdsReceived
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import Dialogue, completed, hedge_after

SHARED = PolicyChoice(name="shared_fraction", params={"period_s": 0.3})
RATES = ServiceRates(new_token_s=1e-3)
EVERYBODY = (1.0, 1.0, 1.0)
NOBODY = (0.0, 0.0, 0.0)


def coordinated() -> Dialogue:
    return Dialogue(shedding=SHARED, rates=RATES, hedging=hedge_after(0.5)).replicas(Role.UNIFIED, "a", "b")


def answer(by_class: tuple[float, ...], version: int = 1) -> ThresholdsReceived:
    estimate = FleetEstimate(demand_per_s=(1.0, 1.0, 1.0), capacity_per_s=1.0)
    return ThresholdsReceived(
        thresholds=AdmissionThresholds(epoch=1, version=version, valid_for_s=1.0, by_class=by_class, estimate=estimate)
    )


def test_a_dispatcher_whose_policy_decides_alone_reports_nothing() -> None:
    talk = Dialogue()
    talk.tell(LoadDue())

    assert talk.dispatcher.report_period_s == math.inf
    assert talk.answer == []


def test_a_dispatcher_reports_when_it_is_reminded() -> None:
    talk = coordinated()
    talk.arrives("q", prompt_tokens=200)
    talk.at(0.3).tell(LoadDue())

    [push] = talk.answer
    assert isinstance(push, PushLoad)
    assert talk.dispatcher.report_period_s == 0.3
    work_s = 0.2 + 0.05  # of the prompt and of fifty tokens
    assert push.report.first_s[1] == pytest.approx(work_s)
    assert push.report.started_s == pytest.approx(work_s)
    assert push.report.num_replicas == 2


def test_whom_the_ledger_gives_up_is_refused_for_good() -> None:
    talk = coordinated()
    talk.tell(answer(EVERYBODY))
    talk.arrives("q")

    outcome = talk.responses["q"]
    assert (outcome.kind, outcome.reason, outcome.may_retry) == (OutcomeKind.REFUSED, Reason.SHED, False)


def test_those_under_way_are_not_touched_by_a_cutoff() -> None:
    talk = coordinated()
    talk.arrives("q")
    talk.tell(answer(EVERYBODY))
    talk.finishes("q.0")

    assert talk.responses == {"q": completed()}


def test_nothing_is_hedged_while_something_is_given_up() -> None:
    talk = coordinated()
    talk.arrives("q")
    talk.tell(answer((0.0, 0.0, 0.5)))
    talk.at(0.5).fires("q.0:hedge")
    assert talk.sends == []

    talk.tell(answer(NOBODY, version=2))
    talk.at(talk.timers["q.0:hedge"]).fires("q.0:hedge")
    assert talk.sends == ["q.1 unified to b"]
