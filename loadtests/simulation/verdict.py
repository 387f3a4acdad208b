"""What the runs of a scenario come to: its checks, its comparisons, and whether it passed, failed or proves nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from loadtests.results.checks import Check, Judgement, judge, values
from loadtests.results.comparison import Comparison, compare
from loadtests.results.metrics import METRICS, RunMetrics
from loadtests.scenario.scenario import POLICY, Scenario
from loadtests.simulation.simulation import RunResult


class Verdict(IntEnum):
    """The exit code; the worse, the higher."""

    PASS = 0
    FAIL = 1
    INVALID = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioReport:
    """A scenario that was run.

    Args:
        scenario: The scenario.
        results: Its runs by variant and seed.
        judgements: Its checks, in the order of the file.
        problems: Why it proves nothing, a sentence each.
    """

    scenario: Scenario
    results: Mapping[str, Mapping[int, RunResult]]
    judgements: Sequence[Judgement]
    problems: Sequence[str]

    @property
    def verdict(self) -> Verdict:
        """Invalid when any run is or any check can't be judged; failed when a check does not hold."""
        if self.problems:
            return Verdict.INVALID
        return Verdict.PASS if all(each.has_passed for each in self.judgements) else Verdict.FAIL

    @property
    def num_requests(self) -> int:
        """Requests that were simulated, over all runs."""
        return sum(result.num_requests for runs in self.results.values() for result in runs.values())

    @property
    def run_s(self) -> float:
        """Time that the runs took, added up as if one had come after the other."""
        return sum(result.wall_s for runs in self.results.values() for result in runs.values())

    @property
    def notes(self) -> list[str]:
        """What a reader has to know beside the table: of the workload, and why logical requests ended early."""
        runs = [result for of_variant in self.results.values() for result in of_variant.values()]
        notes = list(dict.fromkeys(note for result in runs for note in result.notes))
        for variant, of_variant in self.results.items():
            reasons: Counter[str] = Counter()
            for result in of_variant.values():
                reasons.update(result.reasons)
            if reasons:
                ended = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
                notes.append(f"{variant}: not served: {ended}")
        return notes

    def metrics(self, variant: str) -> dict[int, RunMetrics]:
        """Metrics of a variant by seed."""
        return {seed: result.metrics for seed, result in self.results[variant].items()}

    def compared_by(self, check: Check) -> Comparison | None:
        """What a check compares, or would compare if it had a limit; ``None`` where it compares nothing."""
        if check.compared_with is None:
            return None
        ours = values(self.metrics(POLICY), check.group, check.metric)
        theirs = values(self.metrics(check.against or POLICY), check.compared_group, check.metric)
        return compare(ours, theirs, METRICS[check.metric].better)

    def compared(self, traffic_class: str, metric: str, baseline: str) -> Comparison:
        """The policy against a baseline."""
        ours, theirs = (values(self.metrics(variant), traffic_class, metric) for variant in (POLICY, baseline))
        return compare(ours, theirs, METRICS[metric].better)


def report(scenario: Scenario, results: Iterable[RunResult]) -> ScenarioReport:
    """Judges a scenario by all its runs.

    Args:
        scenario: The scenario.
        results: One for each variant and seed.
    """
    by_variant: dict[str, dict[int, RunResult]] = {variant: {} for variant in scenario.variants}
    for result in results:
        by_variant[result.run.variant][result.run.seed] = result
    metrics = {variant: {seed: result.metrics for seed, result in runs.items()} for variant, runs in by_variant.items()}
    policy = metrics.pop(POLICY)
    judgements = [judge(check, policy, metrics) for check in scenario.checks]
    of_runs = [problem for runs in by_variant.values() for seed in sorted(runs) for problem in runs[seed].problems]
    of_checks = [judgement.problem for judgement in judgements if judgement.problem]
    return ScenarioReport(scenario=scenario, results=by_variant, judgements=judgements, problems=[*of_runs, *of_checks])


def overall(reports: Sequence[ScenarioReport]) -> Verdict:
    """The worst verdict."""
    return max((each.verdict for each in reports), default=Verdict.INVALID)
