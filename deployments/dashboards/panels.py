"""What dashboards are made of: panels, and the queries behind them."""

from dataclasses import dataclass

RATE = "$__rate_interval"
BY_REQUEST = 'lane=~"$lane",class=~"$class"'
BY_POOL = 'pool=~"$pool"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression of PromQL, and how its series are called.

    Args:
        expression: With Grafana's variables in it.
        legend: With labels in braces.
    """

    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture.

    Args:
        title: Short.
        meaning: What a reader sees in it, and what to do about it.
        unit: As Grafana calls it.
        queries: What is drawn.
        width: Of 24 columns.
        least: Where the axis begins; ``None``: where the values do.
        is_stacked: Whether series are laid on one another.
    """

    title: str
    meaning: str
    unit: str
    queries: tuple[Query, ...]
    width: int = 8
    least: float | None = 0.0
    is_stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page of panels.

    Args:
        name: Of the file.
        title: For people.
        question: What it answers.
        labels: Labels that a reader can choose values of.
        panels: In the order in which they are read.
    """

    name: str
    title: str
    question: str
    labels: tuple[str, ...]
    panels: tuple[Panel, ...]


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
