"""Runs a study: finds capacities, starts each variant once, drives it with every plan, and looks at what is left."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from engines.model.profile import load_profile
from loadtests.drivers.completions import Endpoint
from loadtests.drivers.live_run import INTERRUPTED, LivePlan, LiveResult, judged
from loadtests.drivers.one_process import OneProcess
from loadtests.live import reference_client
from loadtests.live.actions import meanwhile
from loadtests.live.counterpart import Counterpart
from loadtests.live.deployed import Deployed, deployed
from loadtests.live.hop import with_hop
from loadtests.live.outcome import StudyOutcome, StudyRun
from loadtests.live.plans import run_plan, steady_plan
from loadtests.live.study import Study
from loadtests.live.study_parts import SIMULATED, Flood
from loadtests.machine.machine_load import ForeignLoad
from loadtests.machine.told_steps import Tell
from loadtests.results.analysis import completions_per_s
from loadtests.results.metrics import ALL, MetricValue
from loadtests.results.recovery import recovered_after
from loadtests.results.replica_counts import held_s
from loadtests.results.run_folder import SavedRun
from loadtests.results.run_record import defined
from loadtests.simulation.save_folder import fill_folder
from loadtests.simulation.verdict import Verdict
from loadtests.watch.measures import of_client, of_gateways
from loadtests.watch.periodic_look import PeriodicLook
from loadtests.watch.process_growth import ProcessGrowth
from loadtests.watch.shed_divergence import FractionWatch, least_spread

WARM_UP_RPS, WARM_UP_S, WARM_UP_DRAIN_S = 4.0, 5.0, 30.0
OWN_LOOK_EVERY_S = 5.0
"""At what the deployment's processes have used, some of which may be gone by the end."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    """A variant that is up.

    Args:
        study: What it is a variant of.
        variant: Its name.
        running: Its deployment.
        counterpart: The same in virtual time, where that is wanted.
    """

    study: Study
    variant: str
    running: Deployed
    counterpart: Counterpart | None


def num_steps(study: Study, only: Sequence[str]) -> int:
    """How often a study tells what begins."""
    wanted = only or list(study.variants)
    flooded = _flooded(study, wanted)
    starts = dict.fromkeys((*flooded, *wanted))
    return len(starts) + len(flooded) + len(wanted) * len(study.loads) * len(study.seeds)


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
    flooded = _flooded(study, wanted)
    if not isinstance(study.capacity, Flood):
        own = {name: study.variants[name].requests_per_s for name in wanted}
        outcome.capacities_rps = {name: own_rps or study.capacity for name, own_rps in own.items()}
    for variant in dict.fromkeys((*flooded, *wanted)):
        options.tell(f"{variant}: starting")
        with _started(study, variant, options) as running:
            warm_up = steady_plan(study, variant, WARM_UP_RPS, WARM_UP_S, "warm-up", drain_s=WARM_UP_DRAIN_S)
            _drive(warm_up, running.endpoint)
            counterpart = _counterpart(study, variant, running)
            serving = _Serving(study=study, variant=variant, running=running, counterpart=counterpart)
            if variant in flooded:
                options.tell(f"{variant}: capacity")
                capacity_rps, serving = _flood(serving)
                outcome.capacities_rps |= dict.fromkeys([variant] if len(flooded) > 1 else wanted, capacity_rps)
            if variant in wanted:
                _run_plans(serving, options, outcome)


def _flooded(study: Study, wanted: Sequence[str]) -> Sequence[str]:
    if not isinstance(study.capacity, Flood):
        return ()
    return wanted if study.capacity.variant is None else (study.capacity.variant,)


def _slug(variant: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in variant)


@contextmanager
def _started(study: Study, variant: str, options: Options) -> Iterator[Deployed]:
    cores = study.deployment.cores
    pinned = (cores.engines, cores.others) if cores is not None else None
    named = deployed(
        _slug(variant),
        study.document(variant),
        options.folder,
        options.port,
        pinned,
        num_nodes=study.variants[variant].nodes,
    )
    with named as running:
        running.at_rest()
        yield running


def _drive(plan: LivePlan, endpoint: Endpoint) -> LiveResult:
    """Our client, to the plan's end; raises ``KeyboardInterrupt`` where that ended it."""
    result = OneProcess(plan, endpoint, max_in_flight=math.inf).run()
    if INTERRUPTED in result.problems:
        raise KeyboardInterrupt
    return result


def _counterpart(study: Study, variant: str, running: Deployed) -> Counterpart | None:
    if study.simulated is None:
        return None
    profile = load_profile(study.simulated.profile)
    return with_hop(Counterpart(document=study.document(variant), profile=profile), running)


