"""What tests of emulated engines begin and end with."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.engines.emulated_engines import ensure_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> None:
    """It is there."""
    ensure_tokenizer()


@pytest_asyncio.fixture
async def no_task_is_left() -> AsyncIterator[None]:
    """Engines that are closed have ended what they began."""
    before = asyncio.all_tasks()
    yield
    for _ in range(100):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}
