"""Emulated engines on Ray Serve: the same API, the same failures, without vLLM or a GPU."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import msgspec
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments import faults
from deployments.config import ROOT
from policies.errors import ConfigError
from tests.deployments.live_cluster import RayNodes, application, emulated_args, replicas_of
from tests.deployments.otlp_collector import STAGES, Collector, attributes, collecting
from tests.plain_http import HTTP
from tests.waiting import wait_until

MODEL = "tiny-llama"
APPLICATION = "emulated"
LONG = {"model": MODEL, "prompt": "Hello", "max_tokens": 8000, "ignore_eos": True, "temperature": 0, "stream": True}


def test_a_replica_of_emulated_engines_loads_neither_vllm_nor_torch_nor_transformers() -> None:
    """In a process of its own, with everything that such a replica's process imports."""
    script = (
        "import sys, deployments.replica.replicas; print(sorted({'vllm', 'torch', 'transformers'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def application_args(collector: Collector) -> dict[str, Any]:
    """``emulated.yaml``, five times as fast, with one prefill and two decode replicas, and traces for who asks.

    All streams may be on the replica that crashes, which is more than a budget of retries has for so few requests.
    """
    args = emulated_args(pools=(1, 2), quarantine_s=0.5, retry_after_s=1)
    args["engine"]["emulation"]["speed"] = 5.0
    for pool in args["pools"]:
        pool["health_check_period_s"] = 0.5
    args["policies"]["retrying"] = "at_once"
    args["tracing"] = {"endpoint": collector.endpoint, "sampled_fraction": 0.0}
    return args


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def url(nodes: RayNodes, collector: Collector) -> Iterator[str]:
    """Where the application answers, beside whatever else the cluster serves."""
    with application(nodes, APPLICATION, application_args(collector)) as live:
        yield live.url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def switch(kind: str, pool: str, replica_id: str) -> None:
    faults.switch(kind, pool, replica_id, application=APPLICATION)


def answer(url: str, **changes: Any) -> httpx.Response:
    body = {**LONG, "max_tokens": 8, "stream": False, **changes}
    return HTTP.post(f"{url}/v1/completions", json=body, timeout=60)


def text_of(stream: httpx.Response) -> str:
    """The text of a stream that ends as it should."""
    *events, last = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert last == "[DONE]", events[-1]
    return "".join(choice["text"] for event in events for choice in msgspec.json.decode(event)["choices"])


def resumptions(url: str) -> float:
    """How many answers have gone on elsewhere so far."""
    families = text_string_to_metric_families(HTTP.get(f"{url}/metrics", timeout=30).text)
    return sum(
        sample.value for each in families for sample in each.samples if sample.name == "spillway_resumptions_total"
    )


pytestmark = pytest.mark.ray


def test_a_chat_is_answered_in_words_with_usage(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Tell me about queues."}], max_tokens=20, temperature=0
    )

    assert chat.choices[0].message.content
    assert chat.choices[0].message.content.isascii()
    assert chat.usage is not None
    assert chat.usage.completion_tokens <= 20


def test_a_stream_gives_the_text_and_the_tokens_of_a_whole_answer(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "Water", "max_tokens": 30, "temperature": 0}

    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True))

    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert len(chunks) > 1
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_trace_has_every_stage_and_hangs_below_the_clients_own(client: openai.OpenAI, collector: Collector) -> None:
    trace_id, parent_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

    answer = client.completions.create(
        model=MODEL,
        prompt="Water " * 50,
        max_tokens=20,
        extra_body={"ignore_eos": True},
        extra_headers={"traceparent": f"00-{trace_id}-{parent_id}-01"},
    )
    wait_until(lambda: len(collector.trace(trace_id)) > len(STAGES) - 1, "the gateway has sent the trace")

    request, *stages = collector.trace(trace_id)
    assert (request.name, request.parent_span_id.hex()) == (f"text_completion {MODEL}", parent_id)
    assert {span.name for span in stages} == STAGES - {"lost"}
    assert {span.parent_span_id for span in stages} == {request.span_id}
    said = attributes(request.attributes)
    assert answer.usage is not None
    assert said["gen_ai.usage.input_tokens"] == answer.usage.prompt_tokens
    assert (said["gen_ai.usage.output_tokens"], said["spillway.outcome"]) == (20, "completed")
    assert collector.trace_ids == {trace_id}, "nobody else has asked for one"


