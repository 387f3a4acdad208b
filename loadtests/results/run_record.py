"""What a run leaves on disk, as data."""

import math

import msgspec

from loadtests.results.checks import Judgement
from loadtests.results.client_health import ClientHealth
from loadtests.results.metrics import MetricValue, RunMetrics
from loadtests.results.slo import ClassSlo

VERSION = 2
"""Of the folder's format."""
MET, MISSED, NOT_JUDGED = "met", "missed", "not judged"


class RequestDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a driver knows of one request beside its row in the run's table.

    Args:
        lane: Where the router put it; empty where nobody says.
        longest_gap_s: The longest time between two events that carried tokens; NaN without two.
        stages_s: The service's own account of where the time went, by stage; empty where it gives none.
    """

    lane: str = ""
    longest_gap_s: float = math.nan
    stages_s: dict[str, float] = {}


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one of the scenario's checks.

    Args:
        text: The check in words, with its limit.
        value: What was held against the limit; ``None`` where it could not be judged.
        verdict: ``MET``, ``MISSED`` or ``NOT_JUDGED``.
        problem: Why it was not judged; empty otherwise.
    """

    text: str
    value: float | None
    verdict: str
    problem: str = ""


def check_result(judgement: Judgement) -> CheckResult:
    """What became of a check that was judged, or could not be."""
    if judgement.has_passed is None:
        return CheckResult(text=judgement.check.text, value=None, verdict=NOT_JUDGED, problem=judgement.problem)
    verdict = MET if judgement.has_passed else MISSED
    return CheckResult(text=judgement.check.text, value=judgement.value, verdict=verdict)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What a deployment said of itself at one time of the run.

    Args:
        at_s: On the run's clock.
        gauges: Values by name: ``queue_requests``, ``queue_work_s``, ``shed_fraction``, ``requests_open``, and others.
    """

    at_s: float
    gauges: dict[str, float]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What ``run.json`` holds.

    Args:
        version: Of the format.
        scenario: The scenario's name.
        description: The question that it answers.
        driver: One of ``DRIVERS``.
        variant: ``policy``, or the scenario's baseline that was run.
        target: What served: a base URL, or the profile and fleet of the simulator.
        seed: Of the plan.
        started_at: Date and time, ISO 8601; empty in virtual time.
        duration_s: For how long there were arrivals, on the run's clock.
        warm_up_s: What was wanted before is not measured.
        rate_fraction: Rate of the plan's arrivals, as a fraction of the scenario's.
        traffic_classes: Names, in the table's order.
        slos: The SLOs of each.
        metrics: Every metric by traffic class that is defined there; see :func:`defined`.
        checks: The scenario's checks.
        verdict: ``PASS``, ``FAIL`` or ``INVALID``.
        problems: Why it is invalid, a sentence each.
        notes: What a reader has to know.
        health: How the client fared; ``None`` in virtual time.
        moments: What the deployment said of itself, in order of time.
        versions: Of the packages that matter.
    """

    version: int = VERSION
    scenario: str
    description: str
    driver: str
    variant: str
    target: str
    seed: int
    started_at: str
    duration_s: float
    warm_up_s: float
    rate_fraction: float
    traffic_classes: tuple[str, ...]
    slos: dict[str, ClassSlo]
    metrics: dict[str, dict[str, MetricValue]]
    checks: tuple[CheckResult, ...]
    verdict: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    health: ClientHealth | None
    moments: tuple[Moment, ...]
    versions: dict[str, str]


def defined(metrics: RunMetrics) -> dict[str, dict[str, MetricValue]]:
    """Metrics without those that are NaN, which JSON does not know."""
    return {
        group: {name: metric_value for name, metric_value in of_group.items() if math.isfinite(metric_value.value)}
        for group, of_group in metrics.items()
    }
