"""Old names in YAML files are read as the names of now, with one warning each."""

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.config import renamed
from cluster.config.renamed import modernised, rewritten
from policies.errors import ConfigError


@pytest.fixture(autouse=True)
def nothing_warned_of() -> Iterator[None]:
    renamed._warned.clear()
    yield
    renamed._warned.clear()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"gateway": {"suspect_s": 3}}, {"gateway": {"quarantine_s": 3}}),
        ({"gateway": {"ledger": True}}, {"gateway": {"load_coordinator": True}}),
        ({"dispatcher": {"suspect_s": 3}}, {"dispatcher": {"quarantine_s": 3}}),
        ({"fleet": {"ledger_delay_s": 0.1}}, {"fleet": {"load_coordinator_delay_s": 0.1}}),
        ({"ledger_outages": [{"at_s": 1}]}, {"load_coordinator_outages": [{"at_s": 1}]}),
        (
            {"marks": [{"metric": "attempts_per_intent", "at_most": 2}]},
            {"checks": [{"metric": "attempts_per_request", "at_most": 2}]},
        ),
        ({"clients": {"max_tries": 3}}, {"clients": {"max_requests": 3}}),
        ({"policies": {"hedging": "stretch"}}, {"policies": {"hedging": "slowdown"}}),
        (
            {"baselines": {"other": {"hedging": {"name": "stretch", "params": {"max_stretch": 3}}}}},
            {"baselines": {"other": {"hedging": {"name": "slowdown", "params": {"max_slowdown": 3}}}}},
        ),
        (
            {"degradation": {"name": "all_of", "params": {"policies": ["time_box", {"name": "cap_output"}]}}},
            {"degradation": {"name": "all_of", "params": {"policies": ["output_time_limit", {"name": "cap_output"}]}}},
        ),
        (
            {"policies": {"lanes": {"classifier": "adaptive_cutoffs"}}},
            {"policies": {"lanes": {"classifier": "adaptive_lane_borders"}}},
        ),
        (
            {"admission": {"name": "concurrency_limit", "params": {"signal": "stretch"}}},
            {"admission": {"name": "concurrency_limit", "params": {"signal": "slowdown"}}},
        ),
    ],
)
def test_an_old_name_is_read_as_the_one_of_now(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert modernised(old) == new
    assert modernised(new) == new


def test_a_name_is_old_only_where_it_was_one() -> None:
    document = {"ledger": True, "engine": {"suspect_s": 1}, "name": "stretch", "queueing": "stretch"}
    assert modernised(document) == document


def test_each_old_name_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        modernised({"gateway": {"suspect_s": 3}, "policies": {"hedging": "stretch"}})
    assert [each.getMessage().partition(";")[0] for each in caplog.records] == [
        "gateway.suspect_s is called quarantine_s now",
        "hedging: stretch is called hedging: slowdown now",
    ]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"gateway": {"suspect_s": 3, "quarantine_s": 4}}, "gateway.suspect_s"),
        (
            {"hedging": {"name": "slowdown", "params": {"max_stretch": 3, "max_slowdown": 4}}},
            "hedging.params.max_stretch",
        ),
    ],
)
def test_both_names_at_once_are_an_error(document: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match="alone, which is its name now") as caught:
        modernised(document)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  ledger: true  # the ledger: stays", "  load_coordinator: true  # the ledger: stays"),
        ("  - {metric: tries_per_intent, at_most: 2}", "  - {metric: sends_per_request, at_most: 2}"),
        ("  - {name: time_box, params: {box_s: 1}}", "  - {name: output_time_limit, params: {limit_s: 1}}"),
        ("  hedging: stretch", "  hedging: slowdown"),
        ("  policies: [cap_output, time_box]", "  policies: [cap_output, output_time_limit]"),
        ("  description: a stretch of time", "  description: a stretch of time"),
        ("  my_ledger: true", "  my_ledger: true"),
    ],
)
def test_a_line_gets_the_names_of_now(line: str, expected: str) -> None:
    assert rewritten(line) == expected
