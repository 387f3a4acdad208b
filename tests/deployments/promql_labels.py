"""What labels a query's result has, worked out from those of the series that it names.

A label that a series does not have is no mistake to Prometheus: grouping by it puts everything in one group, and a
matcher for it finds nothing. So both are mistakes here.
"""

from collections.abc import Callable, Mapping, Set
from typing import Any

import promql_parser

Labels = frozenset[str]
Known = Mapping[str, Set[str]]
"""Labels of each series, by its name."""
LE = frozenset({"le"})


class QueryError(Exception):
    """A query that can't show what it is meant to show."""


def result_labels(expression: str, known: Known) -> Labels:
    """Labels of what a query gives.

    Raises:
        QueryError: It names a series or a label that there is not, or two sides of an operator have different labels.
    """
    labels = _of(promql_parser.parse(expression), known)
    if labels is None:
        raise QueryError(f"no series: {expression}")
    return labels


def _of(node: Any, known: Known) -> Labels | None:
    """None for a number. What has no rule is in parentheses, has a sign, or is a subquery."""
    rule = RULES.get(type(node))
    return rule(node, known) if rule else _of(node.expr, known)


def _of_number(node: Any, known: Known) -> None:
    """No labels."""


def _of_selector(selector: Any, known: Known) -> Labels:
    if selector.name not in known:
        raise QueryError(f"no such series: {selector.name}")
    labels = frozenset(known[selector.name])
    _must_have(labels, {matcher.name for matcher in selector.matchers.matchers}, selector)
    return labels


def _of_aggregate(node: Any, known: Known) -> Labels:
    labels = _of(node.expr, known) or frozenset()  # the parser takes no number here
    if node.modifier is None:
        return frozenset()
    named = frozenset(node.modifier.labels)
    _must_have(labels, named, node)
    return named if node.modifier.type == promql_parser.AggModifierType.By else labels - named


def _of_call(node: Any, known: Known) -> Labels | None:
    found = [labels for labels in (_of(argument, known) for argument in node.args) if labels is not None]
    if node.func.name != "histogram_quantile":
        return found[0] if found else None
    [labels] = found
    _must_have(labels, LE, node)
    return labels - LE


def _of_pair(node: Any, known: Known) -> Labels | None:
    left, right = _of(node.lhs, known), _of(node.rhs, known)
    if left is None or right is None:
        return right if left is None else left
    if node.modifier is not None and node.modifier.matching is not None:
        raise QueryError(f"on() and ignoring() are not known here: {node}")
    if left != right:
        raise QueryError(f"{sorted(left)} never match {sorted(right)}: {node}")
    return left


def _must_have(labels: Labels, named: Set[str], node: Any) -> None:
    if missing := named - labels:
        raise QueryError(f"no such label: {', '.join(sorted(missing))}, in {node}")


RULES: Mapping[type, Callable[[Any, Known], Labels | None]] = {
    promql_parser.VectorSelector: _of_selector,
    promql_parser.MatrixSelector: lambda node, known: _of_selector(node.vector_selector, known),
    promql_parser.AggregateExpr: _of_aggregate,
    promql_parser.BinaryExpr: _of_pair,
    promql_parser.Call: _of_call,
    promql_parser.NumberLiteral: _of_number,
    promql_parser.StringLiteral: _of_number,
}
