"""The queries behind dashboards' panels."""

from dataclasses import dataclass

RATE = "$__rate_interval"
BY_REQUEST = 'lane=~"$lane",class=~"$class"'


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
    grouped = f"sum by ({by})" if by else "sum"
    selector = f"{{{where}}}" if where else ""
    return f"{grouped} (rate(${{source}}spillway_{metric}{selector}[{RATE}]))"


def quantile(fraction: float, histogram: str, by: str = "", where: str = BY_REQUEST) -> str:
    """A quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({fraction:g}, {rate(f'{histogram}_bucket', labels, where)})"


def quantiles(histogram: str, *fractions: float, where: str = BY_REQUEST) -> tuple[Query, ...]:
    """A query for each of some quantiles."""
    return tuple(
        Query(expression=quantile(each, histogram, where=where), legend=f"p{each * 100:g}") for each in fractions
    )


def gauge(metric: str, by: str, where: str = "", over: str = "sum") -> str:
    """A gauge, added up over everything but some labels."""
    selector = f"{{{where}}}" if where else ""
    return f"{over} by ({by}) (${{source}}spillway_{metric}{selector})"


def ratio(part: str, whole: str) -> str:
    """One expression over another."""
    return f"{part} / {whole}"


def one(expression: str, legend: str) -> tuple[Query, ...]:
    """A panel with a single query."""
    return (Query(expression=expression, legend=legend),)
