"""Two whole gateways in one process and a replica behind them: clients that come back to the other one for the rest."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import yaml
from anyio.from_thread import BlockingPortal, start_blocking_portal
from ray.serve.handle import DeploymentHandle

from deployments import client
from deployments.client import stream
from deployments.config import ROOT
from deployments.configuration.models import models_in
from deployments.data_plane.attempt_server import AttemptServer
from deployments.gateway.service import OpenAIService
from deployments.wire import inner_hop
from deployments.wire.attempt_call import AttemptOrder
from deployments.wire.fleet_registry import FleetRegistry, SeenReplica
from deployments.wire.inner_hop import Item
from engines.contract import Chunk
from tests.deployments.gateway_in_process import CONTEXT_TOKENS, AnsweringHandle, served_over_hot_routes
from tests.engines.emulated_engines import ensure_models
from tests.plain_http import HTTP
from tests.tables import for_each
from tests.waiting import until_here

TOKENS = 12
BODY = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": TOKENS, "stream": True, "temperature": 0}
WHOLE = "".join(f"{number} " for number in range(TOKENS))


@dataclass
class Replica:
    """Its tokens are the numbers of their places; it stops before some of them until it may go on.

    Attributes:
        stops_before: Places that it waits at.
        orders: Attempts that it got.
    """

    stops_before: set[int] = field(default_factory=set)
    orders: list[AttemptOrder] = field(default_factory=list)

    async def run(self, order: AttemptOrder) -> AsyncIterator[Item]:
        self.orders.append(order)
        request = inner_hop.decode_request(order.request)
        last = request.answered_tokens + request.sampling.max_tokens - 1
        for place in range(request.answered_tokens, last + 1):
            await until_here(lambda place=place: place not in self.stops_before)  # type: ignore[misc]
            yield Chunk(f"{place} ", (300 + place,), "length" if place == last else None)

    async def release_kv(self, handle: bytes) -> None:
        """It holds none."""

    def asked(self) -> list[tuple[int, int]]:
        """Of each attempt, the tokens that were out and those that were left."""
        requests = [inner_hop.decode_request(each.request) for each in self.orders]
        return [(each.answered_tokens, each.sampling.max_tokens) for each in requests]


@dataclass
class Gateways:
    """Two gateways, their URLs, and the replica that both have."""

    portal: BlockingPortal
    replica: Replica
    services: list[OpenAIService]
    urls: list[str]


@contextmanager
def two_gateways(**gateway: Any) -> Iterator[Gateways]:
    ensure_models()
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "local-vllm.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    args["pools"] = [{"name": "unified", "role": "unified"}]
    args["gateway"] |= gateway
    args["policies"] = {"planning": "always_unified"}
    models, registry, replica = models_in(args), FleetRegistry(), Replica()
    with pytest.MonkeyPatch.context() as patch, start_blocking_portal() as portal, ExitStack() as stack:
        patch.setattr("deployments.gateway.service.REGISTRY", registry)
        server = portal.call(AttemptServer.start, replica.run, replica.release_kv, "127.0.0.1")
        services = []
        for name in ("gateway-a", "gateway-b"):
            pools = {"unified": cast(DeploymentHandle, AnsweringHandle({}))}
            services.append(portal.call(OpenAIService, models, pools, name))
        seen = SeenReplica(
            replica_id="unified-a",
            node_id="node",
            max_ongoing_requests=1_000,
            metadata={"kv_capacity_tokens": 1 << 20, "context_tokens": CONTEXT_TOKENS, **server.to_metadata()},
        )
        registry.publish_replicas("unified", (seen,))
        urls = [stack.enter_context(served_over_hot_routes(portal, each)) for each in services]
        yield Gateways(portal, replica, services, urls)
        for service in services:
            portal.call(service.close)
        portal.call(server.close)


@pytest.fixture
def gateways() -> Iterator[Gateways]:
    with two_gateways() as both:
        yield both


def headers(key: str = "key", last: str = "", **more: str) -> dict[str, str]:
    return {"idempotency-key": key, **({"last-event-id": last} if last else {}), **more}


def post(url: str, sent: dict[str, str], path: str = "completions", **more: Any) -> httpx.Response:
    return HTTP.post(f"{url}/v1/{path}", json={**BODY, **more}, headers=sent)


@dataclass
class Read:
    """What a client has read of a stream.

    Attributes:
        ids: Of its events, where they have one.
        text: Of its tokens.
        events: All but the last word.
        is_done: Whether that has come.
    """

    ids: list[str] = field(default_factory=list)
    text: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False

    def line(self, line: str) -> None:
        name, _, value = line.partition(": ")
        if name == "id":
            self.ids.append(value)
        elif value == "[DONE]":
            self.is_done = True
        elif name == "data":
            self.events.append(event := json.loads(value))
            for choice in event.get("choices", ()):
                self.text += choice["text"] if "text" in choice else choice["delta"].get("content", "")


def read(answer: httpx.Response) -> Read:
    assert answer.status_code == 200, answer.text
    found = Read()
    for line in answer.text.splitlines():
        found.line(line)
    return found


def begun(gateways: Gateways, sent: dict[str, str], tokens: int, path: str = "completions", **more: Any) -> Read:
    """What a client has when it has read so many tokens and leaves the first gateway."""
    found = Read()
    gateways.replica.stops_before = {tokens}
    body = {**BODY, **more}
    with httpx.stream("POST", f"{gateways.urls[0]}/v1/{path}", json=body, headers=sent, timeout=30) as answer:
        for line in answer.iter_lines():
            found.line(line)
            if len(found.ids) == tokens and line.startswith("data"):
                break
    gateways.replica.stops_before = set()
    return found


def test_what_a_client_has_and_what_it_gets_elsewhere_are_the_answer_each_token_once(gateways: Gateways) -> None:
    first = begun(gateways, headers(), 5, stream_options={"include_usage": True})
    rest = read(post(gateways.urls[1], headers(last=first.ids[-1]), stream_options={"include_usage": True}))

    assert (first.text + rest.text, rest.is_done) == (WHOLE, True)
    assert gateways.replica.asked() == [(0, TOKENS), (5, TOKENS - 5)]
    assert {event["id"] for event in first.events + rest.events} == {first.ids[0].partition(".")[0]}
    assert rest.events[-1]["usage"]["completion_tokens"] == TOKENS
    assert rest.events[-1]["usage"]["prompt_tokens"] < TOKENS, "what has been answered is none of the prompt"


def test_a_chat_has_one_role_and_its_rest_none(gateways: Gateways) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "path": "chat/completions"}
    first = begun(gateways, headers(), 3, **chat)
    rest = read(post(gateways.urls[1], headers(last=first.ids[-1]), **chat))
    assert first.text + rest.text == WHOLE
    assert [event for event in rest.events if event["choices"][0]["delta"].get("role")] == []


def test_it_may_come_back_again_and_again_and_to_where_it_was(gateways: Gateways) -> None:
    first = begun(gateways, headers(), 2)
    again = read(post(gateways.urls[1], headers(last=first.ids[-1])))
    for number, event_id in enumerate([*first.ids, *again.ids[:-1]]):
        rest = read(post(gateways.urls[number % 2], headers(last=event_id)))
        assert rest.text == WHOLE[len("".join(f"{each} " for each in range(number + 1))) :]


def test_who_has_all_but_the_last_word_gets_that(gateways: Gateways) -> None:
    usage: dict[str, Any] = {"stream_options": {"include_usage": True}}
    whole = read(post(gateways.urls[0], headers(), **usage))
    rest = read(post(gateways.urls[1], headers(last=whole.ids[-1]), **usage))
    assert (rest.text, rest.is_done, len(gateways.replica.orders)) == ("", True, 1)
    assert rest.events[0]["choices"][0]["finish_reason"] == "length"
    assert rest.events[-1]["usage"]["completion_tokens"] == TOKENS


def test_an_answer_whose_client_seems_to_be_there_still_ends_there(gateways: Gateways) -> None:
    gateways.replica.stops_before = {4}
    with httpx.stream("POST", f"{gateways.urls[0]}/v1/completions", json=BODY, headers=headers(), timeout=30) as answer:
        found, lines = Read(), answer.iter_lines()
        while len(found.ids) < 4 or len(found.events) < 4:
            found.line(next(lines))
        gateways.replica.stops_before = set()
        rest = read(post(gateways.urls[1], headers(last=found.ids[-1])))
        assert found.text + rest.text == WHOLE
        for line in lines:
            found.line(line)
    assert "error" in found.events[-1] or found.text == WHOLE


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_another_key_or_body_or_answer_or_token_finds_nothing(gateways: Gateways) -> None:
    last = begun(gateways, headers(), 5).ids[-1]
    answer, tokens, chars, digest = last.split(".")
    other = f"{int(digest, 16) ^ 1:08x}"
    assert refused(post(gateways.urls[1], headers("another", last))) == (404, "answer_not_found")
    assert refused(post(gateways.urls[1], headers(last=last), prompt="Good")) == (404, "answer_not_found")
    for forged in (f"{answer}x.{tokens}.{chars}.{digest}", f"{answer}.{tokens}.{chars}.{other}"):
        assert refused(post(gateways.urls[1], headers(last=forged))) == (404, "answer_not_found")
    assert read(post(gateways.urls[1], headers(last=last))).is_done, "the one that it is"


def test_another_tenant_finds_nothing(gateways: Gateways) -> None:
    last = begun(gateways, headers(**{"x-tenant-id": "one"}), 5).ids[-1]
    assert refused(post(gateways.urls[1], headers(last=last, **{"x-tenant-id": "two"}))) == (404, "answer_not_found")
    assert read(post(gateways.urls[1], headers(last=last, **{"x-tenant-id": "one"}))).is_done


@for_each(
    ("sent", "more"),
    [
        ({"last-event-id": "a.1.1.00000000"}, {}),
        (headers(last="a.1.1.00000000"), {"stream": False}),
        (headers(last="seven"), {}),
    ],
)
def test_who_can_not_be_gone_on_with_is_told_so(gateways: Gateways, sent: dict[str, str], more: dict[str, Any]) -> None:
    answer = post(gateways.urls[0], sent, **more)
    assert (*refused(answer), answer.json()["error"]["param"]) == (400, "invalid_value", "last-event-id")


@for_each(
    ("sent", "more"),
    [({}, {}), (headers(), {"temperature": 1.0, "seed": 7}), (headers(), {"presence_penalty": 1.0})],
)
def test_answers_that_nobody_can_go_on_with_have_no_ids(
    gateways: Gateways, sent: dict[str, str], more: dict[str, Any]
) -> None:
    found = read(post(gateways.urls[0], sent, **more))
    assert (found.ids, found.text) == ([], WHOLE)
    assert gateways.replica.orders[-1].kept_as == ""


def test_nothing_is_kept_where_the_configuration_says_so() -> None:
    with two_gateways(keep_answers_s=0) as gateways:
        assert read(post(gateways.urls[0], headers())).ids == []


def test_the_client_notices_nothing_of_a_gateway_that_is_lost(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection breaks in the middle, and the next one leads to the other gateway."""
    real, urls = httpx.Client.stream, [gateways.urls[0], gateways.urls[1]]

    @contextmanager
    def broken(self: httpx.Client, method: str, url: str, **more: Any) -> Iterator[httpx.Response]:
        asked = urls.pop(0) if len(urls) > 1 else urls[0]
        with real(self, method, f"{asked}{url}", **more) as answer:
            if len(urls) == 1 and asked is gateways.urls[0]:
                monkeypatch.setattr(answer, "iter_bytes", cut(answer.iter_bytes, 5))
            yield answer

    def cut(parts: Callable[[], Iterator[bytes]], tokens: int) -> Callable[[], Iterator[bytes]]:
        def some() -> Iterator[bytes]:
            left = tokens
            for line in (line for part in parts() for line in part.splitlines(keepends=True)):
                yield line
                left -= line.startswith(b"data")
                if not left:
                    raise httpx.ReadError("reset")

        return some

    monkeypatch.setattr(httpx.Client, "stream", broken)
    events = list(stream("/v1/completions", BODY))
    assert "".join(event["choices"][0]["text"] for event in events) == WHOLE
    assert [answered for answered, _ in gateways.replica.asked()] in ([0, 4], [0, 5])
    page = gateways.portal.call(gateways.services[1]._export.page).decode()
    [counted] = [line for line in page.splitlines() if line.startswith("spillway_reconnections_total{")]
    assert counted.endswith('outcome="resumed"} 1.0')


