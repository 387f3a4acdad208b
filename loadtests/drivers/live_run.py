"""A scenario against a deployment that is there: what every driver sends, and what is made of what it measured.

The workload, its SLOs and its checks are the scenario's. Fleet and policies are the deployment's own, whatever the
scenario has, and nothing goes wrong there that nobody does to it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx
import msgspec

from cluster.seeds import Seeds
from cluster.sim.run_table import OUTCOMES, RunTable
from loadtests.drivers.completions import KEY_VARIABLE, authorization
from loadtests.drivers.plan_parts import WHOLE, PartOfWorkload, Share
from loadtests.drivers.prompts import ORDINARY_TOKENS, PromptTokens
from loadtests.results.checks import Check, judge
from loadtests.results.client_health import ClientHealth, health_problems
from loadtests.results.lost_time import binding
from loadtests.results.metrics import ALL, RunMetrics, quantile_name
from loadtests.results.run_folder import NO_DETAILS, SavedRun
from loadtests.results.run_record import (
    MISSED,
    NOT_JUDGED,
    CheckResult,
    Moment,
    RequestDetails,
    RunRecord,
    check_result,
    defined,
)
from loadtests.scenario.experiment import Experiment
from loadtests.scenario.scenario import POLICY, load
from loadtests.schema.ranges import require
from loadtests.simulation.results_file import package_versions
from loadtests.simulation.run_metrics import metrics_of, reasons_of, trace_notes, with_abandoned
from loadtests.simulation.verdict import Verdict
from loadtests.workloads.clients import AbandonedRequest, Clients
from policies.errors import ConfigError

MAX_IN_FLIGHT = 2_000
"""More streams than one process keeps up with."""
INTERRUPTED = "the run was interrupted: what had not ended is not in it"
MODELS_TIMEOUT_S = 10.0
MOST_ERRORS_SHOWN = 5
MOST_WRONG_LENGTHS_FRACTION = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlan:
    """What is to be sent.

    Args:
        scenario: Who wants what: a scenario with the duration that is wanted, or one run of a study.
        seed: Of all random streams.
        rate_fraction: Share of the scenario's logical requests that are sent.
        classes: Names of the traffic classes that are sent.
        salt: Of the prompts: runs with different ones share no text, so no run warms the caches for the next.
        variant: What of the scenario serves.

    Raises:
        ConfigError: The fraction is out of range, or there is no such class.
    """

    scenario: Experiment
    seed: int
    rate_fraction: float
    classes: frozenset[str]
    salt: str
    variant: str = POLICY

    def __post_init__(self) -> None:
        self.part()

    def part(self, share: Share = WHOLE) -> PartOfWorkload:
        """The workload, or one worker's share of it."""
        whole = self.scenario.workload.build(self.scenario.duration_s)
        return PartOfWorkload(whole=whole, fraction=self.rate_fraction, classes=self.classes, share=share)

    def clients(self, share: Share = WHOLE) -> Clients:
        """Who sends it."""
        return Clients(self.part(share), Seeds(self.seed), self.scenario.clients)

    def prompts(self) -> PromptTokens:
        """The text of the prompts."""
        return PromptTokens(ORDINARY_TOKENS, self.salt)

    @property
    def until_s(self) -> float:
        """When nobody waits for answers any longer, on the run's clock."""
        return self.scenario.duration_s + self.scenario.drain_s


def plan_of(
    scenario: str,
    *,
    seed: int,
    rate_fraction: float,
    salt: str,
    duration_s: float | None = None,
    classes: Sequence[str] = (),
) -> LivePlan:
    """Reads a scenario and says what of it is to be sent.

    Args:
        scenario: A name in the library, or a file.
        seed: Of all random streams.
        rate_fraction: Share of the scenario's logical requests that are sent.
        salt: Of the prompts.
        duration_s: Instead of the scenario's own.
        classes: Names of the traffic classes that are sent; all of them where there is none.

    Raises:
        ConfigError: There is no such scenario, or it can't be run so; field, value and what is allowed.
    """
    found = load(scenario)
    if duration_s is not None:
        require(0 < duration_s < math.inf, "duration", duration_s, "a number of seconds above 0")
        found = found.changed(duration_s=duration_s)
    chosen = frozenset(classes or found.workload.class_names)
    return LivePlan(scenario=found, seed=seed, rate_fraction=rate_fraction, classes=chosen, salt=salt)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def discover_model(base_url: str) -> str:
    """The name of the first model that an OpenAI endpoint serves.

    Raises:
        ConfigError: Nothing answers there, or not as an OpenAI endpoint does.
    """
    allowed = "the base URL of an OpenAI endpoint that is up, such as http://127.0.0.1:8000"
    try:
        answer = httpx.get(f"{base_url}/v1/models", headers=authorization(), timeout=MODELS_TIMEOUT_S)
        answer.raise_for_status()
        models = msgspec.json.decode(answer.content, type=_Models).data
    except httpx.HTTPStatusError as error:
        is_locked = error.response.status_code == 401
        key = f", and its key in the environment variable {KEY_VARIABLE}" if is_locked else ""
        raise ConfigError("--host", base_url, f"{allowed}{key} ({error})") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError("--host", base_url, f"{allowed} ({type(error).__name__}: {error})") from error
    except msgspec.MsgspecError as error:
        raise ConfigError("--host", base_url, f"{allowed} (what /v1/models answers is no list of models)") from error
    if not models:
        raise ConfigError("--host", base_url, f"{allowed} (it serves no model)")
    return models[0].id


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """What a driver brings home.

    Args:
        driver: One of ``run_folder.DRIVERS``.
        target: The base URL.
        started_at: Date and time of the run's time 0, ISO 8601.
        table: A row for each request that has ended.
        details: What else is known of each row, in the same order.
        health: How the client fared; ``None`` in virtual time, where there is none.
        abandoned: Turns of sessions that were never sent.
        problems: Why the run proves nothing, as far as the driver knows, a sentence each.
        packages: Names of the packages whose versions matter.
        moments: What the deployment said of itself meanwhile.
        notes: What a reader has to know of how it was measured, a sentence each.
    """

    driver: str
    target: str
    started_at: str
    table: RunTable
    details: Sequence[RequestDetails]
    health: ClientHealth | None
    abandoned: Sequence[AbandonedRequest] = ()
    problems: Sequence[str] = ()
    packages: Sequence[str] = ()
    moments: Sequence[Moment] = ()
    notes: Sequence[str] = ()


