"""A dashboard as the JSON that Grafana imports.

Each works on what Prometheus scrapes from the gateways' ``/metrics`` and, with the variable *source* set to ``ray_``,
from Ray's metrics agents.
"""

from collections.abc import Iterator
from string import ascii_uppercase
from typing import Any

from deployments.dashboards.panels import Dashboard, Panel

SCHEMA_VERSION = 39
"""Of Grafana 10.4; later ones bring it up to date by themselves."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHT, COLUMNS = 8, 24


def document_of(dashboard: Dashboard) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    return {
        "uid": f"spillway-{dashboard.name}",
        "title": f"spillway: {dashboard.title}",
        "description": dashboard.question,
        "tags": ["spillway"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [
            {"title": "spillway", "type": "dashboards", "tags": ["spillway"], "asDropdown": True, "keepTime": True}
        ],
        "templating": {"list": list(_variables(dashboard))},
        "panels": list(_panels(dashboard)),
    }


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    yield {
        "name": "source",
        "label": "exported by",
        "type": "custom",
        "query": "gateways : ,Ray's agents : ray_",
        "current": {"text": "gateways", "value": ""},
        "options": [
            {"text": "gateways", "value": "", "selected": True},
            {"text": "Ray's agents", "value": "ray_", "selected": False},
        ],
    }
    for label in dashboard.labels:
        of = "spillway_replicas" if label == "pool" else "spillway_request_prompt_tokens_count"
        yield {
            "name": label,
            "label": label,
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": f"label_values(${{source}}{of}, {label})", "refId": label},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    column = row = 0
    for number, panel in enumerate(dashboard.panels, start=1):
        if column + panel.width > COLUMNS:
            column, row = 0, row + HEIGHT
        yield _panel(panel, number, {"x": column, "y": row, "w": panel.width, "h": HEIGHT})
        column += panel.width


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
    if panel.is_stacked:
        custom |= {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": custom}
    if panel.least is not None:
        defaults["min"] = panel.least
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": ref, "expr": query.expression, "legendFormat": query.legend, "datasource": DATASOURCE}
            for ref, query in zip(ascii_uppercase, panel.queries, strict=False)
        ],
    }
