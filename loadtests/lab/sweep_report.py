"""A sweep as a terminal shows it, and as a file for other programs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.lab.frames import VARIANT, LabFrames
from loadtests.results.metrics import ALL, METRICS
from policies.errors import ConfigError

SHOWN = ("goodput_fraction", "ttft_p99_s", "longest_tenth_goodput_fraction")
"""Unless others are asked for."""
WIDTH = 160
"""Where there is no terminal that has one."""


def metrics_shown(asked: Sequence[str]) -> Sequence[str]:
    """The metrics of a sweep's tables; ``SHOWN`` where none is asked for.

    Raises:
        ConfigError: There is no such metric.
    """
    for metric in asked:
        if metric not in METRICS:
            raise ConfigError("--metric", metric, f"one of {', '.join(METRICS)}")
    return asked or SHOWN


def print_sweep(name: str, found: LabFrames, metrics: Sequence[str], console: Console) -> None:
    """A table for each metric: points of the grid down, variants across, means over seeds and their range.

    Args:
        name: Of the scenario.
        found: The sweep.
        metrics: By name.
        console: Where to.
    """
    wide = console if console.is_terminal else Console(file=console.file, width=WIDTH, highlight=False)
    for metric in metrics:
        wide.print(_table(name, found, metric))


def _table(name: str, found: LabFrames, metric: str) -> Table:
    values = found.metrics[(found.metrics["metric"] == metric) & (found.metrics["group"] == ALL)]
    variants = list(dict.fromkeys(values[VARIANT]))
    table = Table(title=f"{name}: {metric}", title_justify="left", box=box.SIMPLE_HEAD)
    for axis in found.axes:
        table.add_column(axis)
    for variant in variants:
        table.add_column(variant, justify="right")
    for point, its in values.groupby(list(found.axes), sort=False):
        by_variant = its.groupby(VARIANT)["value"]
        table.add_row(*map(str, point), *(_cell(by_variant.get_group(each)) for each in variants))
    return table


def _cell(values: pd.Series) -> str:
    known = values.dropna()
    if known.empty:
        return "-"
    if len(known) == 1:
        return f"{known.iloc[0]:.3g}"
    return f"{known.mean():.3g} ({known.min():.3g} to {known.max():.3g})"


def write_sweeps(path: Path, found: Mapping[str, LabFrames]) -> None:
    """Every metric of every run, by scenario: a JSON object in each line."""
    frames = [each.metrics.assign(scenario=name) for name, each in found.items()]
    pd.concat(frames, ignore_index=True).to_json(path, orient="records", lines=True)
