"""The deployments that tests of the running service share; each starts when the first of them asks for it."""

from collections.abc import AsyncIterator, Iterator

import httpx
import openai
import pytest
import pytest_asyncio

from deployments.config import ROOT
from tests.deployments.live_cluster import Live, RayNodes, application, ray_nodes, vllm_args
from tests.deployments.reloadable import Reloadable, running


@pytest.fixture(scope="package")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """Three Ray nodes with Serve."""
    with ray_nodes(tmp_path_factory.mktemp("gateway-logs")) as running:
        yield running


@pytest.fixture(scope="package")
def live(nodes: RayNodes) -> Iterator[Live]:
    """One gateway on the head, a prefill and a decode replica of vLLM on their nodes, warm."""
    from engines.vllm.tiny_model import ensure_tiny_model

    args = vllm_args()
    ensure_tiny_model(ROOT / args["model"]["path"])
    with application(nodes, "spillway", args) as running:
        yield running


@pytest.fixture(scope="package")
def reloadable(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloadable]:
    """One emulated replica, and a gateway with keys whose policies each test chooses."""
    with running(nodes, tmp_path_factory.mktemp("reloadable")) as made:
        yield made


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


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whichever comes first bears the start of the cluster and of two engines: minutes where cores are slow."""
    if item.get_closest_marker("ray"):
        item.add_marker(pytest.mark.timeout(900))
