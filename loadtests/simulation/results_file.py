"""Everything that a set of simulated scenarios came to, as JSON for other programs. What is not defined is ``null``."""

import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel

from loadtests.results.metrics import ALL, METRICS
from loadtests.simulation.result_table import profile_of
from loadtests.simulation.verdict import ScenarioReport, overall
from policies.errors import ConfigError

VERSION = 1
"""Of the file's format."""
PACKAGES = ("numpy", "scipy", "msgspec", "spillway")


def check_can_be_written(path: Path) -> None:
    """Makes the file's folder where there is none; better before the runs than after them.

    Raises:
        ConfigError: Nothing can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigError("--json", str(path), f"a file that can be written ({error.strerror})") from error


def write_results(path: Path, reports: Sequence[ScenarioReport], arguments: Sequence[str]) -> None:
    """Writes the file.

    Args:
        path: Where.
        reports: What is in it.
        arguments: The command line that led to it.
    """
    encoded = msgspec.json.encode(_document(reports, arguments), enc_hook=_encode)
    path.write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")


def _document(reports: Sequence[ScenarioReport], arguments: Sequence[str]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "arguments": list(arguments),
        "versions": package_versions(),
        "metrics": METRICS,
        "verdict": overall(reports).name,
        "scenarios": [_scenario(each) for each in reports],
    }


def package_versions(others: Sequence[str] = ()) -> dict[str, str]:
    """Python's version, those of the packages that metrics depend on, and of others."""
    return {"python": platform.python_version(), **dict(_installed((*PACKAGES, *others)))}


def _installed(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _scenario(each: ScenarioReport) -> dict[str, Any]:
    scenario = each.scenario
    return {
        "name": scenario.name,
        "description": scenario.description,
        "verdict": each.verdict.name,
        "problems": each.problems,
        "notes": each.notes,
        "profile": profile_of(scenario),
        "seeds": scenario.seeds,
        "duration_s": scenario.duration_s,
        "warm_up_s": scenario.warm_up_s,
        "slos": scenario.slos,
        "checks": each.judgements,
        "comparisons": list(_comparisons(each)),
        "variants": {
            variant: {"policies": policies, "runs": {seed: _run(each, variant, seed) for seed in scenario.seeds}}
            for variant, policies in scenario.variants.items()
        },
    }


def _run(each: ScenarioReport, variant: str, seed: int) -> dict[str, Any]:
    result = each.results[variant][seed]
    return {
        "metrics": result.metrics,
        "problems": result.problems,
        "notes": result.notes,
        "reasons": result.reasons,
        "num_requests": result.num_requests,
        "wall_s": result.wall_s,
    }


def _comparisons(each: ScenarioReport) -> Iterator[dict[str, Any]]:
    for baseline in each.scenario.baselines:
        for traffic_class in (ALL, *each.scenario.workload.class_names):
            for metric in METRICS.values():
                if metric.per_class or traffic_class == ALL:
                    comparison = each.compared(traffic_class, metric.name, baseline)
                    yield {"class": traffic_class, "metric": metric.name, "against": baseline, "comparison": comparison}


def _encode(value: object) -> object:
    """Whatever msgspec does not know."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"got a {type(value).__name__}; allowed: what JSON can hold")
