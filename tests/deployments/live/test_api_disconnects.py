"""Clients that leave, and many that stay. Many that leave in mid-stream are for `make smoke`."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from tests.deployments.live_cluster import MODEL, Live
from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

NUM_MIXED = 40


@pytest_asyncio.fixture
async def http(live: Live) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=live.url, timeout=120, limits=limits) as made:
        yield made


@pytest_asyncio.fixture
async def idle_usage(live: Live) -> dict[str, float]:
    """KV usage of each pool before anything runs."""
    await until(live.is_idle, "nothing runs before the test")
    return live.kv_usage()


async def freed(live: Live, usage: dict[str, float]) -> None:
    """Waits until no trace of earlier requests is left."""
    await until(live.is_idle, "no request is open, running or waiting")
    await until(lambda: live.kv_usage() == usage, f"KV usage is back at {usage}")


def a_long_answer(number: int, *, stream: bool) -> dict[str, object]:
    prompt = [30 + number, *range(100, 300)]
    return {"model": MODEL, "prompt": prompt, "max_tokens": 6000, "ignore_eos": True, "stream": stream}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_engine_works_frees_everything(
    live: Live, http: httpx.AsyncClient, idle_usage: dict[str, float], stream: bool
) -> None:
    cancelled = live.metric("spillway_requests_total", outcome="cancelled")
    request = asyncio.create_task(http.post("/v1/completions", json=a_long_answer(77, stream=stream)))
    await until(lambda: live.metric("spillway_replica_num_requests_running", pool="decode") == 1, "the request runs")

    request.cancel()
    await asyncio.wait([request])

    assert request.cancelled()
    await freed(live, idle_usage)
    assert live.metric("spillway_requests_total", outcome="cancelled") == cancelled + 1


async def test_clients_that_leave_before_their_first_token_free_everything(
    live: Live, http: httpx.AsyncClient, idle_usage: dict[str, float]
) -> None:
    prompts = [[90 + number] * 4000 for number in range(6)]
    bodies = [
        a_long_answer(number, stream=number % 2 == 0) | {"prompt": prompt, "max_tokens": 4000}
        for number, prompt in enumerate(prompts)
    ]
    requests = [asyncio.create_task(http.post("/v1/completions", json=body)) for body in bodies]
    await until(lambda: live.metric("spillway_requests_open") == len(requests), "all requests have arrived")

    for request in requests:
        request.cancel()
    await asyncio.wait(requests)

    await freed(live, idle_usage)


async def streamed_completion(client: openai.AsyncOpenAI, number: int) -> int:
    stream = await client.completions.create(
        model=MODEL,
        prompt=[40 + number] * (1 + number * 37 % 900),
        max_tokens=5 + number,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    usages = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage is not None]
    assert len(usages) == 1
    return usages[0]


async def streamed_chat(client: openai.AsyncOpenAI, number: int) -> int:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"water {number} " * (1 + number)}]
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_completion_tokens=5 + number,
        logprobs=True,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    tokens = 0
    async for chunk in stream:
        if chunk.choices[0].logprobs is not None:
            tokens += len(chunk.choices[0].logprobs.content or ())
    return tokens


async def whole_completion(client: openai.AsyncOpenAI, number: int) -> int:
    answer = await client.completions.create(
        model=MODEL, prompt=f"water {number}", max_tokens=5 + number, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    return answer.usage.completion_tokens


async def test_many_mixed_requests_at_once_each_get_all_their_tokens(
    live: Live, async_client: openai.AsyncOpenAI, idle_usage: dict[str, float]
) -> None:
    kinds = (streamed_completion, streamed_chat, streamed_completion, whole_completion)

    tokens = await asyncio.gather(*(kinds[number % len(kinds)](async_client, number) for number in range(NUM_MIXED)))

    assert tokens == [5 + number for number in range(NUM_MIXED)]
    await freed(live, idle_usage)
