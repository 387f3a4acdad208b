"""What a gateway makes of a request beside its body: who it belongs to, and which text it begins with."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from fastapi import Request
from ray.serve.handle import DeploymentHandle

from deployments.app import read_config
from deployments.fleet_registry import FleetRegistry
from deployments.openai_errors import ApiError
from deployments.openai_service import OpenAIService
from policies import RequestView
from routing.block_hashes import block_hashes
from tests.deployments.host_dialogue import Handle

PROMPT = list(range(100))


class PoolHandle(Handle):
    """A pool's handle, as Serve hands it to a gateway."""

    def _init(self) -> None: ...


class Taken(Exception):
    """The host was given a request."""


Headers = dict[str, str] | list[tuple[str, str]]


def a_request(headers: Headers) -> Request:
    body = msgspec.json.encode({"model": "tiny", "prompt": PROMPT, "max_tokens": 5})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    named = headers.items() if isinstance(headers, dict) else headers
    raw = [(name.encode(), value.encode()) for name, value in named]
    return Request({"type": "http", "method": "POST", "path": "/v1/completions", "headers": raw}, receive)


async def view_of(monkeypatch: pytest.MonkeyPatch, headers: Headers, **policies: Any) -> RequestView:
    """What the host is given."""
    monkeypatch.setattr(
        "deployments.openai_service.PromptTokenizer", lambda path: SimpleNamespace(vocabulary_tokens=1000)
    )
    monkeypatch.setattr("deployments.openai_service.REGISTRY", FleetRegistry())
    config = read_config(
        {
            "model": {"id": "tiny", "path": ".models/tiny-llama"},
            "pools": [{"name": "unified", "role": "unified"}],
            "gateway": {"prefix_block_tokens": 32},
            "policies": {"planning": "always_unified", **policies},
        }
    )
    service = OpenAIService(config, {"unified": cast(DeploymentHandle, PoolHandle({}))}, "gw")
    monkeypatch.setattr(service, "_context_tokens", lambda: 4096)
    given: list[RequestView] = []

    def submit(view: RequestView, _: object) -> None:
        given.append(view)
        raise Taken

    monkeypatch.setattr(service._host, "submit", submit)
    with pytest.raises(Taken):
        await service.completions(a_request(headers))
    return given[0]


async def test_a_prompt_is_named_block_by_block_where_prefixes_are_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    view = await view_of(monkeypatch, {}, prefixes="block_hash")

    assert view.prefix_blocks == block_hashes(PROMPT, 32)
    assert len(view.prefix_blocks) == 3
    assert view.prefix_block_tokens == 32


async def test_nobody_pays_for_that_where_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    view = await view_of(monkeypatch, {})

    assert (view.prefix_blocks, view.prefix_block_tokens) == ((), 0)


async def test_headers_name_the_session_and_the_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    view = await view_of(monkeypatch, {"x-session-id": "s" * 128, "x-tenant-id": "t"})

    assert (view.session_id, view.tenant) == ("s" * 128, "t")


async def test_without_headers_there_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    view = await view_of(monkeypatch, {})

    assert (view.session_id, view.tenant) == ("", "")


@pytest.mark.parametrize("header", ["x-session-id", "x-tenant-id"])
async def test_a_name_that_is_too_long_is_the_clients_mistake(monkeypatch: pytest.MonkeyPatch, header: str) -> None:
    with pytest.raises(ApiError) as caught:
        await view_of(monkeypatch, {header: "n" * 129})

    assert (caught.value.status, caught.value.param, caught.value.code) == (400, header, "invalid_value")


@pytest.mark.parametrize("header", ["x-session-id", "x-tenant-id"])
async def test_a_name_that_is_repeated_with_another_value_is_the_clients_mistake(
    monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    with pytest.raises(ApiError) as caught:
        await view_of(monkeypatch, [(header, "one"), (header, "other")])

    assert (caught.value.status, caught.value.param, caught.value.code) == (400, header, "invalid_value")


async def test_a_name_that_is_repeated_as_it_was_is_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    view = await view_of(monkeypatch, [("x-session-id", "s"), ("x-tenant-id", "t"), ("x-session-id", "s")])

    assert (view.session_id, view.tenant) == ("s", "t")
