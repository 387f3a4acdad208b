"""What vLLM's client is handed, and what is made of what it measured."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from loadtests.drivers.live_run import LivePlan
from loadtests.live.plans import run_plan
from loadtests.live.reference_client import table_of, trace_of
from tests.loadtests.live.studies import WITH, study


def plan(folder: Path) -> LivePlan:
    return run_plan(study(folder).measured_for(1.0), WITH, 1.0, 1.0, 3)


def result(of: LivePlan) -> dict[str, Any]:
    """All but the first request failed."""
    failed = len(list(of.clients().arrivals())) - 1
    return {
        "ttfts": [0.2] + [0.0] * failed,
        "itls": [[0.1, 0.3]] + [[]] * failed,
        "output_lens": [3] + [0] * failed,
        "errors": [""] + ["Service Unavailable"] * failed,
    }


def test_the_other_client_gets_the_same_arrivals_and_lengths(tmp_path: Path) -> None:
    entries = [json.loads(line) for line in trace_of(plan(tmp_path)).splitlines()]
    arrivals = list(plan(tmp_path).clients().arrivals())

    assert [each["timestamp"] for each in entries] == [arrival.at_s for arrival in arrivals]
    assert [(each["input_length"], each["output_length"]) for each in entries] == [
        (arrival.request.prompt_tokens, arrival.request.output_tokens) for arrival in arrivals
    ]
    blocks = [block for each in entries for block in each["hash_ids"]]
    assert len(set(blocks)) == len(blocks) == sum(math.ceil(each["input_length"] / 16) for each in entries)


def test_what_the_other_client_measured_is_a_run_in_which_failures_are_misses(tmp_path: Path) -> None:
    of = plan(tmp_path)
    table = table_of(json.dumps(result(of) | {"std_e2el_ms": math.nan}), of)

    assert table.first_token_s[0] - table.sent_s[0] == pytest.approx(0.2)
    assert table.end_s[0] - table.first_token_s[0] == pytest.approx(0.4)
    assert (table.outcome == 0).sum() == 1 < len(table)


@pytest.mark.parametrize("text", ["<html>", "{}", '{"ttfts": [], "itls": [], "output_lens": [], "errors": []}'])
def test_a_result_that_is_not_of_the_plan_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="can't be read"):
        table_of(text, plan(tmp_path))
