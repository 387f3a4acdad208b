"""A run's folder: what is written is read back, and what is no run is refused."""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.sim.run_table import ROW_TYPE
from loadtests.results.metrics import ALL, MetricValue
from loadtests.results.run_folder import ASYNCIO, REQUESTS_FILE, RUN_FILE, SavedRun, read, write
from loadtests.results.run_record import CheckResult, Moment, RequestDetails, RunRecord, defined
from loadtests.results.slo import ClassSlo
from policies.errors import ConfigError
from tests.loadtests.live_scenarios import health
from tests.loadtests.run_tables import RequestRow, run_table, served

TABLE = run_table(
    served(0, 1.0, 0.2, 1.2, 11),
    RequestRow(
        logical_request=1, at_s=2.0, e2e_s=0.1, outcome="refused", reason="shed", traffic_class=1, is_last=False
    ),
    RequestRow(
        logical_request=1,
        at_s=2.0,
        e2e_s=9.0,
        outcome="abandoned",
        traffic_class=1,
        retry_index=1,
        session=1,
        gateway=1,
    ),
    classes=("chat", "document"),
)
DETAILS = (
    RequestDetails(lane="short", longest_gap_s=0.3, stages_s={"queue": 0.1}),
    RequestDetails(),
    RequestDetails(lane="long"),
)
HEALTH = health(errors={"HTTP 503 shed": 1})


def record(**changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "scenario": "ragged",
        "description": "Do the chats wait?",
        "driver": ASYNCIO,
        "variant": "policy",
        "target": "http://127.0.0.1:8000",
        "seed": 1,
        "started_at": "2026-01-01T00:00:00+00:00",
        "duration_s": 60.0,
        "warm_up_s": 5.0,
        "rate_fraction": 0.1,
        "traffic_classes": ("chat", "document"),
        "slos": {"chat": ClassSlo(ttft_s=1.0), "document": ClassSlo(e2e_s=9.0)},
        "metrics": {ALL: {"ok_fraction": MetricValue(value=0.5, samples=2)}},
        "checks": (CheckResult(text="ok_fraction >= 0.9", value=0.5, verdict="missed"),),
        "verdict": "FAIL",
        "problems": (),
        "notes": ("a note",),
        "health": HEALTH,
        "moments": (Moment(at_s=1.0, gauges={"queue_requests": 3.0}),),
        "versions": {"python": "3.11"},
    }
    return RunRecord(**values | changes)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "run", SavedRun(record=record(), table=TABLE, details=DETAILS))
    saved = read(tmp_path / "run")
    assert saved.record == record()
    for name in ROW_TYPE.names or ():
        np.testing.assert_array_equal(getattr(saved.table, name), getattr(TABLE, name), err_msg=name)
        assert getattr(saved.table, name).dtype == getattr(TABLE, name).dtype, name
    assert [each.lane for each in saved.details] == ["short", "", "long"]
    assert saved.details[0].stages_s == {"queue": 0.1}
    assert math.isnan(saved.details[1].longest_gap_s)


def test_a_driver_that_knows_no_details_leaves_none(tmp_path: Path) -> None:
    write(tmp_path, SavedRun(record=record(health=None), table=TABLE, details=()))
    assert [each.lane for each in read(tmp_path).details] == ["", "", ""]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a folder with run\.json and requests\.jsonl\.gz"):
        read(tmp_path)


def test_a_run_of_another_version_is_refused(tmp_path: Path) -> None:
    write(tmp_path, SavedRun(record=record(version=99), table=TABLE, details=()))
    with pytest.raises(ConfigError, match="a run of version 2; the release that made this one reads it"):
        read(tmp_path)


def test_requests_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    write(tmp_path, SavedRun(record=record(), table=TABLE, details=()))
    whole = (tmp_path / REQUESTS_FILE).read_bytes()
    (tmp_path / REQUESTS_FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="a folder with"):
        read(tmp_path)


def test_requests_that_are_gone_are_refused_and_not_drawn_as_an_empty_run(tmp_path: Path) -> None:
    wanted = {ALL: {"offered_requests": MetricValue(value=2.0, samples=1)}}
    write(tmp_path, SavedRun(record=record(metrics=wanted), table=TABLE, details=DETAILS))
    (tmp_path / REQUESTS_FILE).write_bytes(gzip.compress(b""))

    with pytest.raises(ConfigError, match=f"{REQUESTS_FILE}: got 'no line'"):
        read(tmp_path)


def test_each_request_is_a_line_with_names_for_numbers(tmp_path: Path) -> None:
    write(tmp_path, SavedRun(record=record(), table=TABLE, details=DETAILS))
    lines = gzip.decompress((tmp_path / REQUESTS_FILE).read_bytes()).decode().splitlines()
    assert '"outcome":"refused","reason":"shed"' in lines[1]
    assert '"traffic_class":"document"' in lines[1]
    assert (tmp_path / RUN_FILE).read_text().startswith("{\n")


def test_metrics_that_are_not_defined_are_left_out() -> None:
    metrics = {ALL: {"a": MetricValue(value=math.nan, samples=0), "b": MetricValue(value=1.0, samples=1)}}
    assert defined(metrics) == {ALL: {"b": MetricValue(value=1.0, samples=1)}}
