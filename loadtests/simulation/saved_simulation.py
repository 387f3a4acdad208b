"""Simulated runs as folders: ``FOLDER/SCENARIO/VARIANT-SEED``, as every driver leaves them.

Requests are written by the process that simulated them. The record and JUnit follow when all runs of the scenario are
done, because a check is judged by all of its seeds: every run of the policy carries what became of it over all of them.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cluster.sim.run_table import RunTable
from loadtests.results.lost_time import binding
from loadtests.results.metrics import ALL
from loadtests.results.run_folder import SIMULATOR, write_requests
from loadtests.results.run_record import RunRecord, check_result, defined
from loadtests.scenario.scenario import POLICY
from loadtests.simulation.junit import JUNIT_FILE
from loadtests.simulation.result_table import profile_of
from loadtests.simulation.results_file import package_versions
from loadtests.simulation.save_folder import fill_record
from loadtests.simulation.simulation import Run, RunResult
from loadtests.simulation.verdict import ScenarioReport, Verdict
from policies.errors import ConfigError


def save_requests(root: Path, run: Run, table: RunTable) -> None:
    """Writes a run's requests.

    Args:
        root: The folder of all runs.
        run: Which.
        table: Its requests.

    Raises:
        ConfigError: They can't be written.
    """
    folder = folder_of(root, run)
    try:
        write_requests(folder, table)
        (folder / JUNIT_FILE).unlink(missing_ok=True)  # of an earlier run, like the record
    except OSError as error:
        raise ConfigError("--save", str(root), f"a folder that can be written ({error.strerror})") from error


def save_records(root: Path, reports: Sequence[ScenarioReport]) -> None:
    """Writes what each run came to, beside its requests.

    Args:
        root: The folder of all runs.
        reports: Scenarios whose requests have been saved there.
    """
    for report in reports:
        for results in report.results.values():
            for result in results.values():
                fill_record(folder_of(root, result.run), _record(report, result))


def folder_of(root: Path, run: Run) -> Path:
    """Where a run is."""
    return root / run.scenario.name / f"{run.variant}-{run.seed}"


def _record(report: ScenarioReport, result: RunResult) -> RunRecord:
    scenario, run = report.scenario, result.run
    is_policy = run.variant == POLICY
    verdict = Verdict.INVALID if result.problems else Verdict.PASS
    return RunRecord(
        scenario=scenario.name,
        description=scenario.description,
        driver=SIMULATOR,
        variant=run.variant,
        target=_target(run),
        seed=run.seed,
        started_at="",
        duration_s=scenario.duration_s,
        warm_up_s=scenario.warm_up_s,
        rate_fraction=1.0,
        traffic_classes=scenario.workload.class_names,
        slos=scenario.slos,
        metrics=defined(result.metrics),
        checks=tuple(map(check_result, report.judgements)) if is_policy else (),
        verdict=(report.verdict if is_policy else verdict).name,
        problems=tuple(report.problems) if is_policy else result.problems,
        notes=(*result.notes, *filter(None, [binding([result.metrics], [ALL, *scenario.workload.class_names])])),
        health=None,
        moments=(),
        versions=package_versions(),
    )


def _target(run: Run) -> str:
    """``h100-llama3-8b: 4 prefill, 4 decode, 2 gateways``."""
    fleet = run.scenario.fleet_spec(run.variant)
    replicas: Counter[str] = Counter()
    for pool in fleet.pools:
        replicas[pool.role.value] += pool.replicas
    parts = [f"{count} {role}" for role, count in replicas.items()]
    gateways = f"{fleet.num_gateways} gateway{'s' if fleet.num_gateways > 1 else ''}"
    return f"{profile_of(run.scenario).name}: {', '.join((*parts, gateways))}"
