"""The queries behind dashboards' panels."""

from dataclasses import dataclass

RATE = "$__rate_interval"
BY_REQUEST = 'lane=~"$lane",class=~"$class"'
OF_MODEL = 'model=~"$model"'
OF_NONE = ("http_errors_total", "reloads_total", "gateways")
"""What belongs to no model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression of PromQL, and how its series are called.

    Args:
        expression: With Grafana's variables in it.
        legend: With labels in braces.
    """

    expression: str
    legend: str


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Growth of a counter a second, summed over everything but some labels."""
    return f"{_over('sum', by)} (rate({_series(metric, where)}[{RATE}]))"


def quantile(fraction: float, histogram: str, by: str = "", where: str = BY_REQUEST) -> str:
    """A quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({fraction:g}, {rate(f'{histogram}_bucket', labels, where)})"


def quantiles(histogram: str, *fractions: float, where: str = BY_REQUEST) -> tuple[Query, ...]:
    """A query for each of some quantiles."""
    return tuple(
        Query(expression=quantile(each, histogram, where=where), legend=f"p{each * 100:g}") for each in fractions
    )


def gauge(metric: str, by: str = "", where: str = "", over: str = "sum") -> str:
    """A gauge, added up over everything but some labels."""
    return f"{_over(over, by)} ({_series(metric, where)})"


def _series(metric: str, where: str = "") -> str:
    """Those of the models that are chosen, and of what else is."""
    of = "" if metric in OF_NONE else OF_MODEL
    selected = ",".join(filter(None, (of, where)))
    return f"${{source}}spillway_{metric}{f'{{{selected}}}' if selected else ''}"


def _over(how: str, by: str) -> str:
    return f"{how} by ({by})" if by else how


def ratio(part: str, whole: str) -> str:
    """One expression over another."""
    return f"{part} / {whole}"


def one(expression: str, legend: str) -> tuple[Query, ...]:
    """A panel with a single query."""
    return (Query(expression=expression, legend=legend),)
