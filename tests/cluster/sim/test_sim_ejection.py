"""Replicas that are ejected, in virtual time."""

from collections import Counter
from dataclasses import replace
from typing import Any

from cluster.sim.faults import Fault
from cluster.sim.run_table import OUTCOMES, RunTable
from cluster.sim.simulator import simulate
from engines.faults import FaultKind
from policies import PolicyChoice, Role
from routing import Ejection, Readmission, Record
from routing.request.events import Event
from tests.cluster.simulated import dispatcher, fleet, poisson
from tests.tables import for_each

OUTLIER = PolicyChoice(name="outlier", params={"base_s": 4.0})
NEVER = PolicyChoice(name="never_eject")
FAILING = Fault(kind=FaultKind.FAIL, at_s=5.0, for_s=10.0, role=Role.UNIFIED, replica=1)


def run(*faults: Fault, ejection: PolicyChoice = OUTLIER, on_event: Any = None) -> RunTable:
    """Twenty requests a second for half a minute, on four replicas."""
    spec = fleet(4)
    made_from = dispatcher(spec)
    made_from = replace(made_from, policies=replace(made_from.policies, ejection=ejection))
    return simulate(
        spec, made_from, poisson(600, rate_per_s=20.0, seed=3), ["all"], seed=3, faults=faults, on_event=on_event
    )


def outcomes(table: RunTable) -> Counter[str]:
    return Counter(OUTCOMES[index] for index in table.outcome)


def test_a_replica_that_fails_at_once_eats_no_traffic() -> None:
    """It has the least work left of all; what it fails on is done elsewhere, and it gets little more."""
    for ejection in (NEVER, OUTLIER):
        table = run(FAILING, ejection=ejection)
        assert outcomes(table) == {"completed": 600}
        assert (table.attempts > 1).sum() < 30, "some at first, and a few each time that it is tried again"
    assert {each.replica_id for each in table.ejections} <= {"unified-0001.0"}


@for_each("kind", [FaultKind.SLOW, FaultKind.STALL])
def test_a_replica_that_is_slow_or_has_stopped_is_out_after_seconds(kind: FaultKind) -> None:
    factor = 5.0 if kind is FaultKind.SLOW else 1.0
    table = run(Fault(kind=kind, at_s=10.0, for_s=15.0, role=Role.UNIFIED, replica=2, factor=factor))

    assert {each.replica_id for each in table.ejections} == {"unified-0002.0"}
    assert 10.0 < table.ejections[0].at_s < 20.0


def test_when_all_are_slow_nobody_is_out() -> None:
    faults = [
        Fault(kind=FaultKind.SLOW, at_s=10.0, for_s=10.0, role=Role.UNIFIED, replica=number, factor=5.0)
        for number in range(4)
    ]

    assert run(*faults).ejections == ()


def test_every_ejection_is_recorded_with_its_end() -> None:
    decisions: list[Ejection | Readmission] = []

    def listen(gateway: int, now_s: float, event: Event, effects: Any) -> None:
        records = [each.decision for each in effects if isinstance(each, Record)]
        decisions.extend(each for each in records if isinstance(each, Ejection | Readmission))

    table = run(FAILING, on_event=listen)

    kinds = [type(each) for each in decisions]
    assert kinds == [Ejection, Readmission] * len(table.ejections)
