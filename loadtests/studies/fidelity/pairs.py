"""Runs of deployments, each beside the same plan in virtual time, as a study left them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadtests.live.outcome import StudyOutcome, StudyRun
from loadtests.live.study_parts import SIMULATED
from loadtests.results.metrics import ALL


class Shown(NamedTuple):
    """How a metric is shown: its label, and its unit as a factor and in words."""

    label: str
    factor: float
    unit: str


SHOWN: Mapping[str, Shown] = {
    "ttft_p50_s": Shown("TTFT p50", 1000.0, "ms"),
    "ttft_p99_s": Shown("TTFT p99", 1000.0, "ms"),
    "tpot_p50_s": Shown("TPOT p50", 1000.0, "ms"),
    "e2e_p50_s": Shown("E2E p50", 1000.0, "ms"),
    "e2e_p99_s": Shown("E2E p99", 1000.0, "ms"),
    "throughput_tokens_per_s": Shown("throughput", 1.0, "tokens/s"),
}
"""The metrics that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One plan, run for real and in virtual time.

    Args:
        measured: The run of the deployment.
        simulated: The other one.
    """

    measured: StudyRun
    simulated: StudyRun

    @property
    def place(self) -> tuple[str, float]:
        """The variant, and the load as a share of the capacity."""
        return self.measured.variant, self.measured.load

    @property
    def invalid_because(self) -> tuple[str, ...]:
        """What speaks against the measurement; nothing, if it is valid."""
        completed = value(self.measured, "ok_fraction")
        health = self.measured.saved.record.health
        wrong_lengths = health.wrong_lengths if health is not None else 0
        reasons = [each.partition(" (")[0] for each in self.measured.saved.record.problems]
        reasons += [f"{completed:.1%} completed"] if completed < 1 else []
        reasons += [f"{wrong_lengths} answers of a wrong length"] if wrong_lengths else []
        return tuple(reasons)

    def error(self, metric: str) -> float:
        """(simulated - measured) / measured: above 0, the simulator is too slow. NaN when nothing was measured."""
        measured = value(self.measured, metric)
        return value(self.simulated, metric) / measured - 1 if measured > 0 else math.nan


def value(run: StudyRun, metric: str) -> float:
    """A metric of one run, over all traffic classes; NaN where it is not defined."""
    found = run.saved.record.metrics.get(ALL, {}).get(metric)
    return math.nan if found is None else found.value


def values(runs: Sequence[StudyRun], metric: str) -> list[float]:
    """The same of several runs."""
    return [value(each, metric) for each in runs]


def pairs_of(outcome: StudyOutcome) -> list[Pair]:
    """The pairs of a study, as far as both were run."""
    runs = {(run.variant, run.load, run.seed): run for run in outcome.runs}
    counterparts = [(run, runs.get((f"{run.variant}{SIMULATED}", run.load, run.seed))) for run in outcome.runs]
    return [Pair(measured=run, simulated=other) for run, other in counterparts if other is not None]


def goals_of(outcome: StudyOutcome) -> dict[tuple[str, str], float]:
    """The largest error that the study's checks allow, by variant and metric."""
    checks = [check for check in outcome.study.single_checks if check.variant == f"{check.against}{SIMULATED}"]
    return {
        (check.against, check.metric): round(check.at_most - 1, 9)
        for check in checks
        if check.against is not None and check.at_most is not None
    }
