"""Hot routes behind a real uvicorn: the same answers as over FastAPI, and nothing is left when a client goes."""

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal
from fastapi import Response
from uvicorn import config as uvicorn_config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.gateway.service import OpenAIService
from deployments.http import hot_routes
from deployments.http.direct_request import DirectHeaders, DirectRequest, EventWriter, PushedEvents
from deployments.http.hot_routes import PROTOCOL, HotRoutes, RouteTable
from tests.deployments.gateway_in_process import gateway_in_process, served_over_hot_routes, service_in_process
from tests.plain_http import HTTP
from tests.waiting import until_here

PATIENCE_S = 10.0
PROMPT: dict[str, Any] = {"model": "tiny-llama", "prompt": "How wide is it?", "max_tokens": 8}
CHAT: dict[str, Any] = {
    "model": "tiny-llama",
    "messages": [{"role": "user", "content": "How wide is it?"}],
    "max_tokens": 8,
}


@pytest.fixture(scope="module")
def hot() -> Iterator[httpx.Client]:
    with gateway_in_process(is_hot=True) as client:
        yield client


@pytest.fixture(scope="module")
def usual() -> Iterator[httpx.Client]:
    with gateway_in_process() as client:
        yield client


def without_names(text: str) -> str:
    """An answer but for what differs from one request to the next."""
    return re.sub(r'"(id|created|latency_budget_s)":("[^"]*"|\d+|\{[^}]*\})', r'"\1":0', text)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", PROMPT),
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {**PROMPT, "stream": True}),
        ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
        ("/v1/completions", {**PROMPT, "max_tokens": 0}),
        ("/v1/completions", {**PROMPT, "model": "another"}),
        ("/v1/chat/completions", {}),
    ],
)
def test_an_answer_is_the_same_as_over_fastapi(
    hot: httpx.Client, usual: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    answers = [each.post(path, json=body) for each in (hot, usual)]
    assert answers[0].status_code == answers[1].status_code
    assert without_names(answers[0].text) == without_names(answers[1].text)
    told = [{name for name in each.headers if name not in ("date", "server")} for each in answers]
    framing = {"transfer-encoding", "content-length"}
    assert told[0] - framing == told[1] - framing
    assert answers[0].headers["content-type"] == answers[1].headers["content-type"]


def test_what_a_client_asks_of_its_time_comes_over_a_hot_route_too(hot: httpx.Client) -> None:
    headers = {"x-spillway-latency-budget": "1"}
    answer = hot.post("/v1/completions", json={**PROMPT, "stream": True}, headers=headers)
    last = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))
    assert "server-timing" in answer.headers
    assert last["spillway"]["attempts"] == 1


def test_other_methods_and_paths_go_their_usual_way(hot: httpx.Client) -> None:
    assert hot.get("/v1/completions").status_code == 405
    assert hot.get("/health").json() == {"status": "ok"}
    assert hot.get("/nothing").status_code == 404
    assert hot.post("/tokenize", json={"prompt": "Hello"}).status_code == 200


def test_requests_on_one_connection_are_answered_in_order(hot: httpx.Client) -> None:
    """Three at once, the last of which closes it: whole, streamed, whole."""
    bodies = [PROMPT, {**PROMPT, "stream": True}, {**PROMPT, "max_tokens": 0}]
    with socket.create_connection((hot.base_url.host, hot.base_url.port), PATIENCE_S) as connection:
        for number, body in enumerate(bodies):
            content = json.dumps(body).encode()
            close = "connection: close\r\n" if number == 2 else ""
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{close}content-length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    statuses = re.findall(rb"HTTP/1.1 (\d+)", answer)
    assert statuses == [b"200", b"200", b"400"]
    assert answer.index(b'"object":"text_completion"') < answer.index(b"data: [DONE]") < answer.index(b"max_tokens")


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(hot: httpx.Client) -> None:
    content = json.dumps(PROMPT).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {len(content)}\r\n\r\n"
    with socket.create_connection((hot.base_url.host, hot.base_url.port), PATIENCE_S) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(content)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


def until(portal: BlockingPortal, is_so: Callable[[], bool]) -> None:
    """Waits on the gateway's event loop until something is so."""

    portal.call(until_here, is_so)


