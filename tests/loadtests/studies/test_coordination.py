"""What the checks of coordination are held against, and what is deployed."""

from loadtests.results.metrics import MetricValue
from loadtests.studies import coordination
from loadtests.studies.coordination import (
    ALONE,
    DEAF,
    LEAST_SPREAD,
    REPORTED_DIVERGENCE,
    TOGETHER,
    CoordinationResult,
    VariantMetrics,
)
from tests.tables import for_each


def metrics(
    sessions: float, requests: float = 1.0, same: float = 1.0, spread: float = 0.0, said: float = 0.0
) -> VariantMetrics:
    values = {
        "session_goodput_fraction": sessions,
        "sends_per_sent_request": requests,
        "same_answer_fraction": same,
        "shed_spread": spread,
        LEAST_SPREAD: 0.0,
        REPORTED_DIVERGENCE: said,
    }
    return {name: MetricValue(value=value, samples=100) for name, value in values.items()}


def measured(together: VariantMetrics, deaf: VariantMetrics, *, was_killed: bool = True) -> CoordinationResult:
    runs = {ALONE: metrics(0.2, requests=2.5), TOGETHER: together, DEAF: deaf}
    return CoordinationResult(capacity_rps=20.0, metrics=runs, was_killed=was_killed)


GOOD = metrics(0.4, requests=1.1)


@for_each(
    ("found", "missed"),
    [
        (measured(GOOD, GOOD), []),
        (measured(metrics(0.25), GOOD), ["session_goodput_fraction"]),
        (measured(metrics(0.4, requests=1.5), GOOD), ["sends_per_sent_request"]),
        (measured(GOOD, metrics(0.4, same=0.9)), ["same_answer_fraction"]),
        (measured(GOOD, metrics(0.4, spread=0.05)), ["shed_spread"]),
        (measured(GOOD, metrics(0.4, said=0.05)), ["reported_divergence"]),
        (measured(GOOD, GOOD, was_killed=False), ["killed"]),
    ],
    ids=[
        "all well",
        "few sessions",
        "many requests",
        "another answer",
        "apart",
        "say otherwise",
        "no load coordinator",
    ],
)
def test_every_check_can_be_missed(found: CoordinationResult, missed: list[str]) -> None:
    lines, are_met = coordination.verdicts(found)

    assert are_met is (not missed)
    assert all(any(word in line for line in lines if line.endswith("MISSED")) for word in missed)
    assert sum(line.endswith("MISSED") for line in lines) == len(missed)