def test_a_client_that_asks_is_told_where_its_time_went(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "Water", "max_tokens": 30, "extra_body": {"ignore_eos": True}}
    asked["extra_headers"] = {"x-spillway-latency-budget": "1"}
    usage: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

    with client.completions.with_streaming_response.create(**asked, **usage) as raw:
        in_time = raw.headers["server-timing"]
        stream = list(raw.parse())
    begun_s = time.monotonic()
    whole = client.completions.with_raw_response.create(**asked)
    took_s = time.monotonic() - begun_s

    until_first_token = STAGES - {"lost", "kv_transfer", "decode", "egress"}
    assert until_first_token <= stages_in(in_time) <= STAGES - {"lost"}, "a gateway that is busy sends it later"
    assert stages_in(whole.headers["server-timing"]) == STAGES - {"lost"}
    last, before = stream[-1], stream[-2]
    assert (last.usage and last.usage.completion_tokens, before.model_extra) == (30, {})
    for answer in (last, whole.parse()):
        assert answer.model_extra is not None
        told = answer.model_extra["spillway"]
        assert (told["attempts"], told["hedges"]) == (2, 0), "one for the prompt, one for the answer"
        budget = told["latency_budget_s"]
        assert set(budget) == STAGES
        assert (budget["decode"] > 0, budget["parse"] > 0, budget["lost"]) == (True, True, 0)
    assert sum(budget.values()) < took_s


def stages_in(header: str) -> set[str]:
    """What ``Server-Timing`` names."""
    return {each.partition(";")[0] for each in header.split(", ")}


def test_a_client_that_does_not_ask_is_told_nothing_and_its_time_is_counted(client: openai.OpenAI, url: str) -> None:
    raw = client.completions.with_raw_response.create(model=MODEL, prompt="Water", max_tokens=3)

    assert "server-timing" not in raw.headers
    assert raw.parse().model_extra == {}
    families = text_string_to_metric_families(HTTP.get(f"{url}/metrics", timeout=30).text)
    (stages,) = [family for family in families if family.name == "spillway_request_stage_seconds"]
    count = {each.labels["stage"]: each.value for each in stages.samples if each.name.endswith("_count")}
    assert {stage for stage, number in count.items() if number} == STAGES - {"lost"}


def test_a_parameter_that_the_engine_refuses_is_a_400_that_names_it(url: str) -> None:
    refused = answer(url, prompt=[5] * 131_072, max_tokens=1)

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] in ("prompt", "max_tokens")


def test_requests_that_one_replica_refuses_are_answered_by_another(url: str) -> None:
    replica = faults.choose(faults.replicas_of(url, "decode"), "0")
    switch("refuse", "decode", replica)
    try:
        assert [answer(url).status_code for _ in range(4)] == [200] * 4
    finally:
        switch("clear", "decode", replica)


def test_blocks_that_are_dropped_are_an_error_with_a_reason_and_then_no_error(url: str) -> None:
    (replica,) = faults.replicas_of(url, "prefill")
    switch("drop_kv", "prefill", replica)
    failed = answer(url)
    switch("clear", "prefill", replica)

    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "kv_transfer_failed")
    assert answer(url).status_code == 200


def test_streams_of_a_crashed_engine_go_on_on_another_and_it_is_replaced(url: str) -> None:
    """Eight streams run on two replicas, one of which dies; a late report may send the first few to the same one."""
    whole = HTTP.post(f"{url}/v1/completions", json={**LONG, "stream": False}, timeout=60).json()["choices"][0]["text"]
    crashed, other = faults.replicas_of(url, "decode")
    with ExitStack() as opened:
        http = opened.enter_context(httpx.Client(timeout=60))
        streams = [opened.enter_context(http.stream("POST", f"{url}/v1/completions", json=LONG)) for _ in range(8)]
        assert [stream.status_code for stream in streams] == [200] * 8
        switch("crash", "decode", crashed)
        assert [answer(url).status_code for _ in range(3)] == [200] * 3, "another replica takes over"
        assert [text_of(stream) for stream in streams] == [whole] * 8
    assert resumptions(url) > 0

    wait_until(lambda: crashed not in faults.replicas_of(url, "decode"), "Serve has noticed")
    wait_until(lambda: replicas_of(url)["decode"] == 2, "there is a new one")
    assert other in faults.replicas_of(url, "decode")
    assert answer(url).status_code == 200


def test_a_fault_of_a_replica_that_is_not_there_hits_no_other_one(url: str) -> None:
    with pytest.raises(ConfigError, match="target"):
        switch("stall", "decode", "long-gone")
    assert answer(url).status_code == 200
