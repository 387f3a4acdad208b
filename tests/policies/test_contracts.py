from dataclasses import replace
from typing import Any

import pytest

from cluster import Seeds
from policies import Need, PolicyChoice, PolicySpec, Role, build, signals
from policies.admission import AlwaysAdmit
from policies.attempt_views import LostAttempt
from policies.balancing import LeastWorkLeft
from policies.decisions import Again, Reason
from policies.degradation import NeverDegrade
from policies.estimators.work_budget import WorkBudget
from policies.hedging import NoHedge
from policies.queueing import Fcfs
from policies.shedding import NeverShed
from policies.views import Geometry
from tests.policies.built import built
from tests.policy_doubles import a_request

CANCELLED = signals.Cancelled(request_id="q", attempt_id="q.0", replica_id="a", at_s=0.0)
SUPERSEDED = signals.Superseded(request_id="q", attempt_id="q.1", replica_id="a", at_s=0.0)
DISPATCHED = signals.Dispatched(request_id="q", attempt_id="q.0", replica_id="a", work_tokens=1, at_s=0.0)


class Ears:
    """Lets built-in policies consume signals, and notes who was told what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.told: list[tuple[object, signals.Signal]] = []

    def give(self, kind: type[Any], *consumes: type[signals.Signal]) -> None:
        self._monkeypatch.setattr(kind, "consumes", frozenset(consumes))
        self._monkeypatch.setattr(
            kind, "observe", lambda policy, signal: self.told.append((policy, signal)), raising=False
        )


@pytest.fixture
def ears(monkeypatch: pytest.MonkeyPatch) -> Ears:
    return Ears(monkeypatch)


def test_every_policy_of_a_set_is_told_of_a_signal_once(ears: Ears) -> None:
    for kind in (AlwaysAdmit, NeverDegrade, NeverShed, NoHedge, LeastWorkLeft, Fcfs):
        ears.give(kind, signals.Cancelled)
    policies = built()

    policies.observe(CANCELLED)

    expected: list[object] = [policies.degradation, policies.admission, policies.shedding, policies.hedging]
    expected += [policies.balancers[role] for role in Role]
    expected += [policies.queues[role] for role in Role]
    assert ears.told == [(each, CANCELLED) for each in expected]


def test_a_policy_is_told_of_what_it_consumes_and_of_nothing_else(ears: Ears) -> None:
    ears.give(AlwaysAdmit, signals.Cancelled)
    ears.give(NeverShed, signals.Superseded, signals.Cancelled)
    policies = built()

    for signal in (DISPATCHED, CANCELLED, SUPERSEDED):
        policies.observe(signal)

    assert ears.told == [
        (policies.admission, CANCELLED),
        (policies.shedding, CANCELLED),
        (policies.shedding, SUPERSEDED),
    ]


def test_a_set_says_which_signals_anybody_wants(ears: Ears) -> None:
    assert built().subscribed == {signals.Started}, "for the budget of work"
    ears.give(AlwaysAdmit, signals.Cancelled)
    ears.give(Fcfs, signals.Superseded, signals.Cancelled)
    assert built().subscribed == {signals.Started, signals.Cancelled, signals.Superseded}


def test_what_several_policies_share_is_told_once() -> None:
    """All that is done twice counts against one account, whoever does it."""
    spec = PolicySpec(hedging=PolicyChoice(name="fixed_delay"), retrying=PolicyChoice(name="backoff"))
    policies = build(spec, rng_for=Seeds(1).stream, provided=frozenset(Need))
    (budget,) = policies.shared
    assert isinstance(budget, WorkBudget)
    assert policies.subscribed == {signals.Started}

    request = replace(a_request(), geometry=Geometry(uncached_tokens=1_000))
    policies.observe(signals.Started(request=request, at_s=0.0))

    assert budget.spend(100, 0.1, 0.0)
    lost = LostAttempt(reason=Reason.REPLICA_LOST, num_retries=0, prefill_tokens=1_000)
    while isinstance(policies.retrying.decide(request, lost, 0.0), Again):
        pass
    assert not budget.spend(10, 1.0, 0.0), "the retries that are free whatever the budget count in it, too"
