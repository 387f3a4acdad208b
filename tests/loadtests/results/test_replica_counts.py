"""How many replicas there were, of a simulation's totals and of what a deployment said, and how often pools turned."""

from collections.abc import Sequence

import pytest

from cluster.sim.run_table import ReplicaTotals
from loadtests.results.replica_counts import direction_changes, held_s, mean_ready, moments_of
from loadtests.results.run_record import Moment
from tests.tables import for_each

END_S = 3_000.0
Life = tuple[str, float, float]
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


def lived(lives: Sequence[Life]) -> list[ReplicaTotals]:
    return [
        ReplicaTotals(
            replica_id=str(number), role="decode", pool=pool, asked_s=from_s, up_s=0.0, held_s=until_s - from_s
        )
        for number, (pool, from_s, until_s) in enumerate(lives)
    ]


ROWS: dict[str, tuple[Sequence[Life], int]] = {
    "nobody": ([], 0),
    "what is there all the time": ([("a", 0, END_S), ("a", 0, END_S)], 0),
    "growth to the end": ([("a", 0, END_S), ("a", 300, END_S), ("a", 400, END_S)], 0),
    "growth, then a fall": ([("a", 0, END_S), ("a", 300, 700), ("a", 400, 800)], 1),
    "a fall, then growth": ([("a", 0, 300), ("a", 0, END_S), ("a", 400, END_S)], 1),
    "up and down and up": ([("a", 0, END_S), ("a", 300, 400), ("a", 500, END_S)], 2),
    "the same, and ten minutes between": ([("a", 0, END_S), ("a", 300, 400), ("a", 1000, END_S)], 1),
    "one goes as another one comes": ([("a", 0, 500), ("a", 0, END_S), ("a", 500, END_S)], 0),
    "two pools in turn": ([("a", 0, END_S), ("b", 0, 700), ("a", 300, 400), ("b", 0, END_S)], 1),
    "the worse of two pools": ([("a", 0, END_S), ("b", 0, END_S), ("a", 9, 20), ("b", 5, 6), ("b", 7, 8)], 3),
}


@for_each(("lives", "changes"), ROWS.values(), ROWS)
def test_turns_are_counted_in_the_worst_ten_minutes_of_the_worst_pool(lives: Sequence[Life], changes: int) -> None:
    assert direction_changes(lived(lives)) == changes


def test_an_end_that_is_off_by_a_rounding_is_no_fall() -> None:
    replicas = lived([("a", 0.0, 0.3), ("a", 0.1, 0.3 - 1e-12)])

    assert direction_changes(replicas) == 0
