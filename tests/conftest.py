"""What holds for all tests: how examples are drawn, and what `make test` runs beside what.

Hypothesis draws the same examples every time, and no example fails for being slow on a busy machine.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.browser import browser
from tests.parsing import one_parse_at_a_time

__all__ = ["browser"]

settings.register_profile(
    "spillway", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
settings.load_profile("spillway")
one_parse_at_a_time()

LIVE = "(ray or vllm)"
"""How the expression begins by which `make test` chooses the tests that start a cluster or an engine."""


SHARED_CLUSTER = "live_cluster"
"""What tests on the cluster of Ray that they share have it from."""
REAL_ENGINES = "pytest.mark.vllm"
LONG = ("simulation/compiled/test_build.py", "test_dispatcher_machine.py", "test_locustfile.py")
"""Files that take minutes: begun last, they would run alone."""


class ByCluster(LoadScopeScheduling):
    """The tests that share a cluster in one process: one for those with real engines, one for the others."""

    def _split_scope(self, nodeid: str) -> str:
        name = nodeid.partition("::")[0]
        file = self.config.rootpath / name
        if not _is_on_the_cluster(file):
            return name
        return f"{SHARED_CLUSTER} with engines" if REAL_ENGINES in file.read_text() else SHARED_CLUSTER


@cache
def _is_on_the_cluster(file: Path) -> bool:
    return SHARED_CLUSTER in file.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCluster | None:
    """What ``--dist loadscope`` means here; every other way of sharing work is xdist's own."""
    return ByCluster(config, log) if config.option.dist == "loadscope" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, with xdist's ``--no-loadscope-reorder``."""
    items.sort(key=lambda item: not _takes_long(item.path))


def _takes_long(file: Path) -> bool:
    return file.as_posix().endswith(LONG) or _is_on_the_cluster(file)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where live tests are chosen, files without any are not imported: there are some thousand tests in them."""
    if not config.option.markexpr.startswith(LIVE) or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    return None if "pytest.mark.ray" in text or "pytest.mark.vllm" in text else True
