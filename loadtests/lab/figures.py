"""Figures of the lab."""

import pandas as pd
import plotly.express
from plotly.graph_objects import Figure, Scatter

OPACITY = 0.15


def lines(values: pd.DataFrame, over: str, by: str, title: str) -> Figure:
    """Lines with a band.

    Args:
        values: Columns ``over``, ``by``, ``value``, and others over which means and ranges are taken.
        over: The column of the horizontal axis.
        by: The column with a line for each of its values.
        title: Of the vertical axis.
    """
    figure = Figure()
    colors = plotly.express.colors.qualitative.Safe
    for number, (name, its) in enumerate(values.groupby(by, sort=False)):
        found = its.groupby(over)["value"].agg(["mean", "min", "max"]).reset_index()
        color = colors[number % len(colors)]
        around = pd.concat([found["max"], found["min"][::-1]])
        along = pd.concat([found[over], found[over][::-1]])
        band = Scatter(
            x=along, y=around, fill="toself", fillcolor=color, opacity=OPACITY, line={"width": 0}, mode="lines"
        )
        figure.add_trace(band.update(showlegend=False, hoverinfo="skip", legendgroup=str(name)))
        line = Scatter(x=found[over], y=found["mean"], name=str(name), mode="lines+markers", line={"color": color})
        figure.add_trace(line.update(legendgroup=str(name)))
    figure.update_layout(template="simple_white", legend_title_text=by, hovermode="x unified")
    figure.update_xaxes(title_text=over)
    figure.update_yaxes(title_text=title, rangemode="tozero")
    return figure
