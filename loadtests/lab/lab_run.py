"""One simulated run of an experiment in the lab, and what is kept of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from cluster.sim.run_table import RunTable
from cluster.sim.simulator import WatchedGauges, simulate
from loadtests.lab.run_cache import RunCache
from loadtests.results.analysis import PromptTenth, derive, prompt_tenths
from loadtests.results.metrics import RunMetrics
from loadtests.simulation.simulation import Run, run


class GaugeSample(msgspec.Struct, frozen=True):
    """What one gateway knew at one moment.

    Args:
        gateway: Its number.
        at_s: When.
        values: Gauges by name, as :meth:`routing.dispatcher.Dispatcher.gauges` has them.
    """

    gateway: int
    at_s: float
    values: Mapping[str, float]


class LabRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Args:
        metrics: Every metric.
        tenths: Metrics by the length of prompts.
        gauges: Over time, where they were asked for.
        problems: Why the run is invalid; empty for a valid one.
        notes: What a reader has to know of the workload.
        reasons: How many logical requests ended early, by reason.
    """

    metrics: RunMetrics
    tenths: tuple[PromptTenth, ...]
    gauges: tuple[GaugeSample, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """A run, and what else is kept of it than its metrics.

    Args:
        run: The run.
        gauges_period_s: Between two looks at the gateways' gauges; 0: none.
    """

    run: Run
    gauges_period_s: float = 0.0

    @property
    def key(self) -> str:
        """All that decides what comes of it but the code, written out; how it is called and judged is not in it."""
        its, variant, seed = self.run.scenario, self.run.variant, self.run.seed
        decisive = (
            its.fleet_spec(variant),
            its.dispatcher_spec(variant),
            its.workload,
            its.clients,
            its.slos,
            its.windows,
            its.duration_s,
            its.warm_up_s,
            its.drain_s,
            its.all_faults(variant, seed),
            its.load_coordinator_outages,
            seed,
            self.gauges_period_s,
        )
        return repr(decisive)


def run_kept(what: LabRun, folder: Path) -> LabRecord:
    """What a run comes to: what is kept of it, or else what it comes to now, which is kept.

    Args:
        what: The run.
        folder: Of what is kept.

    Raises:
        ConfigError: The scenario's trace or profile can't be read.
        RunFailed: Something raised in the middle, most likely a policy.
    """
    cache = RunCache(folder, what.run.scenario)
    kept = cache.get(what.key)
    if kept is not None:
        return msgspec.msgpack.decode(kept, type=LabRecord)
    record = _run(what)
    cache.put(what.key, msgspec.msgpack.encode(record))
    return record


def _run(what: LabRun) -> LabRecord:
    gauges: list[GaugeSample] = []
    tenths: list[PromptTenth] = []

    def keep_tenths(run: Run, table: RunTable) -> None:
        tenths.extend(prompt_tenths(derive(table, run.scenario.slos, run.scenario.window)))

    def keep_gauges(gateway: int, at_s: float, values: Mapping[str, float]) -> None:
        gauges.append(GaugeSample(gateway, at_s, values))

    simulated = simulate
    if what.gauges_period_s:
        simulated = partial(simulate, watched=WatchedGauges(keep_gauges, what.gauges_period_s))
    result = run(what.run, simulated, keep_tenths)
    return LabRecord(
        metrics=result.metrics,
        tenths=tuple(tenths),
        gauges=tuple(gauges),
        problems=result.problems,
        notes=result.notes,
        reasons=result.reasons,
    )
