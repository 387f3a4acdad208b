"""What the other client is handed, and what is made of what it measures; `make loadtest-witness` runs it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster.seeds import Seeds
from loadtests.studies.reference_client import (
    OURS,
    REFERENCE,
    WORKLOAD,
    ReferenceResult,
    agrees,
    conclude,
    measured_by_reference_client,
    trace_of,
)
from loadtests.workloads.clients import Clients
from tests.tables import for_each

RESULT = {
    "ttfts": [0.2, 0.4, 0.0],
    "itls": [[0.1, 0.3], [], []],
    "output_lens": [3, 1, 0],
    "errors": ["", "", "Service Unavailable"],
}


def test_the_other_client_gets_the_same_arrivals_and_lengths() -> None:
    entries = [json.loads(line) for line in trace_of(3, 1).splitlines()]
    plan = list(Clients(WORKLOAD, Seeds(3)).arrivals())
    assert [each["timestamp"] for each in entries] == [arrival.at_s for arrival in plan]
    assert [(each["input_length"], each["output_length"]) for each in entries] == [
        (arrival.request.prompt_tokens, arrival.request.output_tokens) for arrival in plan
    ]


def test_what_the_other_client_measured_is_read_and_failures_are_left_out() -> None:
    measured = measured_by_reference_client(json.dumps(RESULT | {"std_e2el_ms": math.nan}), 3)
    assert (measured.num_served, measured.num_planned) == (2, 3)
    assert list(measured.ttft_s) == [0.2, 0.4]
    assert list(measured.tpot_s) == pytest.approx([0.2, 0.0])


@for_each(("ours", "theirs", "is_same"), [(1.04, 1.0, True), (0.96, 1.0, True), (1.06, 1.0, False)])
def test_clients_agree_within_a_twentieth(ours: float, theirs: float, is_same: bool) -> None:
    assert agrees(ours, theirs) is is_same


def one(client: str, ttft_s: float, num_planned: int = 1) -> ReferenceResult:
    return ReferenceResult(client=client, num_planned=num_planned, ttft_s=[ttft_s], tpot_s=[0.01])


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ([one(OURS, 0.2), one(REFERENCE, 0.2)], 0),
        ([one(OURS, 0.3), one(REFERENCE, 0.2)], 1),
        ([one(OURS, 0.2, num_planned=2), one(REFERENCE, 0.2)], 2),
        ([one(OURS, 0.2), one(REFERENCE, 0.2), one(OURS, 0.2), one(REFERENCE, 0.2, num_planned=2)], 2),
    ],
    ids=["the same", "not the same", "half of ours were refused", "theirs were in the second round"],
)
def test_the_status_is_about_everything_that_was_planned(
    found: list[ReferenceResult], status: int, tmp_path: Path, capsys: Any
) -> None:
    """Medians of those that were served say nothing where others were not."""
    assert conclude(found, tmp_path / "witness.json", Console()) == status
    assert ("was served 1 of 2 requests" in capsys.readouterr().out) is (status == 2)


def test_a_client_that_was_never_served_agrees_with_nobody() -> None:
    nothing = ReferenceResult(client=OURS, num_planned=1, ttft_s=[], tpot_s=[]).metrics()
    assert all(math.isnan(value) for value in nothing.values())
    assert not agrees(nothing["ttft_p50_s"], 0.2)