def raw_request(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_goes_before_the_first_token_leaves_nothing(streams: bool) -> None:
    with service_in_process(num_silent=1) as (portal, service), served_over_hot_routes(portal, service) as url:
        host = service._models[0].host
        address = (httpx.URL(url).host, httpx.URL(url).port)
        with socket.create_connection(address, PATIENCE_S) as connection:
            connection.sendall(raw_request({**PROMPT, "stream": streams}))
            until(portal, lambda: len(host._attempts) == 1)
        until(portal, lambda: not host._requests and not host._attempts and not host.tasks)
        assert counted(portal, service, 'outcome="cancelled"') == 1


def counted(portal: BlockingPortal, service: OpenAIService, label: str) -> float:
    """Answers with that label."""
    page = portal.call(service._export.page).decode()
    lines = [line for line in page.splitlines() if line.startswith("spillway_requests_total{") and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_each_answer_is_counted_once_when_it_has_left() -> None:
    with service_in_process() as (portal, service), served_over_hot_routes(portal, service) as url:
        for streams in (True, False, True):
            assert HTTP.post(f"{url}/v1/completions", json={**PROMPT, "stream": streams}).status_code == 200
        page = portal.call(service._export.page).decode()
        assert 'stage="egress"} 3.0' in page
        assert counted(portal, service, 'outcome="completed"') == 3


class Flow:
    """A client that is behind, or not."""

    write_paused = False


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.is_closed = True


class Cycle:
    response_complete = False
    keep_alive = True

    def __init__(self) -> None:
        self.num_ends = 0

    def on_response(self) -> None:
        self.num_ends += 1


def test_events_are_chunks_and_the_end_is_one() -> None:
    transport, cycle = Transport(), Cycle()
    writer = EventWriter(transport, Flow(), cycle)  # type: ignore[arg-type]
    writer.write(b"data: 1\n\n")
    writer.write(b"")
    writer.end(b"data: [DONE]\n\n")
    writer.end()
    writer.write(b"too late")
    assert transport.written == [b"9\r\ndata: 1\n\n\r\n", b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"]
    assert (cycle.num_ends, transport.is_closed) == (1, False)


def test_a_connection_that_is_not_kept_is_closed_with_the_last_event() -> None:
    transport, cycle = Transport(), Cycle()
    cycle.keep_alive = False
    EventWriter(transport, Flow(), cycle).end()  # type: ignore[arg-type]
    assert transport.is_closed


async def test_routes_belong_to_the_event_loop_of_their_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(uvicorn_config.HTTP_PROTOCOLS, "auto", "as it was")

    async def handler(_: DirectRequest) -> Response:
        raise AssertionError

    table = RouteTable()
    table.serve({"/hot": handler})
    cycle: Any = Cycle()
    cycle.scope = {"method": "POST", "path": "/hot"}
    assert table.handler_of(cycle, asyncio.get_running_loop()) is handler
    with closing(asyncio.new_event_loop()) as another:
        assert table.handler_of(cycle, another) is None
    cycle.scope = {"method": "GET", "path": "/hot"}
    assert table.handler_of(cycle, asyncio.get_running_loop()) is None


def test_uvicorn_still_looks_its_protocol_up_where_this_one_is_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve starts uvicorn without naming a protocol; what is used then is looked up by name in that table."""
    monkeypatch.setitem(uvicorn_config.HTTP_PROTOCOLS, "auto", PROTOCOL)
    config = uvicorn_config.Config(lambda: None, log_config=None)
    config.load()
    assert config.http_protocol_class is HotRoutes
    for hook in ("_start_asgi_task", "on_response_complete", "resume_writing", "connection_lost"):
        assert hook in vars(HttpToolsProtocol), "and these are what it overrides"
    assert hot_routes.ROUTES.handler_of is not None


def test_pushed_events_have_no_length() -> None:
    response = PushedEvents({"x-a": "b"}, pusher=None)  # type: ignore[arg-type]
    assert dict(response.headers) == {"x-a": "b", "content-type": "text/event-stream; charset=utf-8"}


def test_headers_are_found_whatever_their_case_and_several_of_one_name_are_all_there() -> None:
    headers = DirectHeaders([(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")])
    assert (headers["X-A"], headers.get("x-b"), headers.get("x-c"), headers.getlist("x-A")) == (
        "1",
        "2",
        None,
        ["1", "3"],
    )
    assert "X-B" in headers
    assert "x-c" not in headers
    assert headers.getlist("x-c") == []
