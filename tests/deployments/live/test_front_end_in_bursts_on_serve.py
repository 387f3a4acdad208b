"""vLLM's layer in four gateways under bursts that are too much: every request has one verdict, and a real one."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deployments.config import ROOT
from deployments.launch import Deployment, running
from engines.peer_port import free_port
from tests.deployments.gateway_logs import check_logs
from tests.engines.emulated_engines import ensure_models
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.proof]

NUM_BURSTS, OF_A_BURST = 20, 60
MODEL = "llama-8b"
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """``pipeline.yaml`` behind HAProxy, with four gateways and engines a tenth as fast."""
    ensure_models()
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "pipeline.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    for model in args["models"]:
        for pool in model["pools"]:
            pool |= {"num_cpus": 0.01, "max_num_seqs": 8}
    args["engine"]["emulation"] |= {"speed": 0.1, "mean_output_tokens": 20}
    args["gateway"] |= {"num_cpus": 0.01, "replicas": 4, "request_timeout_s": 20, "load_coordinator": True}
    folder = tmp_path_factory.mktemp("bursts")
    args["gateway"]["event_log"] = str(folder / "logs")
    config = folder / "bursts.yaml"
    config.write_text(yaml.safe_dump(document))
    with running(config, free_port("127.0.0.1")) as deployment:
        wait_until(lambda: len(by_gateway(deployment, "spillway_requests_open")) == 4, "four gateways tell", 120)
        yield deployment
    check_logs(folder / "logs")


def by_gateway(deployment: Deployment, name: str, **labels: str) -> dict[str, float]:
    """A metric's sum for each gateway."""
    page = HTTP.get(f"{deployment.url}/metrics", timeout=30).text
    found: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                found[sample.labels["gateway"]] += sample.value
    return dict(found)


async def verdict(asking: Any) -> str:
    """How a request ended; a stream's end is one only if it says so."""
    try:
        answer = await asking
        if isinstance(answer, AsyncIterator):
            ends = [each.choices[0].finish_reason async for each in answer if each.choices]
            return "answered" if ends and ends[-1] else "no end"
        return "answered"
    except openai.APIStatusError as error:
        is_real = error.status_code == 504 or "retry-after" in error.response.headers
        return str(error.status_code) if is_real and error.response.headers["x-spillway-reason"] else "bare"
    except openai.APIError as error:
        return f"stream: {error.code}" if error.code else repr(error)


def asked(client: openai.AsyncOpenAI, rng: random.Random) -> Any:
    """One of five kinds, each by vLLM's layer."""
    said: Any = [{"role": "user", "content": "water " * rng.choice((10, 300))}]
    short: dict[str, Any] = {"model": MODEL, "max_tokens": 12}
    chat: Any = client.chat.completions.create
    return rng.choice(
        (
            lambda: chat(messages=said, n=2, temperature=1.0, **short),
            lambda: chat(messages=said, tools=TOOLS, tool_choice="none", stream=True, **short),
            lambda: client.completions.create(prompt=["one", "two"], **short),
            lambda: client.completions.create(prompt="three", echo=True, stream=True, **short),
            lambda: client.embeddings.create(model="embedder", input=[f"text {rng.random()}" for _ in range(20)]),
        )
    )()


async def bursts(deployment: Deployment) -> Counter[str]:
    rng, verdicts = random.Random(11), []
    async with openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="any", max_retries=2, timeout=60) as client:
        for _ in range(NUM_BURSTS):
            verdicts += [asyncio.create_task(verdict(asked(client, rng))) for _ in range(OF_A_BURST)]
            await asyncio.sleep(rng.expovariate(1.0))
        return Counter(await asyncio.gather(*verdicts))


def test_every_request_of_every_burst_has_a_verdict_and_nothing_is_left_open(deployment: Deployment) -> None:
    verdicts = asyncio.run(bursts(deployment))

    print(dict(verdicts))
    assert sum(verdicts.values()) == NUM_BURSTS * OF_A_BURST
    assert set(verdicts) <= {"answered", "429", "503", "504", "stream: deadline_exceeded"}, verdicts
    assert verdicts["answered"] > 100
    assert verdicts["429"] > 20, "it was not too much"

    def completed() -> dict[str, float]:
        return by_gateway(deployment, "spillway_requests_total", outcome="completed")

    wait_until(lambda: sum(completed().values()) >= verdicts["answered"], "gateways have told what they have served")
    print(completed())
    assert min(completed().values()) > 0
    assert len(completed()) == 4, "every gateway has had some"
    wait_until(lambda: not any(by_gateway(deployment, "spillway_requests_open").values()), "nothing is left open")
