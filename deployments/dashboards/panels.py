"""What dashboards are made of: panels, and the queries behind them."""

from dataclasses import dataclass

from deployments.dashboards.queries import Query

BY_POOL = 'pool=~"$pool"'


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
