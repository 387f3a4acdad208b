"""What holds for all tests: how examples are drawn, and what `make test` runs beside what.

Hypothesis draws the same examples every time, and no example fails for being slow on a busy machine.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.browser import browser

__all__ = ["browser"]

settings.register_profile(
    "spillway", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
settings.load_profile("spillway")

LIVE = "(ray or vllm)"
"""How the expression begins by which `make test` chooses the tests that start a cluster or an engine."""


class ByPackage(LoadScopeScheduling):
    """Each package's tests in one process, so that those of Ray share a cluster, beside those of engines without it."""

    def _split_scope(self, nodeid: str) -> str:
        return "/".join(nodeid.split("/")[:2])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByPackage | None:
    """What ``--dist loadscope`` means here; every other way of sharing work is xdist's own."""
    return ByPackage(config, log) if config.option.dist == "loadscope" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where live tests are chosen, files without any are not imported: there are some thousand tests in them."""
    if not config.option.markexpr.startswith(LIVE) or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    return None if "pytest.mark.ray" in text or "pytest.mark.vllm" in text else True
