"""Line charts as inline SVG: no script, colours from the page's style sheet, text that does not overlap.

A chart is drawn for a width in CSS pixels at which its text has the size of the page's, so a page holds one for wide
screens and one for narrow ones, and shows either. Ticks that would touch their neighbours are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from loadtests.reports.svg.axes import Axis, Tick
from loadtests.results.analysis import Floats

TEXT_PX = 11.5
"""Size of the text; the style sheet says the same."""
_CHARACTER_PX = 7.0
"""Width of a character, generously."""
_TOP_PX, _BOTTOM_PX, _RIGHT_PX = 26.0, 43.0, 14.0


@dataclass(frozen=True)
class PlotLine:
    """One series of a chart.

    Args:
        number: Of the series; decides colour and dashes.
        tip: What a pointer on it is told.
        x: Values.
        y: The same number; NaN interrupts the line.
        has_dots: Whether each value has a dot.
    """

    number: int
    tip: str
    x: Floats
    y: Floats
    has_dots: bool = False


@dataclass(frozen=True)
class Rule:
    """A dashed line across the chart at a value of the x axis, with words."""

    at: float
    text: str


@dataclass(frozen=True)
class Plot:
    """A line chart.

    Args:
        label: What it shows, for those who can't see it.
        x: The axis below.
        y: The axis on the left; its title stands above.
        lines: What is drawn.
        rules: Limits on the x axis.
        shaded: Stretches of the x axis that do not count, from and until.
        guide: Where a line would be if all went well; ``None`` where that is not known.
    """

    label: str
    x: Axis
    y: Axis
    lines: Sequence[PlotLine]
    rules: Sequence[Rule] = ()
    shaded: Sequence[tuple[float, float]] = ()
    guide: tuple[Floats, Floats] | None = None


def text_px(text: str) -> float:
    """How wide a text is at most."""
    return _CHARACTER_PX * len(text)


def draw(plot: Plot, width_px: float, height_px: float) -> str:
    """The chart as an SVG element, its texts escaped."""
    return tostring(_Drawing(plot, width_px, height_px).svg(), encoding="unicode")


class _Drawing:
    """A chart at one size."""

    def __init__(self, plot: Plot, width_px: float, height_px: float) -> None:
        self._plot, self._width, self._height = plot, width_px, height_px
        self._left = 8 + max((text_px(tick.label) for tick in plot.y.ticks), default=0)
        self._right, self._top, self._bottom = width_px - _RIGHT_PX, _TOP_PX, height_px - _BOTTOM_PX
        box = f"0 0 {width_px:g} {height_px:g}"
        self._svg = Element("svg", {"class": "plot", "viewBox": box, "role": "img", "aria-label": plot.label})
        self._svg.set("style", f"max-width:{width_px:g}px")

    def svg(self) -> Element:
        """Everything, what lies below first."""
        for part in (self._shades, self._y_axis, self._x_axis, self._rules, self._lines):
            part()
        return self._svg

    def _x(self, values: Floats) -> Floats:
        return self._left + self._plot.x.scale.position(values) * (self._right - self._left)

    def _y(self, values: Floats) -> Floats:
        return self._bottom - self._plot.y.scale.position(values) * (self._bottom - self._top)

    def _shades(self) -> None:
        for span in self._plot.shaded:
            left, right = np.clip(self._x(np.array(span)), self._left, self._right).tolist()
            size = {"width": right - left, "height": self._bottom - self._top}
            self._add("rect", "shade", x=left, y=self._top, **size)

    def _y_axis(self) -> None:
        self._text(self._plot.y.title, 0, 12, "start", "axis-title")
        places = self._y(np.array([tick.at for tick in self._plot.y.ticks]))
        for tick, y in _that_fit(self._plot.y.ticks, places, [TEXT_PX] * len(places), gap_px=3):
            self._add("line", "grid", x1=self._left, x2=self._right, y1=y, y2=y)
            self._text(tick.label, self._left - 6, y + 4, "end")

    def _x_axis(self) -> None:
        self._add("line", "axis", x1=self._left, x2=self._right, y1=self._bottom, y2=self._bottom)
        ticks = self._plot.x.ticks
        widths = [text_px(tick.label) for tick in ticks]
        halves = np.array(widths) / 2
        places = np.clip(self._x(np.array([tick.at for tick in ticks])), halves, self._width - halves)
        for tick, text_x in _that_fit(ticks, places, widths, gap_px=9):
            x = float(self._x(np.array([tick.at]))[0])
            self._add("line", "axis", x1=x, x2=x, y1=self._bottom, y2=self._bottom + 4)
            self._text(tick.label, text_x, self._bottom + 19, "middle")
        self._text(self._plot.x.title, (self._left + self._right) / 2, self._height - 6, "middle", "axis-title")

    def _rules(self) -> None:
        for rule in self._plot.rules:
            x = float(self._x(np.array([rule.at]))[0])
            if self._left <= x <= self._right:
                self._add("line", "rule", x1=x, x2=x, y1=self._top, y2=self._bottom)
                fits = x + 5 + text_px(rule.text) <= self._right
                self._text(rule.text, x + 5 if fits else x - 5, self._bottom - 7, "start" if fits else "end", "note")

    def _lines(self) -> None:
        if self._plot.guide is not None:
            xs, ys = self._plot.guide
            SubElement(self._svg, "path", {"class": "guide", "d": _path(self._x(xs), self._y(ys))})
        for line in sorted(self._plot.lines, key=lambda each: -each.number):
            xs, ys = self._x(line.x), self._y(line.y)
            group = SubElement(self._svg, "g", {"class": style_of(line.number)})
            SubElement(group, "title").text = line.tip
            SubElement(group, "path", {"d": _path(xs, ys)})
            for x, y in zip(xs.tolist(), ys.tolist(), strict=True) if line.has_dots else ():
                if not math.isnan(y):
                    SubElement(group, "circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "3.5"})

    def _add(self, name: str, kind: str, **places: float) -> Element:
        return SubElement(self._svg, name, {"class": kind, **{key: f"{value:.1f}" for key, value in places.items()}})

    def _text(self, text: str, x: float, y: float, anchor: str, kind: str = "tick") -> None:
        element = self._add("text", kind, x=x, y=y)
        element.set("text-anchor", anchor)
        element.text = text


def style_of(number: int) -> str:
    """The classes that give a series its colour and its dashes: colours begin anew after eight, dashed."""
    return f"series s{number % 8} d{min(number // 8, 2)}"


def _path(xs: Floats, ys: Floats) -> str:
    parts, is_open = [], False
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if math.isnan(y):
            is_open = False
            continue
        parts.append(f"{'L' if is_open else 'M'}{x:.1f} {y:.1f}")
        is_open = True
    return "".join(parts)


def _that_fit(ticks: Sequence[Tick], places: Floats, sizes: Sequence[float], gap_px: float) -> list[tuple[Tick, float]]:
    """Ticks and where they are, without those that would touch one that matters more or comes before."""
    kept: list[tuple[Tick, float, float]] = []
    found = zip(ticks, places.tolist(), sizes, strict=True)
    for tick, place, size in sorted(found, key=lambda each: not each[0].is_major):
        if all(abs(place - other) >= (size + other_size) / 2 + gap_px for _, other, other_size in kept):
            kept.append((tick, place, size))
    return [(tick, place) for tick, place, _ in kept]
