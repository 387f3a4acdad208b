"""Thousands of bodies, right and wrong, to a gateway on Ray Serve with a real engine behind it, by both of its layers:
no answer is a failure, nothing is logged as one, and the gateway does not grow.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from engines.peer_port import free_port
from loadtests.live.configuration import laid_over, read_config
from loadtests.live.deployed import deployed
from loadtests.studies.adversary.target import Target
from tests.deployments.fuzzed_bodies import MODEL, chats, completions, plain, posted, send, short, texts
from tests.deployments.live_cluster import FRONT_END

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.proof]

NUM_CASES = 5_000
"""To each of the two layers."""
MOST_GROWTH_BYTES = 8 << 20
"""Of a gateway, in the second half of them."""
PATIENCE_S = 120.0
HOST = "127.0.0.1"
Check = Callable[[httpx.Client, str, Any], None]
Source = tuple[str, st.SearchStrategy[Any], int, Check]
"""Path and bodies, how many of them each time, and what each answer has to be."""

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
for_vllm_alone: Mapping[str, st.SearchStrategy[dict[str, Any]]] = {
    "/v1/completions": st.sampled_from([{"n": 2}, {"echo": True}, {"prompt": ["a", "b"]}, {"suffix": "c"}]),
    "/v1/chat/completions": st.sampled_from(
        [{"n": 2}, {"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "required"}, {"tools": [{}]}, {"tools": 7}]
    ),
}
"""What leads a request to vLLM's layer."""
odd: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | texts | st.lists(texts, max_size=2)
turns = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "x"]), "content": odd}), max_size=3
)


def not_a_failure(http: httpx.Client, path: str, body: Any) -> None:
    """The answer is a result or says what is wrong, in whatever shape that endpoint has."""
    answer = posted(http, path, body)
    assert answer.status_code in (200, 400, 404, 413, 422), answer.text
    assert "Traceback" not in answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        assert isinstance(answer.json(), dict)


def to_the_plain_layer(schema: Any) -> Iterator[Source]:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            bodies = schema[path]["POST"].as_strategy(generation_mode=mode).map(lambda case: plain(case.body))
            yield path, bodies, NUM_CASES // 30, send
    for path, ours in (("/v1/completions", completions), ("/v1/chat/completions", chats)):
        yield path, ours, NUM_CASES // 8, send


def to_vllms_layer(schema: Any) -> Iterator[Source]:
    ours = {"/v1/completions": completions, "/v1/chat/completions": chats}
    for path, more in for_vllm_alone.items():
        drawn = schema[path]["POST"].as_strategy(generation_mode=GenerationMode.POSITIVE).map(lambda case: case.body)
        for bodies in (ours[path], drawn.map(plain).filter(lambda body: isinstance(body, dict))):
            yield path, st.builds(lambda body, its: body | its, bodies, more), NUM_CASES // 10, not_a_failure
    asked = {"model": st.just(MODEL), "max_tokens": st.integers(-1, 4), "stream": st.booleans(), "temperature": odd}
    responses = {**asked, "input": texts | turns | odd, "max_output_tokens": st.integers(-1, 4)}
    for path, fields in (
        ("/v1/responses", responses),
        ("/v1/messages", {**asked, "messages": turns | odd, "system": odd}),
        ("/v1/messages/count_tokens", {"model": st.just(MODEL), "messages": turns | odd}),
    ):
        yield path, st.fixed_dictionaries({}, optional=fields), NUM_CASES // 25, not_a_failure


@contextmanager
def a_target(folder: Path, front_end: dict[str, Any] | None) -> Iterator[Target]:
    """One replica of a real engine, behind one gateway."""
    document = read_config("unified-vllm.yaml")
    args = document["applications"][0]["args"]
    document["applications"][0]["args"] = laid_over(args, {"gateway": {"vllm_front_end": front_end}})
    with deployed("fuzzed", document, folder, free_port(HOST), None) as running:
        yield Target(running=running, keys={})


def gateway_bytes(pid: int) -> int:
    """What the gateway has in memory."""
    (gateway,) = (
        each
        for each in psutil.Process(pid).children(recursive=True)
        if " ".join(each.cmdline()).strip().endswith("ServeReplica:spillway:gateway")
    )
    return int(gateway.memory_info().rss)


def check_all(strategy: st.SearchStrategy[Any], number: int, check: Callable[[Any], None]) -> None:
    """So many bodies of it."""

    @settings(max_examples=number, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(body=strategy)
    def each(body: Any) -> None:
        check(body)

    each()


@pytest.mark.parametrize(
    ("front_end", "sources"), [(None, to_the_plain_layer), (FRONT_END, to_vllms_layer)], ids=["plain", "vllm"]
)
def test_of_thousands_of_bodies_none_makes_a_gateway_fail_or_grow(
    tmp_path: Path, front_end: dict[str, Any] | None, sources: Callable[[Any], Iterator[Source]]
) -> None:
    with a_target(tmp_path, front_end) as target, httpx.Client(base_url=target.running.url, timeout=PATIENCE_S) as http:
        schema = schemathesis.openapi.from_dict(http.get("/openapi.json").json())
        sizes, sent = list[int](), count()

        def checked(check: Check, path: str, body: Any) -> None:
            if next(sent) % (NUM_CASES // 20) == 0:
                sizes.append(gateway_bytes(target.running.pid))
            check(http, path, short(body))

        for _ in range(2):  # the same ones: whatever they leave for good is there after the first time
            for path, bodies, number, check in sources(schema):
                check_all(bodies, number, partial(checked, check, path))
        assert next(sent) >= NUM_CASES

        assert sizes[-1] - sizes[len(sizes) // 2] <= MOST_GROWTH_BYTES, [round(each / 2**20, 1) for each in sizes]
        assert not [each for each in target.logs() if "Traceback" in each.read_text(errors="replace")]
        page = target.running.at_rest()
        assert page.sum("spillway_requests_open") == 0