def unanswered(num_unanswered: int, plan: LivePlan) -> list[str]:
    """What is wrong with a run in which so many requests had no answer at its hard end."""
    if not num_unanswered:
        return []
    return [f"{num_unanswered:,} requests had no answer {plan.scenario.drain_s:g} s after the last was due"]


def judged(plan: LivePlan, measured: LiveResult) -> SavedRun:
    """The run as its folder has it: metrics, checks and the verdict."""
    scenario = plan.scenario
    table = with_abandoned(measured.table, measured.abandoned)
    metrics = metrics_of(scenario, table)
    checks = tuple(_result_of(check, metrics, plan.seed) for check in scenario.checks_of_one_run)
    problems = (*measured.problems, *_problems(plan, measured, metrics), *_unproven(table, checks))
    record = RunRecord(
        scenario=scenario.name,
        description=" ".join(scenario.description.split()),
        driver=measured.driver,
        variant=plan.variant,
        target=measured.target,
        seed=plan.seed,
        started_at=measured.started_at,
        duration_s=scenario.duration_s,
        warm_up_s=scenario.warm_up_s,
        rate_fraction=plan.rate_fraction,
        traffic_classes=tuple(scenario.workload.class_names),
        slos=scenario.slos,
        metrics=defined(metrics),
        checks=checks,
        verdict=_verdict_of(checks, problems).name,
        problems=problems,
        notes=(*_notes(plan, table, measured.health), *measured.notes, *_binding(scenario, metrics)),
        health=measured.health,
        moments=tuple(measured.moments),
        versions=package_versions(measured.packages),
    )
    details = [*measured.details, *[NO_DETAILS] * len(measured.abandoned)] if measured.details else ()
    return SavedRun(record=record, table=table, details=details)


def _binding(scenario: Experiment, metrics: RunMetrics) -> list[str]:
    """What binds, where the run's own table says so, as a simulated one's does."""
    said = binding([metrics], (ALL, *scenario.workload.class_names))
    return [said] if said else []


def _result_of(check: Check, metrics: RunMetrics, seed: int) -> CheckResult:
    """What becomes of a check by one run alone: nothing, where it wants a baseline or more samples than there are."""
    if check.against is not None:
        problem = f"needs a run of {check.against} to compare with"
        return CheckResult(text=check.text, value=None, verdict=NOT_JUDGED, problem=problem)
    return check_result(judge(check, {seed: metrics}, {}))


def _verdict_of(checks: Sequence[CheckResult], problems: Sequence[str]) -> Verdict:
    """Invalid with any problem; failed with any check that was missed."""
    if problems:
        return Verdict.INVALID
    return Verdict.FAIL if any(check.verdict == MISSED for check in checks) else Verdict.PASS


def _problems(plan: LivePlan, measured: LiveResult, metrics: RunMetrics) -> Iterator[str]:
    window, health, due_s = plan.scenario.window, measured.health, measured.table.scheduled_s
    is_measured = (due_s >= window.from_s) & (due_s < window.until_s)
    if not is_measured.any() and not measured.problems:
        yield f"nothing was wanted from {window.from_s:g} s to {window.until_s:g} s: raise the rate fraction"
    if health is None:
        return
    yield from health_problems(health, metrics[ALL][quantile_name("ttft", 0.5)].value)
    if health.wrong_lengths > MOST_WRONG_LENGTHS_FRACTION * health.sent:
        yield (
            f"{health.wrong_lengths:,} answers had another number of tokens than was asked for, without a word of it: "
            "the server does not heed ignore_eos or max_tokens, and what was measured is not the plan"
        )


def _unproven(table: RunTable, checks: Sequence[CheckResult]) -> Iterator[str]:
    """What no check says anything about must not look as if it had passed."""
    if any(check.verdict != NOT_JUDGED for check in checks):
        return
    if checks:
        yield f"none of the {len(checks)} checks could be judged by this run alone: it can neither pass nor fail"
    elif len(table) and not (table.outcome == OUTCOMES.index("completed")).any():
        yield "no request was answered, and no check says what that means"


def _notes(plan: LivePlan, table: RunTable, health: ClientHealth | None) -> Iterator[str]:
    yield from trace_notes(plan.scenario.workload.build(plan.scenario.duration_s), Seeds(plan.seed))
    yield from _counts("not served", reasons_of(table))
    if health is not None:
        yield from _counts("errors seen", health.errors)
        if health.wrong_lengths:
            yield f"{health.wrong_lengths:,} answers had another number of tokens than was asked for"
    if plan.scenario.has_simulated_faults:
        yield "the scenario's faults are the simulator's alone: here nothing went wrong that nobody switched on"


def _counts(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    commonest = sorted(counts.items(), key=lambda each: -each[1])[:MOST_ERRORS_SHOWN]
    if commonest:
        yield f"{title}: " + ", ".join(f"{what} {count:,}" for what, count in commonest)