def stream_of(*answers: list[bytes]) -> Iterator[dict[str, Any]]:
    """What the client makes of connections that say so much and break."""
    left = [*answers]

    def handle(request: httpx.Request) -> httpx.Response:
        def body() -> Iterator[bytes]:
            yield from left.pop(0)
            raise httpx.ReadError("reset")

        return httpx.Response(200, content=body())

    real = httpx.Client
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx, "Client", lambda **more: real(transport=httpx.MockTransport(handle), **more))
        yield from stream("http://gateway/v1/completions", BODY, patience_s=1.0)


def test_an_answer_without_ids_is_not_begun_again_in_the_middle() -> None:
    events = stream_of([b'data: {"text": "a"}\n\n', b'data: {"text": "b"}\n\n'], [b"data: [DONE]\n\n"])
    assert [next(events)["text"] for _ in range(2)] == ["a", "b"]
    with pytest.raises(httpx.ReadError):
        next(events)


def test_the_client_takes_no_character_of_an_answer_for_the_end_of_a_line() -> None:
    odd = "a\u2028b\u2029c\x85d"
    said = f'id: q.1\ndata: {{"text": "{odd}"}}\n\ndata: [DONE]\n\n'.encode()
    assert [event["text"] for event in stream_of([said[:20], said[20:23], said[23:]])] == [odd]


def test_time_that_the_caller_takes_for_an_event_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    events = stream_of([b'id: q.1\ndata: {"text": "a"}\n\n'], [b"data: [DONE]\n\n"])
    assert next(events) == {"text": "a"}
    now_s[0] = 60.0
    assert list(events) == []


def test_the_client_gives_up_what_is_refused_for_good(gateways: Gateways) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        list(stream(f"{gateways.urls[0]}/v1/completions", {**BODY, "max_tokens": -1}))
