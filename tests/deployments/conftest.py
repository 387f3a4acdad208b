"""The deployment that every test of the running service shares; it starts when the first of them asks for it."""

from collections.abc import AsyncIterator, Iterator

import httpx
import openai
import pytest
import pytest_asyncio

from tests.deployments.live_cluster import Live, RayNodes, deploy, ray_nodes


@pytest.fixture(scope="package")
def nodes() -> Iterator[RayNodes]:
    """Three Ray nodes with Serve."""
    with ray_nodes() as running:
        yield running


@pytest.fixture(scope="package")
def live(nodes: RayNodes) -> Live:
    """One gateway on the head, a prefill and a decode replica on their nodes, warm."""
    return deploy(nodes)


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, without its retries."""
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest_asyncio.fixture
async def async_client(live: Live) -> AsyncIterator[openai.AsyncOpenAI]:
    """The asynchronous one."""
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def http(live: Live) -> Iterator[httpx.Client]:
    """For what OpenAI's client can't send."""
    with httpx.Client(base_url=live.url, timeout=120) as made:
        yield made