def _flood(serving: _Serving) -> tuple[float, _Serving]:
    """What is completed of far too much, requests a second; what the simulator says of it becomes a note.

    Raises:
        RuntimeError: Nothing.
    """
    study, counterpart, flood = serving.study, serving.counterpart, serving.study.capacity
    assert isinstance(flood, Flood)
    plan = steady_plan(study, serving.variant, flood.requests_per_s, flood.for_s, "flood", drain_s=0.0)
    table = _drive(plan, serving.running.endpoint).table
    serving.running.at_rest()
    capacity_rps = completions_per_s(table, flood.settles_s, flood.for_s)
    if not capacity_rps:
        raise RuntimeError(f"{study.name}: nothing was completed of a flood of {len(table)} requests")
    if counterpart is None:
        return capacity_rps, serving
    simulated_rps = completions_per_s(counterpart.run(plan).table, flood.settles_s, flood.for_s)
    error = f"{simulated_rps / capacity_rps - 1:+.0%}"
    note = f"capacity: {capacity_rps:.1f} requests/s measured, {simulated_rps:.1f} simulated ({error})"
    return capacity_rps, replace(serving, counterpart=replace(counterpart, notes=(*counterpart.notes, note)))


def _run_plans(serving: _Serving, options: Options, outcome: StudyOutcome) -> None:
    """Every load with every seed, and after each run the same plan in virtual time where that is wanted."""
    study, variant = serving.study, serving.variant
    capacity_rps = outcome.capacities_rps[variant]
    for seed in study.seeds:
        for load in study.loads:
            options.tell(f"{variant}: {load:g} of {capacity_rps:.1f} requests/s, seed {seed}")
            plan = run_plan(study, variant, load, capacity_rps, seed)
            runs = {variant: _run(study, plan, serving.running, options)}
            if serving.counterpart is not None:
                runs[f"{variant}{SIMULATED}"] = serving.counterpart.run(plan)
            for name, saved in runs.items():
                outcome.runs.append(StudyRun(variant=name, load=load, seed=seed, saved=saved))
                fill_folder(options.folder / f"{_slug(name)}-{load:g}-{seed}", saved)


def _run(study: Study, plan: LivePlan, running: Deployed, options: Options) -> SavedRun:
    """One run with its actions, and the metrics of client, gateways and machine beside those of its requests."""
    before, foreign = running.at_rest(), ForeignLoad(running.pid)
    watch = FractionWatch(running.url, plan.scenario.window)
    duration_s = plan.scenario.duration_s
    chosen = (each for each in study.actions if not each.variants or plan.variant in each.variants)
    actions = [once for each in chosen for once in each.each_time(running.pools, duration_s, plan.seed)]
    looks = watch if running.num_gateways > 1 else nullcontext()  # a single one diverges from nobody
    growth = ProcessGrowth(running.pid, [str(each["name"]) for each in running.pools])
    own = PeriodicLook(lambda: foreign.look() and growth.look(), OWN_LOOK_EVERY_S)
    with meanwhile(actions, running, plan.seed, duration_s) as doings, looks, own:
        result = _result(study, plan, running, options)
    foreign_fraction = foreign.fraction()
    after = running.at_rest()
    saved = judged(plan, result)
    extra = {
        "foreign_fraction": MetricValue(value=foreign_fraction, samples=1),
        "replica_s": MetricValue(value=held_s(result.moments), samples=len(result.moments)),
        "actions_done": MetricValue(value=doings.num_done, samples=len(actions)),
    }
    extra |= growth.metrics() | _spreads(watch, saved, plan)
    if actions:
        extra["recovered_after_s"] = recovered_after(saved.table, study.warm_up_s, min(each.at_s for each in actions))
    wrong_lengths = 0
    if result.health is not None:
        extra |= of_client(saved.table, result.health)
        wrong_lengths = result.health.wrong_lengths
    extra |= of_gateways(result.table, wrong_lengths, before, after, doings.slowed_ids)
    return _with(saved, extra, doings.notes, _foreign_problems(study, foreign_fraction))


def _spreads(watch: FractionWatch, saved: SavedRun, plan: LivePlan) -> dict[str, MetricValue]:
    """How differently gateways shed."""
    least = least_spread(saved.table, plan.scenario.window)
    return {
        "reported_divergence": MetricValue(value=watch.spread, samples=len(watch.by_gateway)),
        "shed_spread_least": MetricValue(value=least, samples=len(saved.table)),
    }


def _result(study: Study, plan: LivePlan, running: Deployed, options: Options) -> LiveResult:
    """What the variant's driver makes of a plan."""
    variant = study.variants[plan.variant]
    if variant.driver == reference_client.DRIVER:
        return reference_client.drive(plan, running.endpoint, options.folder)
    own = replace(running.endpoint, reads_bytes_per_s=variant.reads_bytes_per_s, reconnects=variant.reconnects)
    return _drive(plan, own)


def _foreign_problems(study: Study, foreign_fraction: float) -> list[str]:
    if foreign_fraction <= study.most_foreign_fraction:
        return []
    return [f"other work took {foreign_fraction:.0%} of the machine (allowed: {study.most_foreign_fraction:.0%})"]


def _with(saved: SavedRun, extra: dict[str, MetricValue], said: Sequence[str], problems: Sequence[str]) -> SavedRun:
    record = saved.record
    metrics = {**record.metrics, ALL: {**record.metrics[ALL], **defined({ALL: extra})[ALL]}}
    foreign_fraction = extra["foreign_fraction"].value
    notes = [*record.notes, *said]
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
