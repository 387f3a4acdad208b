"""What an experiment came to, as pandas frames: every metric of every run in rows, and comparisons seed by seed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from plotly.graph_objects import Figure

from loadtests.lab.figures import lines
from loadtests.lab.lab_run import LabRecord
from loadtests.results.comparison import compare
from loadtests.results.metrics import ALL, METRICS
from policies.errors import ConfigError

VARIANT, SEED = "variant", "seed"


@dataclass(frozen=True, kw_only=True)
class LabCell:
    """Which run it is.

    Args:
        at: Values of the axes that are varied.
        variant: ``policy`` or the name of a baseline.
        seed: Of all random streams.
    """

    at: Mapping[str, Any]
    variant: str
    seed: int

    @property
    def columns(self) -> dict[str, Any]:
        """The same as columns of a frame."""
        return {**{axis: _shown(value) for axis, value in self.at.items()}, VARIANT: self.variant, SEED: self.seed}


class LabFrames:
    """The runs of an experiment. Every frame has a column for each axis, then ``variant`` and ``seed``.

    Args:
        axes: What was varied.
        records: What each run came to.

    Attributes:
        metrics: ``group`` (a traffic class, ``all``, or one of both in a named window), ``metric``, ``value``,
            ``samples``.
        tenths: ``tenth`` (1: the shortest prompts), ``least_tokens``, ``most_tokens``, ``metric``, ``value``,
            ``samples``.
        gauges: ``gateway``, ``at_s``, ``gauge``, ``value``; empty unless a period was given.
        problems: ``problem``: why a run is invalid; empty when all are valid.
    """

    def __init__(self, axes: Sequence[str], records: Sequence[tuple[LabCell, LabRecord]]) -> None:
        self.axes = tuple(axes)
        keys = [*self.axes, VARIANT, SEED]
        self.metrics = _frame(keys, ("group", "metric", "value", "samples"), records, _metrics)
        self.tenths = _frame(keys, TENTHS, records, _tenths)
        self.gauges = _frame(keys, ("gateway", "at_s", "gauge", "value"), records, _gauges)
        self.problems = _frame(keys, ("problem",), records, _problems)

    def table(self, metric: str, group: str = ALL) -> pd.DataFrame:
        """A metric's mean over seeds: a row for each point of the grid, a column for each variant.

        Args:
            metric: By name, as in ``loadtests.results.metrics``.
            group: A traffic class, or ``all``.

        Raises:
            ConfigError: There is no such metric of that group.
        """
        values = self._values(metric, group)
        if not self.axes:
            return values.groupby(VARIANT, sort=False)["value"].mean().to_frame(metric).T
        return values.pivot_table(index=list(self.axes), columns=VARIANT, values="value", sort=False)

    def paired(self, metric: str, against: str | Mapping[str, Any], group: str = ALL) -> pd.DataFrame:
        """A metric against that of a reference on the same seeds.

        Args:
            metric: By name.
            against: A variant, or a value of one axis or more: ``{"policies.balancing": "power_of_two"}``.
            group: A traffic class, or ``all``.

        Returns:
            For each point of the grid: ``value``, ``reference``, ``difference`` with the interval from ``low`` to
            ``high`` (95%, by bootstrap over seeds; with fewer than five seeds the range), and ``change``.

        Raises:
            ConfigError: There is no such metric or reference.
        """
        where = {VARIANT: against} if isinstance(against, str) else {axis: _shown(its) for axis, its in against.items()}
        values = self._values(metric, group)
        for column, wanted in where.items():
            known = list(dict.fromkeys(values.get(column, ())))
            if wanted not in known:
                raise ConfigError(f"against.{column}", wanted, f"one of {known}")
        points = [*self.axes, VARIANT]
        is_reference = np.logical_and.reduce([values[column] == wanted for column, wanted in where.items()])
        references = values[is_reference]
        shared = [each for each in [*points, SEED] if each not in where]
        both = values[~is_reference].merge(references[[*shared, "value"]], on=shared, suffixes=("", "_reference"))
        rows = [
            {**dict(zip(points, point, strict=True)), **_compared(metric, its)}
            for point, its in both.groupby(points, sort=False)
        ]
        return pd.DataFrame(rows, columns=[*points, "value", "reference", "difference", "low", "high", "change"])

    def plot(self, metric: str, over: str, by: str = VARIANT, group: str = ALL) -> Figure:
        """A metric over an axis, a line for each value of another, with the range over seeds behind it.

        Args:
            metric: By name.
            over: An axis with numbers.
            by: An axis, or ``variant``.
            group: A traffic class, or ``all``.

        Raises:
            ConfigError: There is no such metric or axis.
        """
        for name, axis in (("over", over), ("by", by)):
            if axis not in (*self.axes, VARIANT):
                raise ConfigError(name, axis, f"one of {[*self.axes, VARIANT]}")
        title = metric if group == ALL else f"{metric}, {group}"
        return lines(self._values(metric, group), over, by, title)

    def _values(self, metric: str, group: str) -> pd.DataFrame:
        found = self.metrics[(self.metrics["metric"] == metric) & (self.metrics["group"] == group)]
        if found.empty:
            groups = sorted(set(self.metrics["group"]))
            known = f"a metric of loadtests.results.metrics, such as goodput_fraction, of one of {groups}"
            raise ConfigError("metric", f"{metric} of {group}", known)
        return found


TENTHS = ("tenth", "least_tokens", "most_tokens", "metric", "value", "samples")
Rows = Iterator[tuple[Any, ...]]


def _frame(
    keys: Sequence[str],
    names: Sequence[str],
    records: Sequence[tuple[LabCell, LabRecord]],
    rows_of: Callable[[LabRecord], Rows],
) -> pd.DataFrame:
    columns: dict[str, list[Any]] = {name: [] for name in (*keys, *names)}
    for cell, record in records:
        at = cell.columns
        for row in rows_of(record):
            for name in keys:
                columns[name].append(at[name])
            for name, value in zip(names, row, strict=True):
                columns[name].append(value)
    return pd.DataFrame(columns)


def _metrics(record: LabRecord) -> Rows:
    for group, metrics in record.metrics.items():
        for name, its in metrics.items():
            yield group, name, its.value, its.samples


def _tenths(record: LabRecord) -> Rows:
    for number, tenth in enumerate(record.tenths, start=1):
        for name, its in tenth.metrics.items():
            yield number, tenth.least_tokens, tenth.most_tokens, name, its.value, its.samples


def _gauges(record: LabRecord) -> Rows:
    for sample in record.gauges:
        for name, value in sample.values.items():
            yield sample.gateway, sample.at_s, name, value


def _problems(record: LabRecord) -> Rows:
    for problem in record.problems:
        yield (problem,)


def _compared(metric: str, both: pd.DataFrame) -> dict[str, Any]:
    known = both.dropna(subset=["value", "value_reference"])
    if known.empty:
        return {"change": "undefined"}
    found = compare(known["value"].tolist(), known["value_reference"].tolist(), METRICS[metric].better)
    return {
        "value": found.policy,
        "reference": found.baseline,
        "difference": found.difference.value,
        "low": found.difference.low,
        "high": found.difference.high,
        "change": found.change.value,
    }


def _shown(value: Any) -> Any:
    """A value of an axis as a frame can compare it: a number, a word, or what a mapping looks like."""
    return value if isinstance(value, int | float | str) else str(value)
