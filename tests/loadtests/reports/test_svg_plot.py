"""Charts: axes with round ticks, lines where they belong, texts that keep apart and mean themselves."""

import math
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.reports.svg.axes import Axis, Tick, duration, linear_axis, seconds_axis
from loadtests.reports.svg.plot import TEXT_PX, Plot, PlotLine, Rule, draw, text_px
from loadtests.reports.svg.scales import Linear, Log, Probit
from tests.tables import for_each

SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = (350.0, 528.0)


def drawing(plot: Plot, width_px: float = 350.0) -> ElementTree.Element:
    return ElementTree.fromstring(draw(plot, width_px, 230.0))


def plot_of(x: Axis, y: Axis, *lines: PlotLine, rules: tuple[Rule, ...] = ()) -> Plot:
    return Plot(label="a chart", x=x, y=y, lines=lines, rules=rules)


@for_each(
    ("value_s", "text"),
    [
        (math.nan, "-"), (0.0, "0.00 µs"), (0.000_012_3, "12.3 µs"), (0.0019, "1.90 ms"), (0.018, "18.0 ms"),
        (0.225, "225 ms"), (0.9997, "1.00 s"), (1.0, "1.00 s"), (12.34, "12.3 s"), (1234.5, "1,234 s"),
    ],
)  # fmt: skip
def test_a_duration_has_three_digits_and_the_unit_that_fits(value_s: float, text: str) -> None:
    assert duration(value_s) == text


@given(most=st.floats(1e-6, 1e9))
def test_a_linear_axis_reaches_the_largest_value_in_few_even_steps(most: float) -> None:
    axis = linear_axis("", most)
    steps = [later.at - earlier.at for earlier, later in pairwise(axis.ticks)]

    assert axis.ticks[0].at == 0
    assert axis.ticks[-1].at >= most * (1 - 1e-6)
    assert len(axis.ticks) <= 6
    assert steps == pytest.approx([steps[0]] * len(steps))


@given(ends=st.tuples(st.floats(1e-5, 1e4), st.floats(1e-5, 1e4)))
def test_a_time_axis_holds_everything_between_its_ends(ends: tuple[float, float]) -> None:
    axis = seconds_axis("", min(ends), max(ends))

    places = axis.scale.position(np.array(sorted(ends)))

    assert -1e-9 <= places[0] <= places[1] <= 1 + 1e-9
    assert len(axis.ticks) >= 2


@for_each("scale", [Linear(1.0, 9.0), Log(1.0, 9.0), Probit(0.1, 0.9)])
def test_a_scale_goes_from_0_to_1_and_never_back(scale: Linear | Log | Probit) -> None:
    places = scale.position(np.linspace(scale.low, scale.high, 50))

    assert places[[0, -1]].tolist() == pytest.approx([0.0, 1.0])
    assert (np.diff(places) > 0).all()


@given(low=st.floats(1e-4, 10.0), ratio=st.floats(1.1, 1e5), most=st.floats(1e-3, 1e7), width=st.sampled_from(WIDTHS))
def test_the_ticks_of_an_axis_keep_apart(low: float, ratio: float, most: float, width: float) -> None:
    found = drawing(plot_of(seconds_axis("time", low, low * ratio), linear_axis("rate", most)), width)
    ticks = [each for each in found.iter("text") if each.get("class") == "tick"]
    below = sorted((float(each.get("x", "")), each.text or "") for each in ticks if each.get("text-anchor") == "middle")
    left = sorted(float(each.get("y", "")) for each in ticks if each.get("text-anchor") == "end")

    assert len(below) >= 2
    for (x, text), (next_x, next_text) in pairwise(below):
        assert next_x - x >= (text_px(text) + text_px(next_text)) / 2
    assert all(y - earlier >= TEXT_PX for earlier, y in pairwise(left))


def test_a_line_is_interrupted_where_nothing_is_known() -> None:
    line = PlotLine(3, "policy", np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, math.nan, 2.0, 3.0]), has_dots=True)

    found = drawing(plot_of(linear_axis("x", 3.0), linear_axis("y", 3.0), line))

    (path,) = found.iter("path")
    assert (path.get("d") or "").count("M") == 2
    assert (path.get("d") or "").count("L") == 1
    assert len(list(found.iter("circle"))) == 3
    (group,) = found.iter("g")
    assert group.get("class") == "series s3 d0"


def test_the_ninth_series_has_the_first_ones_colour_and_is_dashed() -> None:
    line = PlotLine(8, "one more", np.array([0.0, 1.0]), np.array([0.0, 1.0]))

    (group,) = drawing(plot_of(linear_axis("x", 1.0), linear_axis("y", 1.0), line)).iter("g")

    assert group.get("class") == "series s0 d1"


def test_texts_mean_themselves() -> None:
    hostile = "</text><script>alert(1)</script>&amp;"
    axis = Axis(hostile, Linear(0.0, 1.0), [Tick(0.5, hostile)])
    line = PlotLine(0, hostile, np.array([0.0, 1.0]), np.array([0.0, 1.0]))

    found = drawing(Plot(label=hostile, x=axis, y=axis, lines=[line], rules=[Rule(0.5, hostile)]))

    assert list(found.iter("script")) == []
    assert [each.text for each in found.iter("title")] == [hostile]
    assert found.get("aria-label") == hostile
    assert sum(each.text == hostile for each in found.iter("text")) == 5


def test_a_limit_outside_of_the_chart_is_not_drawn() -> None:
    axis = linear_axis("x", 1.0)

    found = drawing(plot_of(axis, axis, rules=(Rule(0.5, "SLO"), Rule(7.0, "far away"))))

    assert [each.text for each in found.iter("text") if each.get("class") == "note"] == ["SLO"]
