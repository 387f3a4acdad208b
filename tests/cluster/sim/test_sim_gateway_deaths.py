"""Gateways that die: their clients' connections break, replicas stop, and nothing of it is left."""

from collections.abc import Sequence
from typing import Any

import pytest

from cluster.sim.faults import GatewayDeath, GatewayPause, Reconfiguration
from cluster.sim.gateway import SimGateway
from cluster.sim.replica import SimReplica
from cluster.sim.run_table import OUTCOMES, RunTable
from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec
from policies.errors import ConfigError
from tests.cluster.simulated import PlainTraffic, dispatcher, fleet, poisson
from tests.tables import for_each

DIES_S, FOR_S = 10.0, 4.0


def run(
    num_gateways: int, *faults: Any, traffic: PlainTraffic | None = None, **more: Any
) -> tuple[RunTable, list[str]]:
    """The table, and what is left at the end."""
    spec: FleetSpec = fleet(2, num_gateways=num_gateways, kv_lease_s=5.0, **more)
    left: list[str] = []

    def at_rest(gateways: Sequence[SimGateway], replicas: Sequence[SimReplica]) -> None:
        left.extend(what for each in gateways for what, number in each.left().items() if number)
        left.extend(each.replica_id for each in replicas if not each.is_idle)

    traffic = traffic or poisson(1000, rate_per_s=40.0, seed=3)
    return simulate(spec, dispatcher(spec), traffic, ["all"], seed=3, faults=faults, at_rest=at_rest), left


def death(gateway: int = 0) -> GatewayDeath:
    return GatewayDeath(at_s=DIES_S, for_s=FOR_S, gateway=gateway)


def outcomes(table: RunTable) -> list[str]:
    return [OUTCOMES[index] for index in table.outcome]


@for_each("apart", [False, True])
def test_its_requests_break_at_once_and_the_others_go_on(apart: bool) -> None:
    table, left = run(2, death(), is_disaggregated=apart)

    broken = [row for row, outcome in enumerate(outcomes(table)) if outcome != "completed"]
    assert 0 < len(broken) < 60
    assert {outcomes(table)[row] for row in broken} == {"failed"}
    assert {float(table.end_s[row]) for row in broken} == {DIES_S}
    assert {int(table.gateway[row]) for row in broken} == {0}
    assert left == []


def test_the_others_get_what_comes_and_it_takes_part_again() -> None:
    table, _ = run(2, death())
    sent_s = table.scheduled_s
    away, after = (sent_s > DIES_S) & (sent_s < DIES_S + FOR_S), sent_s > DIES_S + FOR_S
    assert set(table.gateway[away].tolist()) == {1}
    assert set(table.gateway[after].tolist()) == {0, 1}
    assert {OUTCOMES[index] for index in table.outcome[after]} == {"completed"}


def test_where_there_is_no_other_one_requests_wait_for_the_next() -> None:
    table, left = run(1, death())
    came_meanwhile = (table.scheduled_s > DIES_S) & (table.scheduled_s < DIES_S + FOR_S)
    assert {OUTCOMES[index] for index in table.outcome[came_meanwhile]} == {"completed"}
    assert (table.first_token_s[came_meanwhile] >= DIES_S + FOR_S).all()
    assert left == []


def test_one_that_stands_still_may_die_of_it_and_what_it_had_not_read_breaks_too() -> None:
    pause = GatewayPause(at_s=DIES_S - 2.0, for_s=60.0, gateway=0)
    table, left = run(1, pause, death())
    unread = (table.scheduled_s > DIES_S - 2.0) & (table.scheduled_s < DIES_S)
    assert {OUTCOMES[index] for index in table.outcome[unread]} == {"failed"}
    assert outcomes(table)[-1] == "completed", "the next one does not stand still"
    assert left == []


def test_the_next_one_is_configured_as_the_others_were_meanwhile() -> None:
    spec = fleet(2, num_gateways=1)
    changed = Reconfiguration(at_s=DIES_S + 1.0, dispatcher=dispatcher(spec, balancing="power_of_two"))
    table, left = run(1, death(), changed)
    assert {OUTCOMES[index] for index in table.outcome[table.scheduled_s > DIES_S]} == {"completed"}
    assert left == []


def test_a_run_with_deaths_is_the_same_again() -> None:
    one, two = (run(3, death(), death(1), death(2))[0] for _ in range(2))
    assert one.end_s.tolist() == two.end_s.tolist()
    assert one.outcome.tolist() == two.outcome.tolist()


def test_there_has_to_be_such_a_gateway() -> None:
    with pytest.raises(ConfigError, match=r"faults\.gateway"):
        run(2, death(2))
    with pytest.raises(ConfigError, match="gateway"):
        death(-1)
