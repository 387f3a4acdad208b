"""What a scenario promises: a metric, a limit, and what the metric is compared with."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from loadtests.comparison import Comparison, compare
from loadtests.metrics import ALL, METRICS, Figure, Figures
from policies.errors import ConfigError

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Mark(BaseModel):
    """One thing that has to hold, on the mean over seeds.

    Args:
        metric: A name in ``METRICS``.
        traffic_class: Of which traffic class; ``class`` in a file.
        against: Name of the baseline to compare with; without it the policy's own value is looked at.
        difference: Look at policy minus baseline instead of policy / baseline.
        at_most: Upper limit.
        at_least: Lower limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True)

    metric: str
    traffic_class: str = Field(default=ALL, alias="class")
    against: str | None = None
    difference: bool = False
    at_most: Finite | None = None
    at_least: Finite | None = None

    def check(self, field: str, classes: Sequence[str], baselines: Sequence[str]) -> None:
        """Whether it can be judged in a scenario with these traffic classes and baselines.

        Raises:
            ConfigError: It can't; names begin with ``field``.
        """
        metric = METRICS.get(self.metric)
        if metric is None:
            raise ConfigError(f"{field}.metric", self.metric, f"one of {sorted(METRICS)}")
        allowed = [ALL, *classes] if metric.per_class else [ALL]
        if self.traffic_class not in allowed:
            raise ConfigError(f"{field}.class", self.traffic_class, f"for {self.metric} one of {allowed}")
        if self.against is not None and self.against not in baselines:
            raise ConfigError(f"{field}.against", self.against, f"one of the baselines {sorted(baselines)}")
        if self.difference and self.against is None:
            raise ConfigError(f"{field}.difference", True, "true only with a baseline in 'against'")
        if self.at_most is None and self.at_least is None:
            raise ConfigError(f"{field}.at_most", None, "at_most, at_least or both")
        if self.at_most is not None and self.at_least is not None and self.at_least > self.at_most:
            raise ConfigError(f"{field}.at_least", self.at_least, f"at most at_most, which is {self.at_most}")

    def limit(self) -> str:
        """The limit as text, such as ``<= 0.6``."""
        limits = [("<=", self.at_most), (">=", self.at_least)]
        return " ".join(f"{sign} {value:.4g}" for sign, value in limits if value is not None)

    def holds_for(self, value: float) -> bool:
        """Whether a value meets the limits; a limit is met up to and including itself."""
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of a mark.

    Args:
        mark: Which.
        value: What was held against the limits: a mean, a ratio or a difference.
        comparison: The comparison behind it, where there is a baseline.
        has_passed: The verdict; ``None`` when it can't be given.
        problem: Why it can't, as a sentence; empty otherwise.
    """

    mark: Mark
    value: float
    comparison: Comparison | None
    has_passed: bool | None
    problem: str


def judge(mark: Mark, policy: Mapping[int, Figures], baselines: Mapping[str, Mapping[int, Figures]]) -> Judgement:
    """Holds a mark against what was measured.

    Args:
        mark: Checked already.
        policy: Figures by seed.
        baselines: The same for each baseline, over the same seeds.
    """
    variants = {"the policy": policy}
    if mark.against is not None:
        variants[mark.against] = baselines[mark.against]
    for variant, runs in variants.items():
        problem = _problem(mark, variant, runs)
        if problem:
            return Judgement(mark=mark, value=float("nan"), comparison=None, has_passed=None, problem=problem)
    ours = values(policy, mark.traffic_class, mark.metric)
    if mark.against is None:
        mean = sum(ours) / len(ours)
        return Judgement(mark=mark, value=mean, comparison=None, has_passed=mark.holds_for(mean), problem="")
    theirs = values(baselines[mark.against], mark.traffic_class, mark.metric)
    return _judge_comparison(mark, compare(ours, theirs, METRICS[mark.metric].better))


def values(runs: Mapping[int, Figures], traffic_class: str, metric: str) -> list[float]:
    """One metric's value for each seed, in order of the seeds; NaN where a run has none."""
    return [_figure(runs[seed], traffic_class, metric).value for seed in sorted(runs)]


def too_few(figures: Figures, traffic_class: str, metric: str) -> bool:
    """Whether a metric was taken over too few samples to be quoted."""
    return _figure(figures, traffic_class, metric).samples < METRICS[metric].min_samples


def _figure(figures: Figures, traffic_class: str, metric: str) -> Figure:
    return figures[traffic_class].get(metric, Figure(value=math.nan, samples=0))


def _problem(mark: Mark, variant: str, runs: Mapping[int, Figures]) -> str:
    for seed in sorted(runs):
        figure = _figure(runs[seed], mark.traffic_class, mark.metric)
        what = f"{mark.metric} of class {mark.traffic_class}, {variant}, seed {seed}"
        if too_few(runs[seed], mark.traffic_class, mark.metric):
            return f"{what}: {figure.samples:,} samples, and it takes {METRICS[mark.metric].min_samples:,}"
        if math.isnan(figure.value):
            return f"{what}: not defined, because there was nothing to take it over"
    return ""


def _judge_comparison(mark: Mark, comparison: Comparison) -> Judgement:
    value = comparison.difference.value if mark.difference else comparison.ratio.value
    if math.isnan(value):
        problem = f"{mark.metric} of class {mark.traffic_class}, {mark.against}: 0, so there is no ratio to it"
        return Judgement(mark=mark, value=value, comparison=comparison, has_passed=None, problem=problem)
    return Judgement(mark=mark, value=value, comparison=comparison, has_passed=mark.holds_for(value), problem="")
