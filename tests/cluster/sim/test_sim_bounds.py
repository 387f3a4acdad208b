"""What a simulated run's requests lose their time to, request by request."""

from dataclasses import replace

import numpy as np
import pytest

from cluster.sim.faults import Fault
from cluster.sim.run_table import OUTCOMES, RunTable
from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Traffic
from engines.faults import FaultKind
from policies.capacity.bounds import Bound, what_binds
from policies.views import Role
from tests.cluster.simulated import dispatcher, fleet, poisson
from tests.tables import for_each


def ran(spec: FleetSpec, traffic: Traffic, *faults: Fault) -> RunTable:
    return simulate(spec, dispatcher(spec), traffic, ["all"], seed=1, faults=faults)


def bound_of(table: RunTable) -> Bound:
    sums = table.spent_s.sum(axis=0, dtype=np.float64)
    return what_binds(dict(zip(Bound, map(float, sums), strict=True))).bound


@for_each("is_disaggregated", [False, True], ids=["unified", "prefill_decode"])
def test_every_second_of_every_request_is_accounted_for_whatever_happens_to_it(is_disaggregated: bool) -> None:
    role = Role.DECODE if is_disaggregated else Role.UNIFIED
    crash = Fault(kind=FaultKind.CRASH, at_s=2.0, for_s=3.0, role=role, replica=1)
    table = ran(
        fleet(3, is_disaggregated=is_disaggregated, num_gateways=2), poisson(400, rate_per_s=40.0, seed=1), crash
    )
    assert table.spent_s.shape == (len(table), len(Bound))
    assert table.spent_s.sum(axis=1) == pytest.approx(table.end_s - table.sent_s, abs=1e-4)
    assert (table.spent_s >= -1e-6).all()
    lost_s = table.spent_s[:, list(Bound).index(Bound.LOST)]
    assert 0 < np.count_nonzero(lost_s) < len(table) / 2
    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}


def test_an_idle_fleet_loses_little() -> None:
    assert bound_of(ran(fleet(4), poisson(30, rate_per_s=0.5, seed=2))) is Bound.ENGINE


def test_a_fleet_with_more_to_do_than_it_has_slots_makes_requests_queue() -> None:
    spec = fleet(1)
    narrow = replace(spec.pools[0], waiting_fraction=0.0, limits=replace(spec.pools[0].limits, max_num_seqs=4))
    assert bound_of(ran(replace(spec, pools=(narrow,)), poisson(200, rate_per_s=40.0, seed=3))) is Bound.QUEUE


def test_steps_that_are_shared_by_many_make_tokens_slow() -> None:
    assert bound_of(ran(fleet(1), poisson(300, rate_per_s=15.0, seed=4))) is Bound.MEMORY


def test_a_link_that_is_slow_makes_requests_wait_for_their_kv() -> None:
    spec = fleet(3, is_disaggregated=True)
    pools = tuple(replace(each, profile=each.profile.with_link(2e8)) for each in spec.pools)
    assert bound_of(ran(replace(spec, pools=pools), poisson(60, rate_per_s=2.0, seed=5))) is Bound.TRANSFER


def test_a_gateway_without_time_for_its_requests_is_the_front_end() -> None:
    spec = replace(fleet(4), gateway_request_s=0.1)
    assert bound_of(ran(spec, poisson(200, rate_per_s=12.0, seed=6))) is Bound.FRONT_END
