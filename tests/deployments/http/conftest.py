"""Gateways run on uvloop, which has ways of its own with descriptors, and so do these tests."""

from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], uvloop.Loop]]:
    """Where a test's event loop comes from."""
    return {"uvloop": uvloop.new_event_loop}
