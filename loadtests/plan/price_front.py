"""What more money buys: of all fleets that were simulated, those that no cheaper one does as well as."""

from collections.abc import Sequence

import plotly.express
from plotly.graph_objects import Figure, Scatter

from loadtests.plan.fleet_search import Trial
from loadtests.plan.verification import said

LEAST_MISSED = 1e-4
"""Where the axis ends, which is logarithmic; fewer are drawn there."""


def price_front(trials: Sequence[Trial]) -> list[Trial]:
    """The Pareto front of price and goodput, the cheapest first; of those that are alike in both the first."""
    front: list[Trial] = []
    for each in sorted(trials, key=lambda trial: (trial.dollars_per_h, -trial.goodput_fraction)):
        if not front or each.goodput_fraction > front[-1].goodput_fraction:
            front.append(each)
    return front


def front_figure(trials: Sequence[Trial], attained_fraction: float, chosen: Trial) -> Figure:
    """Requests outside their SLOs over price: each candidate's sizes, the front, and the fleet that is recommended."""
    figure, colors = Figure(), plotly.express.colors.qualitative.Safe
    for number, name in enumerate(dict.fromkeys(each.candidate for each in trials)):
        points = _points([each for each in trials if each.candidate == name], name, mode="markers")
        figure.add_trace(points.update(marker={"color": colors[number % len(colors)], "size": 10}))
    front = price_front(trials)
    line = _points(front, "no cheaper one is as good", mode="lines+text")
    line.update(line={"color": "gray", "width": 1, "shape": "hv"}, text=[said(each.replicas) for each in front])
    figure.add_trace(line.update(textposition="top center", hoverinfo="skip"))
    circle = {"symbol": "circle-open", "size": 20, "color": "black", "line": {"width": 2}}
    figure.add_trace(_points([chosen], "recommended", mode="markers").update(marker=circle))
    allowed, prices = max(1.0 - attained_fraction, LEAST_MISSED), [each.dollars_per_h for each in trials]
    border = Scatter(x=[min(prices), max(prices)], y=[allowed, allowed], name="may be outside", mode="lines")
    figure.add_trace(border.update(line={"dash": "dot", "color": "gray"}, hoverinfo="skip"))
    figure.update_layout(template="simple_white", hovermode="closest", margin={"t": 40})
    figure.update_xaxes(title_text="dollars an hour")
    figure.update_yaxes(
        title_text="requests outside their SLOs", type="log", autorange="reversed", tickformat=".2~%", dtick="D2"
    )
    return figure


def _points(trials: Sequence[Trial], name: str, mode: str) -> Scatter:
    about = [
        f"{each.candidate}: {said(each.replicas)}<br>{each.goodput_fraction:.2%} within SLOs, "
        f"TTFT p99 {each.metrics['ttft_p99_s']:.3g} s, TPOT p99 {each.metrics['tpot_p99_s']:.3g} s"
        for each in trials
    ]
    return Scatter(
        x=[each.dollars_per_h for each in trials],
        y=[max(LEAST_MISSED, 1.0 - each.goodput_fraction) for each in trials],
        hovertext=about,
        hoverinfo="text",
        name=name,
        mode=mode,
    )
