"""Small studies, and what their runs may have measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loadtests.live.outcome import StudyOutcome, StudyRun
from loadtests.live.study import Study, load
from loadtests.results.metrics import ALL, MetricValue
from tests.loadtests.run_tables import RequestRow
from tests.loadtests.saved_runs import saved_run

WITH, WITHOUT = "with", "without"
NOTHING: Mapping[str, float] = {}


def document(**changes: Any) -> dict[str, Any]:
    """Two variants of emulated engines; other fields of the file by their names."""
    chat = {"name": "chat", "prompt_tokens": 20, "output_tokens": 5, "timeout_s": 30}
    poisson = {"arrivals": {"poisson": {"rate_per_s": 3}}}
    return {
        "version": 1,
        "name": "small",
        "description": "Is anything in time?",
        "deployment": {"config": "emulated.yaml"},
        "variants": {WITHOUT: {}, WITH: {"args": {"policies": {"balancing": "power_of_two"}}}},
        "capacity": {"requests_per_s": 10},
        "workload": {"classes": [chat | poisson, chat | poisson | {"name": "document"}]},
        "duration_s": 60,
        "warm_up_s": 5,
        "slos": {"chat": {"ttft_s": 0.3}, "document": {"ttft_s": 1}},
        "checks": [{"metric": "goodput_fraction", "variant": WITH, "at_least": 0.9}],
    } | changes


def write_study(folder: Path, **changes: Any) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(document(**changes), sort_keys=False))
    return path


def study(folder: Path, **changes: Any) -> Study:
    return load(str(write_study(folder, **changes)))


def ran(
    variant: str, load_: float = 1.0, *, seed: int = 1, metrics: Mapping[str, float] = NOTHING, **changes: Any
) -> StudyRun:
    """A run with such metrics of all classes together, over as many samples as it takes."""
    saved = saved_run([], is_told=False, variant=variant, seed=seed, **changes)
    found = {name: MetricValue(value=value, samples=10_000) for name, value in metrics.items()}
    changed = msgspec.structs.replace(saved.record, metrics={ALL: found})
    return StudyRun(variant=variant, load=load_, seed=seed, saved=msgspec.structs.replace(saved, record=changed))


def ran_with(variant: str, ttfts_s: list[float], seed: int) -> StudyRun:
    """A run of requests that took so long to their first token."""
    made = [
        RequestRow(logical_request=number, at_s=10.0, ttft_s=each, e2e_s=each + 0.1, output_tokens=5)
        for number, each in enumerate(ttfts_s)
    ]
    return StudyRun(variant=variant, load=1.0, seed=seed, saved=saved_run(made, is_told=False, seed=seed))


def outcome_of(asked: Study, *runs: StudyRun) -> StudyOutcome:
    return StudyOutcome(study=asked, capacities_rps={WITHOUT: 10.0, WITH: 10.0}, runs=list(runs))


def verdicts(outcome: StudyOutcome) -> dict[str, str]:
    return {each.text: each.verdict for each in outcome.results()}
