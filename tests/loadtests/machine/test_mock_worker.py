"""The mock worker speaks OpenAI's API, at its pace, and the client that asks it counts what came."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from loadtests.machine.mock_worker import MockWorker
from loadtests.machine.paced_client import Answers, Request, at_a_rate, in_a_loop

STEP_S = 0.001


@asynccontextmanager
async def worker(protocol: Callable[[], asyncio.Protocol] = lambda: MockWorker(STEP_S)) -> AsyncIterator[str]:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    yield "http://{}:{}".format(*server.sockets[0].getsockname())
    server.close()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_an_answer_is_whole_or_streamed_and_has_the_length_that_was_asked_for(path: str) -> None:
    async with worker() as url, httpx.AsyncClient(base_url=url) as client:
        whole = await client.post(path, json={"max_tokens": 3})
        streamed = await client.post(path, json={"max_tokens": 3, "stream": True})
        assert whole.json()["usage"]["completion_tokens"] == 3
        events = streamed.text.split("\n\n")
        assert len(events) == 3 + 1 + 1 + 1, "tokens, usage, the end, and what follows it"
        assert events[-2] == "data: [DONE]"


async def test_routers_find_what_they_look_for() -> None:
    async with worker() as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "tiny-llama"
        for path in ("/health", "/get_server_info"):
            assert (await client.get(path)).status_code == 200


async def test_a_client_counts_answers_and_takes_their_times() -> None:
    async with worker() as url:
        for streams in (True, False):
            asked = Request(url=url, max_tokens=4, streams=streams)
            for answers in (await in_a_loop(asked, 20, 4), await at_a_rate(asked, 200.0, 0.1)):
                assert (len(answers.took_s), answers.num_failed) == (20, 0)
                assert min(answers.took_s) >= 5 * STEP_S
                assert answers.quantile_s(0.0) <= answers.quantile_s(0.99)


class HangsUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def test_what_gets_no_answer_has_failed() -> None:
    async with worker(HangsUp) as url:
        answers = await in_a_loop(Request(url=url, max_tokens=1, streams=False), 5, 2)
    assert (answers.took_s, answers.num_failed) == ([], 5)
    assert Answers().quantile_s(0.99) == float("inf")
