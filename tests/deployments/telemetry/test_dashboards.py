"""Dashboards and alert rules name metrics that there are, with labels that they have."""

import json
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

from deployments.dashboards.__main__ import FOLDER, main
from deployments.dashboards.grafana_json import document_of
from deployments.dashboards.library import DASHBOARDS
from deployments.dashboards.panels import Dashboard
from deployments.dashboards.queries import Query
from deployments.reference.counted import families
from tests.deployments.exported_metrics import mirrored_labels, series_labels
from tests.deployments.promql_labels import Known, QueryError, result_labels
from tests.tables import for_each

PROMETHEUS = FOLDER.parent / "prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
QUERIES = [query for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.queries]
SOURCES = {"": series_labels, "ray_": mirrored_labels}
"""What Grafana's variable *exported by* stands for, and the series that there are then."""
of_every_source = for_each("source", SOURCES, ids=["gateways", "Ray's agents"])


@cache
def known(source: str) -> Known:
    return SOURCES[source]()


@cache
def known_to_rules() -> Known:
    """Rules go by the gateways' names, and by those that other rules record."""
    found = dict(known(""))
    for rule in RULES:
        if "record" in rule:
            found[rule["record"]] = set(result_labels(rule["expr"], found))
    return found


def plain(expression: str, source: str) -> str:
    """Without Grafana's variables."""
    return expression.replace("${source}", source).replace("$__rate_interval", "5m")


def watched() -> set[str]:
    """Series that rules look at."""
    return {name for rule in RULES for name in known("") if re.search(rf"\b{name}\b", rule["expr"])}


@for_each("family", list(families()))
def test_something_is_known_of_every_metrics_labels(family: Metric) -> None:
    assert family.samples, "or its queries are not checked"


@of_every_source
@for_each("query", QUERIES)
def test_every_query_of_a_dashboard_gives_series_with_the_labels_of_its_legend(query: Query, source: str) -> None:
    labels = result_labels(plain(query.expression, source), known(source))
    assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= labels


@of_every_source
@for_each("dashboard", DASHBOARDS)
def test_what_a_reader_chooses_from_exists(dashboard: Dashboard, source: str) -> None:
    variables = [each for each in document_of(dashboard)["templating"]["list"] if each["type"] == "query"]
    assert len(variables) == len(dashboard.labels)
    for variable in variables:
        series, label = re.findall(r"label_values\((\S+), (\w+)\)", plain(variable["query"]["query"], source))[0]
        assert label in known(source)[series]


@for_each(
    ("expression", "source"),
    [
        ("sum by (nonsense) (rate(${source}spillway_requests_total[$__rate_interval]))", ""),
        ('${source}spillway_ejections_total{nonsense="x"}', ""),
        ("max(${source}spillway_nonsense)", ""),
        ("sum by (nonsense) (rate(${source}spillway_requests_total[$__rate_interval]))", "ray_"),
        ("max(${source}spillway_gateways)", "ray_"),
    ],
)
def test_a_query_with_a_mistake_is_found(expression: str, source: str) -> None:
    with pytest.raises(QueryError, match="no such"):
        result_labels(plain(expression, source), known(source))


@for_each("rule", RULES)
def test_every_rule_gives_series_with_the_labels_that_its_texts_name(rule: dict[str, Any]) -> None:
    labels = result_labels(rule["expr"], known_to_rules())
    texts = " ".join(rule.get("annotations", {}).values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels


@for_each("rule", [rule for rule in RULES if "alert" in rule])
def test_every_alert_says_how_bad_it_is_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket", "info")
    assert set(rule["annotations"]) == {"summary", "description"}


def test_what_is_promised_is_watched_by_alerts() -> None:
    assert watched() >= {
        "spillway_lane_slo_total",
        "spillway_queue_oldest_age_seconds",
        "spillway_shed_fraction",
        "spillway_ejected_replicas",
    }


def test_the_dashboards_on_disk_are_those_that_are_written(tmp_path: Path) -> None:
    main(["--folder", str(tmp_path)])
    on_disk, written = ({path.name: path.read_text() for path in each.glob("*.json")} for each in (FOLDER, tmp_path))
    assert on_disk == written


@for_each("dashboard", DASHBOARDS)
def test_panels_do_not_lie_on_one_another(dashboard: Any) -> None:
    document = json.loads((FOLDER / f"{dashboard.name}.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        x, y, w, h = (panel["gridPos"][each] for each in "xywh")
        cells = set(product(range(x, x + w), range(y, y + h)))
        assert not cells & taken, panel["title"]
        assert x + w <= 24
        taken |= cells
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
