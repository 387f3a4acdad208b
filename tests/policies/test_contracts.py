from typing import Any

import pytest

from cluster import Seeds
from policies import Need, PolicySpec, Role, build, signals
from policies.admission import AlwaysAdmit
from policies.balancing import LeastWorkLeft
from policies.hedging import NoHedge
from policies.queueing import Fcfs
from policies.shedding import NeverShed


def test_every_policy_of_a_set_is_told_of_a_signal_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []

    def listen(policy: Any, signal: signals.Signal) -> None:
        told.append(policy)

    for kind in (AlwaysAdmit, NeverShed, NoHedge, LeastWorkLeft, Fcfs):
        monkeypatch.setattr(kind, "observe", listen)
    policies = build(PolicySpec(), rng_for=Seeds(1).stream, provided=frozenset(Need))

    policies.observe(signals.Cancelled(request_id="q", attempt_id="q.0", replica_id="a", at_s=0.0))

    expected = [policies.admission, policies.shedding, policies.hedging]
    expected += [policies.balancers[role] for role in Role]
    expected += [policies.queues[role] for role in Role]
    assert {id(each) for each in told} == {id(each) for each in expected}
    assert len(told) == len(expected)
