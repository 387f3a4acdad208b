"""Dashboards, alert rules and the README's table name metrics that there are, with labels that they have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from deployments.config import ROOT
from deployments.dashboards.__main__ import FOLDER, main
from deployments.dashboards.library import DASHBOARDS
from tests.deployments.exported_metrics import families, metric_names, series_names

PROMETHEUS = FOLDER.parent / "prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
QUERIES = [
    pytest.param(query.expression, id=f"{dashboard.name}: {panel.title} {number}")
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for number, query in enumerate(panel.queries)
]


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """Every metric that is selected, with its matchers."""

    def enter(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        return True

    found: list[promql_parser.VectorSelector] = []
    promql_parser.walk(promql_parser.parse(expression), enter)
    return iter(found)


def plain(expression: str) -> str:
    """Without Grafana's variables."""
    return expression.replace("${source}", "").replace("$__rate_interval", "5m")


def labels_of() -> dict[str, set[str]]:
    """The labels of each series."""
    found: dict[str, set[str]] = {}
    for family in families():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        if not family.samples:
            found.setdefault(family.name, set())
    return found


@pytest.mark.parametrize("expression", QUERIES)
def test_every_query_of_a_dashboard_names_metrics_and_labels_that_exist(expression: str) -> None:
    known, found = labels_of(), list(selectors(plain(expression)))
    assert found
    for selector in found:
        assert selector.name in series_names()
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert labels <= known.get(selector.name, labels), selector.name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_rule_names_metrics_that_exist(rule: dict[str, Any]) -> None:
    names = {selector.name for selector in selectors(rule["expr"])}
    assert names
    assert names <= series_names() | RECORDED


@pytest.mark.parametrize("rule", [rule for rule in RULES if "alert" in rule], ids=lambda rule: rule["alert"])
def test_every_alert_says_how_bad_it_is_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description"}


def test_what_is_promised_is_watched_by_alerts() -> None:
    watched = {selector.name for rule in RULES for selector in selectors(rule["expr"])}
    assert watched >= {
        "spillway_lane_promises_total",
        "spillway_queue_oldest_age_seconds",
        "spillway_shed_fraction",
        "spillway_ejected_replicas",
    }


def test_the_dashboards_on_disk_are_those_that_are_written(tmp_path: Path) -> None:
    main(["--folder", str(tmp_path)])
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == {
        path.name: path.read_text() for path in tmp_path.glob("*.json")
    }


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_panels_do_not_lie_on_one_another(dashboard: Any) -> None:
    document = json.loads((FOLDER / f"{dashboard.name}.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])


def test_the_readme_lists_every_metric_and_no_other() -> None:
    readme = (ROOT / "README.md").read_text()
    [table] = re.findall(r"\n\| Name \| Type, labels \|.*?\n\n", readme, flags=re.DOTALL)
    listed = [row.split("`")[1] for row in table.strip().splitlines()[2:]]
    assert sorted(listed) == sorted(metric_names())
