"""Replicas that stand still: what they had goes on elsewhere, and they get nothing more until they go on."""

from dataclasses import replace
from typing import Any

from cluster.sim.faults import Fault
from cluster.sim.run_table import OUTCOMES, RunTable
from cluster.sim.simulator import simulate
from cluster.sim.traffic import Arrival
from engines.faults import FaultKind
from policies.decisions import EjectionReason
from policies.views import Role
from routing.request.effects import Ejection, Readmission, Record, Send
from tests.cluster.simulated import dispatcher, fleet, poisson
from tests.tables import for_each

STALLED_S, FOR_S = 5.0, 20.0


def run(
    replicas: int, *faults: Fault, apart: bool = False, on_event: Any = None, **more: Any
) -> tuple[RunTable, list[Arrival]]:
    spec = fleet(replicas, is_disaggregated=apart, **more)
    traffic = poisson(600, rate_per_s=20.0, seed=3)
    table = simulate(spec, dispatcher(spec), traffic, ["all"], seed=3, faults=faults, on_event=on_event)
    return table, list(traffic.plan)


def stall(role: Role, replica: int = 0, for_s: float = FOR_S) -> Fault:
    return Fault(kind=FaultKind.STALL, at_s=STALLED_S, for_s=for_s, role=role, replica=replica)


def e2e_s(table: RunTable) -> Any:
    return table.end_s - table.scheduled_s


@for_each("num_gateways", [1, 3])
@for_each("role", [Role.UNIFIED, Role.PREFILL, Role.DECODE])
def test_every_answer_is_whole_and_goes_on_within_three_seconds(role: Role, num_gateways: int) -> None:
    apart = role is not Role.UNIFIED
    (calm, plan), (table, _) = (
        run(3, *faults, apart=apart, num_gateways=num_gateways) for faults in ((), (stall(role),))
    )

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    wanted = {arrival.request.logical_request: arrival.request.output_tokens for arrival in plan}
    assert dict(zip(table.logical_request.tolist(), table.output_tokens.tolist(), strict=True)) == wanted
    assert e2e_s(table).max() < e2e_s(calm).max() + 3.5
    assert table.attempts.max() > calm.attempts.max()


def test_it_gets_nothing_more_until_it_goes_on() -> None:
    sent_s: list[float] = []
    decisions: list[tuple[float, Ejection | Readmission]] = []

    def note(_: int, now_s: float, event: Any, effects: Any) -> None:
        sent_s.extend(now_s for each in effects if isinstance(each, Send) and each.replica_id == "unified-0000.0")
        records = [each.decision for each in effects if isinstance(each, Record)]
        decisions.extend((now_s, each) for each in records if isinstance(each, Ejection | Readmission))

    run(3, stall(Role.UNIFIED), on_event=note)

    (out_s, out), (back_s, back) = decisions
    assert isinstance(out, Ejection)
    assert (out.replica_id, out.reason) == ("unified-0000.0", EjectionReason.STALLED)
    assert STALLED_S + 2.0 <= out_s <= STALLED_S + 2.75
    assert isinstance(back, Readmission)
    assert STALLED_S + FOR_S <= back_s <= STALLED_S + FOR_S + 1.0
    assert not [each for each in sent_s if out_s < each < back_s]
    assert max(sent_s) > back_s


def test_the_last_one_of_a_pool_keeps_what_it_has() -> None:
    table, _ = run(1, stall(Role.UNIFIED, for_s=6.0))

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert table.attempts.max() == 1
    assert table.ejections == ()


def test_of_two_that_stand_still_one_stays_and_takes_what_comes() -> None:
    table, _ = run(2, stall(Role.UNIFIED), stall(Role.UNIFIED, 1, for_s=8.0))

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}


def test_a_decode_does_not_wait_for_the_kv_of_a_prefill_replica_that_stands_still() -> None:
    spec = fleet(2, is_disaggregated=True)
    slow_link = tuple(
        replace(pool, profile=pool.profile.with_link(2e8)) if pool.role is Role.DECODE else pool for pool in spec.pools
    )
    spec = replace(spec, pools=slow_link)
    traffic = poisson(200, rate_per_s=10.0, seed=5)
    table = simulate(spec, dispatcher(spec), traffic, ["all"], seed=5, faults=[stall(Role.PREFILL)])

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}


def test_where_nobody_watches_requests_wait_until_it_goes_on() -> None:
    table, _ = run(3, stall(Role.UNIFIED, for_s=8.0), stall_after_s=0.0)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert table.attempts.max() == 1
    assert e2e_s(table).max() > 8.0
