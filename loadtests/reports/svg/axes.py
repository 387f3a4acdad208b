"""Axes: ticks and their words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.reports.svg.scales import Linear, Log, Scale

_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Tick:
    """A value of an axis that is marked.

    Args:
        at: Which.
        label: What stands there.
        is_major: Whether it goes before others where there is not room for all.
    """

    at: float
    label: str
    is_major: bool = True


@dataclass(frozen=True)
class Axis:
    """One axis.

    Args:
        title: What is on it, with its unit.
        scale: Where values go.
        ticks: Values to mark.
    """

    title: str
    scale: Scale
    ticks: Sequence[Tick]


def linear_axis(title: str, most: float, *, num_ticks: int = 5, is_rounded: bool = True) -> Axis:
    """An axis from 0 in round steps.

    Args:
        title: What is on it, with its unit.
        most: The largest value.
        num_ticks: How many steps there are at most.
        is_rounded: Whether it goes on to the next tick; otherwise it ends at ``most``.
    """
    span = most if most > 0 else 1.0
    power = 10 ** math.floor(math.log10(span / num_ticks))
    step = next(each * power for each in _STEPS if each * power * num_ticks >= span * (1 - 1e-9))
    num_steps = math.ceil(span / step - 1e-9) if is_rounded else math.floor(span / step + 1e-9)
    ticks = [Tick(index * step, f"{index * step:,.6g}") for index in range(num_steps + 1)]
    return Axis(title, Linear(0.0, ticks[-1].at if is_rounded else span), ticks)


def seconds_axis(title: str, least_s: float, most_s: float) -> Axis:
    """A logarithmic axis of times, its ends and its ticks at 1, 2 or 5 times a power of ten."""
    least_s = max(least_s, 1e-5)
    candidates = [digit * 10.0**power for power in range(-6, 8) for digit in (1, 2, 5)]
    low = max(each for each in candidates if each <= least_s * (1 + 1e-9))
    high = min(each for each in candidates if each >= max(most_s, least_s) * (1 - 1e-9) and each > low)
    inside = [each for each in candidates if low <= each <= high]
    powers = {each for each in inside if math.isclose(math.log10(each), round(math.log10(each)), abs_tol=1e-9)}
    ticks = [Tick(each, duration(each, ".3g"), is_major=each in powers) for each in inside]
    return Axis(title, Log(low, high), ticks)


def duration(value_s: float, digits: str = "#.3g") -> str:
    """Seconds, milliseconds or microseconds, whichever reads best.

    Args:
        value_s: How long.
        digits: How a number below 100 is written: three digits, or ``.3g`` without zeros at its end.
    """
    if math.isnan(value_s):
        return "-"
    unit, size_s = next((each for each in _UNITS if abs(value_s) >= each[1] * 0.9995), _UNITS[-1])
    value = value_s / size_s
    return f"{value:,.0f} {unit}" if abs(value) >= 99.95 else f"{format(value, digits)} {unit}"
