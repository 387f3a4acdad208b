"""What has to hold in a scenario: a metric, a limit, and what the metric is compared with."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from loadtests.results.comparison import Comparison, compare
from loadtests.results.metrics import ALL, METRICS, MetricValue, RunMetrics, windowed
from policies.errors import ConfigError

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Check(BaseModel):
    """One thing that has to hold, on the mean over seeds.

    Args:
        metric: A name in ``METRICS``.
        traffic_class: Of which traffic class; ``class`` in a file.
        against: Name of the baseline to compare with; without it the policy's own value is looked at.
        window: Name of the scenario's window in which it is taken; without it the whole measured time is.
        against_window: Name of another window, in which the policy itself is compared with.
        difference: Look at policy minus baseline instead of policy / baseline.
        at_most: Upper limit.
        at_least: Lower limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True)

    metric: str
    traffic_class: str = Field(default=ALL, alias="class")
    against: str | None = None
    window: str | None = None
    against_window: str | None = None
    difference: bool = False
    at_most: Finite | None = None
    at_least: Finite | None = None

    @property
    def group(self) -> str:
        """Whose metrics it looks at: the traffic class, in the window."""
        return windowed(self.traffic_class, self.window)

    @property
    def compared_with(self) -> str | None:
        """The baseline, or the window of the policy's own run, in words; ``None`` where there is neither."""
        return f"@{self.against_window}" if self.against_window else self.against

    @property
    def compared_group(self) -> str:
        """Whose metrics it is compared with."""
        return windowed(self.traffic_class, self.against_window or self.window)

    def ensure_judgeable(
        self, field: str, classes: Sequence[str], baselines: Sequence[str], windows: Sequence[str] = ()
    ) -> None:
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
        self._check_windows(field, windows, is_per_class=metric.per_class)
        if self.difference and self.compared_with is None:
            raise ConfigError(f"{field}.difference", True, "true only with a baseline in 'against'")
        if self.at_most is None and self.at_least is None:
            raise ConfigError(f"{field}.at_most", None, "at_most, at_least or both")
        if self.at_most is not None and self.at_least is not None and self.at_least > self.at_most:
            raise ConfigError(f"{field}.at_least", self.at_least, f"at most at_most, which is {self.at_most}")

    def _check_windows(self, field: str, windows: Sequence[str], *, is_per_class: bool) -> None:
        allowed = sorted(windows) if is_per_class else f"none, because {self.metric} is known for the whole run alone"
        for name, window in (("window", self.window), ("against_window", self.against_window)):
            if window is not None and (window not in windows or not is_per_class):
                raise ConfigError(f"{field}.{name}", window, f"one of the windows {allowed}")
        if self.against is not None and self.against_window is not None:
            raise ConfigError(f"{field}.against_window", self.against_window, "'against' or 'against_window', not both")

    def limit(self) -> str:
        """The limit as text, such as ``<= 0.6``."""
        limits = [("<=", self.at_most), (">=", self.at_least)]
        return " ".join(f"{sign} {value:.4g}" for sign, value in limits if value is not None)

    @property
    def text(self) -> str:
        """It in words, such as ``ttft_p99_s of long / by-count's <= 0.7``."""
        sign = "-" if self.difference else "/"
        other = "" if self.compared_with is None else f" {sign} {self.compared_with}'s"
        return f"{self.metric} of {self.group}{other} {self.limit()}"

    def holds_for(self, value: float) -> bool:
        """Whether a value meets the limits; a limit is met up to and including itself."""
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of a check.

    Args:
        check: Which.
        value: What was held against the limits: a mean, a ratio or a difference.
        comparison: The comparison behind it, where there is a baseline.
        has_passed: The verdict; ``None`` when it can't be given.
        problem: Why it can't, as a sentence; empty otherwise.
    """

    check: Check
    value: float
    comparison: Comparison | None
    has_passed: bool | None
    problem: str


def judge(
    check: Check, policy: Mapping[int, RunMetrics], baselines: Mapping[str, Mapping[int, RunMetrics]]
) -> Judgement:
    """Holds a check against what was measured.

    Args:
        check: Checked already.
        policy: Metrics by seed.
        baselines: The same for each baseline, over the same seeds.
    """
    other = policy if check.against is None else baselines[check.against]
    sides = [("the policy", policy, check.group)]
    if check.compared_with is not None:
        sides.append((check.against or "the policy", other, check.compared_group))
    for variant, runs, group in sides:
        problem = _problem(check, variant, runs, group)
        if problem:
            return Judgement(check=check, value=float("nan"), comparison=None, has_passed=None, problem=problem)
    ours = values(policy, check.group, check.metric)
    if check.compared_with is None:
        mean = sum(ours) / len(ours)
        return Judgement(check=check, value=mean, comparison=None, has_passed=check.holds_for(mean), problem="")
    theirs = values(other, check.compared_group, check.metric)
    return _judge_comparison(check, compare(ours, theirs, METRICS[check.metric].better))


def values(runs: Mapping[int, RunMetrics], group: str, metric: str) -> list[float]:
    """One metric's value for each seed, in order of the seeds; NaN where a run has none."""
    return [_metric_value(runs[seed], group, metric).value for seed in sorted(runs)]


def too_few(metrics: RunMetrics, group: str, metric: str) -> bool:
    """Whether a metric was taken over too few samples to be quoted."""
    return _metric_value(metrics, group, metric).samples < METRICS[metric].min_samples


def _metric_value(metrics: RunMetrics, group: str, metric: str) -> MetricValue:
    return metrics[group].get(metric, MetricValue(value=math.nan, samples=0))


def _problem(check: Check, variant: str, runs: Mapping[int, RunMetrics], group: str) -> str:
    for seed in sorted(runs):
        metric_value = _metric_value(runs[seed], group, check.metric)
        what = f"{check.metric} of class {group}, {variant}, seed {seed}"
        if too_few(runs[seed], group, check.metric):
            return f"{what}: {metric_value.samples:,} samples, and it takes {METRICS[check.metric].min_samples:,}"
        if math.isnan(metric_value.value):
            return f"{what}: not defined, because there was nothing to take it over"
    return ""


def _judge_comparison(check: Check, comparison: Comparison) -> Judgement:
    value = comparison.difference.value if check.difference else comparison.ratio.value
    if math.isnan(value):
        problem = f"{check.metric} of class {check.group}, {check.compared_with}: 0, so there is no ratio to it"
        return Judgement(check=check, value=value, comparison=comparison, has_passed=None, problem=problem)
    return Judgement(check=check, value=value, comparison=comparison, has_passed=check.holds_for(value), problem="")
