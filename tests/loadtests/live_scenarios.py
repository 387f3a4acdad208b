"""Small scenario files for the drivers that talk to something that is there, and clients that are well."""

from pathlib import Path
from typing import Any

import yaml

from loadtests.results.client_health import ClientHealth


def write_scenario(folder: Path, *, name: str = "small", rate_per_s: float = 20.0, **changes: object) -> Path:
    """A scenario of two classes in a folder; other fields of the file by their names."""
    requests = {"prompt_tokens": 20, "output_tokens": 5, "timeout_s": 30}
    document = {
        "version": 1,
        "name": name,
        "description": "Is anybody there?",
        "profile": "h100-llama3-8b",
        "fleet": {"pools": [{"role": "unified", "replicas": 2}]},
        "policies": {"planning": "always_unified"},
        "baselines": {"random": {"balancing": "random"}},
        "workload": {
            "classes": [
                {"name": "short", "arrivals": {"poisson": {"rate_per_s": rate_per_s}}, **requests},
                {"name": "long", "arrivals": {"poisson": {"rate_per_s": rate_per_s / 4}}, **requests},
            ]
        },
        "duration_s": 1.0,
        "warm_up_s": 0.0,
        "slos": {"short": {"ttft_s": 60.0}, "long": {"ttft_s": 60.0}},
        "checks": [{"metric": "ok_fraction", "at_least": 0.99}],
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document | changes, sort_keys=False))
    return path


def health(**changes: Any) -> ClientHealth:
    """A client that is well, but for the changes."""
    values: dict[str, Any] = {
        "sent": 1_000,
        "send_lag_p99_s": 0.002,
        "cpu_fraction": 0.3,
        "achieved_fraction": 1.0,
        "wrong_lengths": 0,
        "cached_tokens": 0,
        "errors": {},
    }
    return ClientHealth(**values | changes)
