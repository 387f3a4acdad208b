"""Replicas over time, of the runs of a study side by side."""

from pathlib import Path

import msgspec

from loadtests.live.outcome import StudyRun
from loadtests.live.table import replica_tables
from loadtests.results.run_record import Moment
from tests.loadtests.live.studies import WITH, WITHOUT, outcome_of, ran, study


def with_replicas(variant: str, ready: list[int]) -> StudyRun:
    """A run in which the pools had so many replicas, one number for each three seconds."""
    run = ran(variant)
    moments = tuple(
        Moment(at_s=3.0 * index, gauges={"ready_replicas_decode": each}) for index, each in enumerate(ready)
    )
    saved = msgspec.structs.replace(run.saved, record=msgspec.structs.replace(run.saved.record, moments=moments))
    return StudyRun(variant=variant, load=run.load, seed=run.seed, saved=saved)


def test_the_replicas_of_scaled_pools_stand_side_by_side(tmp_path: Path) -> None:
    scaled = study(tmp_path, deployment={"config": "emulated-autoscaling.yaml"})
    outcome = outcome_of(scaled, with_replicas(WITHOUT, [1] * 20), with_replicas(WITH, [1, 2, 6] + [3] * 10))
    (table,) = replica_tables(outcome)
    *_, one, other = table.columns

    assert [column.header.plain for column in table.columns][4:] == [f"decode: {WITHOUT}", f"decode: {WITH}"]  # type: ignore[union-attr]
    assert (list(one.cells)[1], list(other.cells)[1]) == ("1.0", "2.0")
    assert (list(one.cells)[-1], list(other.cells)[-1]) == ("1.0", "-"), "nobody spoke of them any more"


def test_where_pools_keep_their_sizes_there_is_no_table(tmp_path: Path) -> None:
    assert replica_tables(outcome_of(study(tmp_path), with_replicas(WITH, [1]))) == []
