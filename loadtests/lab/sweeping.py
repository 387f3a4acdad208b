"""Experiments: the runs of one scenario, or of a grid of them."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtests.lab.frames import LabCell, LabFrames
from loadtests.lab.lab_run import LabRun, run_kept
from loadtests.lab.lab_scenario import LabScenario
from loadtests.simulation.parallel import simulate_all
from loadtests.simulation.simulation import Run
from policies.errors import ConfigError

FOLDER = Path(".run/lab")
"""Of the runs that are kept, below the folder in which one works."""
Axes = Mapping[str, Sequence[Any]]
"""What is varied: some values for each of some paths, ``load`` and ``rate`` among them."""
Seeds = int | Iterable[int]


def run(
    what: LabScenario,
    *,
    variants: Sequence[str] = (),
    seeds: Seeds = (),
    gauges_period_s: float = 0.0,
    jobs: int = 0,
    folder: Path = FOLDER,
) -> LabFrames:
    """Runs a scenario: its policies and its baselines on each seed.

    Args:
        what: The scenario.
        variants: ``policy`` and names of baselines; all of them where none is named.
        seeds: Which, or how many from 1 on; the scenario's own where none are named.
        gauges_period_s: Virtual seconds between two looks at queues, lane borders, guard and shed fraction; 0: none.
        jobs: Processes at a time; 0: one for each core.
        folder: Where runs are kept, so that a run that was made before costs nothing.

    Raises:
        ConfigError: The scenario can't be run, or there is no such variant.
        RunFailed: Something raised in the middle, most likely a policy.
    """
    return sweep(what, {}, variants=variants, seeds=seeds, gauges_period_s=gauges_period_s, jobs=jobs, folder=folder)


def sweep(
    what: LabScenario,
    axes: Axes,
    *,
    variants: Sequence[str] = (),
    seeds: Seeds = (),
    gauges_period_s: float = 0.0,
    jobs: int = 0,
    folder: Path = FOLDER,
) -> LabFrames:
    """Runs a scenario at each point of a grid, all points on the same seeds.

    Args:
        what: The scenario.
        axes: For example ``{"load": [0.5, 1.0], "policies.balancing": ["power_of_two", "least_work_left"]}``.
        variants: As in :func:`run`, and likewise the others.
        seeds: Likewise.
        gauges_period_s: Likewise.
        jobs: Likewise.
        folder: Likewise.

    Raises:
        ConfigError: A point can't be run, or there is no such variant.
        RunFailed: Something raised in the middle, most likely a policy.
    """
    planned = list(_planned(what, axes, variants, seeds, gauges_period_s))
    make, console = partial(run_kept, folder=folder), Console(stderr=True)
    records = simulate_all([run for _, run in planned], make, jobs or len(os.sched_getaffinity(0)), console)
    return LabFrames(tuple(axes), [(cell, record) for (cell, _), record in zip(planned, records, strict=True)])


def _planned(
    what: LabScenario, axes: Axes, variants: Sequence[str], seeds: Seeds, gauges_period_s: float
) -> Iterator[tuple[LabCell, LabRun]]:
    for point in itertools.product(*axes.values()):
        at = dict(zip(axes, point, strict=True))
        scenario = what.having(at).scenario
        for variant in variants or scenario.variants:
            if variant not in scenario.variants:
                raise ConfigError("variants", variant, f"one of {list(scenario.variants)}")
            for seed in _seeds(seeds) or scenario.seeds:
                planned = Run(scenario=scenario, variant=variant, seed=seed)
                yield LabCell(at=at, variant=variant, seed=seed), LabRun(run=planned, gauges_period_s=gauges_period_s)


def _seeds(seeds: Seeds) -> tuple[int, ...]:
    found = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds)
    if any(each < 0 for each in found) or len(set(found)) < len(found):
        raise ConfigError("seeds", list(found), "whole numbers from 0 on, each once")
    return found
