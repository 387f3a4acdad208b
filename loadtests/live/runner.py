"""Runs a study: finds the capacity, starts each variant once, drives it with every plan, and looks at what is left."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtests.drivers.live_run import INTERRUPTED, LivePlan, LiveResult, judged
from loadtests.drivers.one_process import OneProcess
from loadtests.live import reference_client
from loadtests.live.actions import Doings, meanwhile
from loadtests.live.deployed import Deployed, deployed
from loadtests.live.measures import of_client, of_gateways
from loadtests.live.outcome import StudyOutcome, StudyRun
from loadtests.live.plans import run_plan, steady_plan
from loadtests.live.study import Study
from loadtests.live.study_parts import Flood
from loadtests.machine.machine_load import ForeignLoad
from loadtests.machine.told_steps import Tell
from loadtests.results.analysis import completions_per_s
from loadtests.results.metrics import ALL, MetricValue
from loadtests.results.run_folder import SavedRun
from loadtests.results.run_record import defined
from loadtests.simulation.save_folder import fill_folder
from loadtests.simulation.verdict import Verdict
from loadtests.watch.shed_divergence import FractionWatch, least_spread

WARM_UP_RPS, WARM_UP_S, WARM_UP_DRAIN_S = 4.0, 5.0, 30.0
LEAST_FOREIGN_FRACTION = 0.05
"""Less of the machine than that is not worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a study is run.

    Args:
        only: Variants; all of them where there is none.
        port: Where deployments answer, one after the other.
        folder: For runs, logs and configurations.
        tell: Told what begins, once for each start, capacity and run.
    """

    only: Sequence[str] = ()
    port: int
    folder: Path
    tell: Tell


def num_steps(study: Study, only: Sequence[str]) -> int:
    """How often a study tells what begins."""
    wanted = only or list(study.variants)
    starts = dict.fromkeys((*_flooded(study), *wanted))
    return len(starts) + len(_flooded(study)) + len(wanted) * len(study.loads) * len(study.seeds)


def run_study(study: Study, options: Options, outcome: StudyOutcome) -> None:
    """Runs it.

    Args:
        study: Which.
        options: How.
        outcome: Gets each run as soon as it has ended.

    Raises:
        ConfigError: A deployment can't be had as the study wants it.
        RuntimeError: A deployment did not start, or completed nothing in the flood.
        KeyboardInterrupt: It was interrupted; what was started has ended.
    """
    wanted = options.only or list(study.variants)
    if not isinstance(study.capacity, Flood):
        outcome.capacity_rps = study.capacity
    for variant in dict.fromkeys((*_flooded(study), *wanted)):
        options.tell(f"{variant}: starting")
        with _started(study, variant, options) as running:
            _drive(steady_plan(study, WARM_UP_RPS, WARM_UP_S, "warm-up", drain_s=WARM_UP_DRAIN_S), running)
            if variant in _flooded(study):
                options.tell(f"{variant}: capacity")
                outcome.capacity_rps = _capacity_rps(study, running)
            for seed in study.seeds if variant in wanted else ():
                for load in study.loads:
                    options.tell(f"{variant}: {load:g} of {outcome.capacity_rps:.1f} requests/s, seed {seed}")
                    plan = run_plan(study, variant, load, outcome.capacity_rps, seed)
                    saved = _run(study, plan, running, options)
                    outcome.runs.append(StudyRun(variant=variant, load=load, seed=seed, saved=saved))
                    fill_folder(options.folder / f"{_slug(variant)}-{load:g}-{seed}", saved)


def _flooded(study: Study) -> tuple[str, ...]:
    return (study.capacity.variant,) if isinstance(study.capacity, Flood) else ()


def _slug(variant: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in variant)


@contextmanager
def _started(study: Study, variant: str, options: Options) -> Iterator[Deployed]:
    cores = study.deployment.cores
    pinned = (cores.engines, cores.others) if cores is not None else None
    with deployed(_slug(variant), study.document(variant), options.folder, options.port, pinned) as running:
        running.at_rest()
        yield running


def _drive(plan: LivePlan, running: Deployed) -> LiveResult:
    """Our client, to the plan's end; raises ``KeyboardInterrupt`` where that ended it."""
    result = OneProcess(plan, running.endpoint, max_in_flight=math.inf).run()
    if INTERRUPTED in result.problems:
        raise KeyboardInterrupt
    return result


def _capacity_rps(study: Study, running: Deployed) -> float:
    """What is completed of far too much.

    Raises:
        RuntimeError: Nothing.
    """
    flood = study.capacity
    assert isinstance(flood, Flood)
    table = _drive(steady_plan(study, flood.requests_per_s, flood.for_s, "flood", drain_s=0.0), running).table
    running.at_rest()
    capacity_rps = completions_per_s(table, flood.settles_s, flood.for_s)
    if not capacity_rps:
        raise RuntimeError(f"{study.name}: nothing was completed of a flood of {len(table)} requests")
    return capacity_rps


def _run(study: Study, plan: LivePlan, running: Deployed, options: Options) -> SavedRun:
    """One run with its actions, and the metrics of client, gateways and machine beside those of its requests."""
    before, foreign = running.at_rest(), ForeignLoad(running.pid)
    duration_s = plan.scenario.duration_s
    watch = FractionWatch(running.url, plan.scenario.window)
    actions = [each for each in study.actions if not each.variants or plan.variant in each.variants]
    looks = watch if running.num_gateways > 1 else nullcontext()  # a single one diverges from nobody
    with meanwhile(actions, running, plan.seed, duration_s) as doings, looks:
        if study.variants[plan.variant].driver == reference_client.DRIVER:
            result = reference_client.drive(plan, running.endpoint, options.folder)
        else:
            result = _drive(plan, running)
    foreign_fraction = foreign.fraction()
    after = running.at_rest()
    saved = judged(plan, result)
    extra = {
        "foreign_fraction": MetricValue(value=foreign_fraction, samples=1),
        "actions_done": MetricValue(value=doings.num_done, samples=len(study.actions)),
        "reported_divergence": MetricValue(value=watch.spread, samples=len(watch.by_gateway)),
        "shed_spread_least": MetricValue(
            value=least_spread(saved.table, plan.scenario.window), samples=len(saved.table)
        ),
    }
    if result.health is not None:
        extra |= of_client(saved.table, result.health)
    wrong_lengths = result.health.wrong_lengths if result.health is not None else 0
    extra |= of_gateways(result.table, wrong_lengths, before, after, doings.slowed_ids)
    return _with(saved, extra, doings, _foreign_problems(study, foreign_fraction))


def _foreign_problems(study: Study, foreign_fraction: float) -> list[str]:
    if foreign_fraction <= study.most_foreign_fraction:
        return []
    return [f"other work took {foreign_fraction:.0%} of the machine (allowed: {study.most_foreign_fraction:.0%})"]


def _with(saved: SavedRun, extra: dict[str, MetricValue], doings: Doings, problems: Sequence[str]) -> SavedRun:
    record = saved.record
    metrics = {**record.metrics, ALL: {**record.metrics[ALL], **defined({ALL: extra})[ALL]}}
    foreign_fraction = extra["foreign_fraction"].value
    notes = [*record.notes, *doings.notes]
    if foreign_fraction > LEAST_FOREIGN_FRACTION:
        notes.append(f"other work took {foreign_fraction:.0%} of the machine")
    changed = msgspec.structs.replace(
        record,
        metrics=metrics,
        notes=tuple(notes),
        problems=(*record.problems, *problems),
        verdict=Verdict.INVALID.name if problems else record.verdict,
    )
    return msgspec.structs.replace(saved, record=changed)
