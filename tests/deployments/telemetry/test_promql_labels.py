"""Queries with mistakes in them that Prometheus would not mention."""

import pytest

from tests.deployments.promql_labels import QueryError, result_labels
from tests.tables import for_each

KNOWN = {"answers_total": {"lane", "class"}, "took_seconds_bucket": {"lane", "le"}, "open": set[str]()}


@for_each(
    ("expression", "labels"),
    [
        ("answers_total", {"lane", "class"}),
        ("open", set()),
        ('rate(answers_total{lane="a"}[5m])', {"lane", "class"}),
        ("sum(rate(answers_total[5m]))", set()),
        ("sum by (lane) (rate(answers_total[5m]))", {"lane"}),
        ("sum without (lane) (answers_total)", {"class"}),
        ("histogram_quantile(0.9, sum by (le, lane) (rate(took_seconds_bucket[5m])))", {"lane"}),
        ("max_over_time(answers_total[1h:5m])", {"lane", "class"}),
        ("60 * -(answers_total) / 2 > 3", {"lane", "class"}),
        ("sum by (lane) (answers_total) / sum by (lane) (took_seconds_bucket)", {"lane"}),
        ("answers_total > 1 and answers_total < 2", {"lane", "class"}),
    ],
)
def test_labels_of_a_result(expression: str, labels: set[str]) -> None:
    assert result_labels(expression, KNOWN) == labels


@for_each(
    ("expression", "complaint"),
    [
        ("nonsense", "no such series: nonsense"),
        ('answers_total{nonsense="x"}', "no such label: nonsense"),
        ('open{nonsense="x"}', "no such label: nonsense"),
        ("sum by (nonsense) (rate(answers_total[5m]))", "no such label: nonsense"),
        ("sum by (lane, nonsense) (answers_total)", "no such label: nonsense"),
        ("sum without (nonsense) (answers_total)", "no such label: nonsense"),
        ("sum by (class) (sum by (lane) (answers_total))", "no such label: class"),
        ("histogram_quantile(0.9, sum by (lane) (rate(took_seconds_bucket[5m])))", "no such label: le"),
        ("sum by (lane) (answers_total) / sum by (class) (answers_total)", "never match"),
        ("sum by (lane) (answers_total) / sum(answers_total)", "never match"),
        ("answers_total / on (lane) took_seconds_bucket", "are not known here"),
        ("1 + 2", "no series"),
    ],
)
def test_mistakes_that_are_found(expression: str, complaint: str) -> None:
    with pytest.raises(QueryError, match=complaint):
        result_labels(expression, KNOWN)
