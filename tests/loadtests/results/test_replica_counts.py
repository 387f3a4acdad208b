"""How many replicas there were, of a simulation's totals and of what a deployment said."""

import pytest

from cluster.sim.run_table import ReplicaTotals
from loadtests.results.replica_counts import held_s, mean_ready, moments_of
from loadtests.results.run_record import Moment

REPLICAS = (
    ReplicaTotals(replica_id="d0", role="decode", pool="decode", up_s=10.0, held_s=10.0),
    ReplicaTotals(replica_id="d1", role="decode", pool="decode", asked_s=2.0, up_s=3.0, held_s=5.0),
    ReplicaTotals(replica_id="p0", role="prefill", pool="prefill", up_s=10.0, held_s=10.0),
)
"""The second of decode was asked for at 2, ready at 4 and gone at 7."""


def test_a_replica_is_ready_from_when_it_has_started_until_it_is_gone() -> None:
    moments = moments_of(REPLICAS)
    assert [each.at_s for each in moments] == [float(second) for second in range(10)]
    assert [each.gauges["ready_replicas_decode"] for each in moments] == [1, 1, 1, 1, 2, 2, 2, 1, 1, 1]
    assert [each.gauges["held_replicas"] for each in moments] == [2, 2, 3, 3, 3, 3, 3, 2, 2, 2]


def test_time_is_held_between_moments() -> None:
    assert held_s(moments_of(REPLICAS)) == pytest.approx(9 * 2 + 5)
    assert held_s([Moment(at_s=0.0, gauges={"held_replicas": 3.0}), Moment(at_s=2.5, gauges={"other": 1.0})]) == 0.0
    assert held_s([]) == 0.0


def test_the_mean_is_of_the_moments_between_two_times() -> None:
    assert mean_ready(moments_of(REPLICAS), 3.0, 5.0) == {"decode": 1.5, "prefill": 1.0}
    assert mean_ready(moments_of(REPLICAS), 30.0, 50.0) == {}
