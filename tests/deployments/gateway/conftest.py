"""What one test's host waits for does not happen in another one's test."""

from collections.abc import Iterator

import pytest

from tests.deployments.host_dialogue import HOSTS


@pytest.fixture(autouse=True)
def hosts_wait_for_nothing() -> Iterator[None]:
    yield
    for host in HOSTS:
        host.forget_timers()
