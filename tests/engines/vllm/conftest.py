"""What tests of real engines begin with; an engine starts where a test asks for it."""

from collections.abc import AsyncIterator

import pytest_asyncio

from engines import Engine
from policies.views import Role
from tests.engines.vllm_engines import engine_environment, running


@pytest_asyncio.fixture(scope="module")
async def environment() -> AsyncIterator[None]:
    """A replica's."""
    async with engine_environment():
        yield


@pytest_asyncio.fixture(scope="module")
async def alone(environment: None) -> AsyncIterator[Engine]:
    """A unified engine with one worker, which others are compared with."""
    async with running(Role.UNIFIED) as engine:
        yield engine
