"""Runs that were made before, by the content of all that decides them: scenario, seed, code, traces, own policies."""

import hashlib
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from loadtests.scenario.scenario import Scenario
from loadtests.simulation.compiled.build import sources_hash


class RunCache:
    """What is kept of runs of one scenario, a file each.

    A policy that is named by an import path counts with the source of its module; what that imports from elsewhere
    does not, so after a change there the folder has to go.

    Args:
        folder: Where; made with the first run.
        scenario: The scenario.
    """

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self._folder = folder
        self._content = "\n".join((_code(), *_contents(scenario)))

    def get(self, key: str) -> bytes | None:
        """What is kept; ``None`` where nothing is."""
        try:
            return self._path(key).read_bytes()
        except OSError:
            return None

    def put(self, key: str, record: bytes) -> None:
        """Keeps a run. Another process may keep the same one at the same time."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as unfinished:
            unfinished.write(record)
        Path(unfinished.name).replace(path)

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(f"{self._content}\n{key}".encode()).hexdigest()[:32]
        return self._folder / name[:2] / f"{name}.msgpack"


@cache
def _code() -> str:
    """Once for each process: code that is edited while it runs is not what it runs."""
    return sources_hash()


def _contents(scenario: Scenario) -> Iterator[str]:
    """Hashes of the files that a scenario names: traces, modules of policies."""
    paths = [Path(each.path) for each in scenario.workload.traces]
    for name in sorted({name for each in scenario.variants.values() for name in _own_policies(each.model_dump())}):
        found = importlib.util.find_spec(name.partition(":")[0])
        if found is not None and found.origin is not None:
            paths.append(Path(found.origin))
    for path in paths:
        yield hashlib.sha256(path.read_bytes()).hexdigest()


def _own_policies(part: object) -> Iterator[str]:
    """Import paths in a part of a configuration."""
    if isinstance(part, Mapping):
        name = part.get("name")
        if isinstance(name, str) and ":" in name:
            yield name
        for each in part.values():
            yield from _own_policies(each)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _own_policies(each)
