"""A server of completions that does what a test tells it to, request by request."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

Result = TypeVar("Result")
MODELS = msgspec.json.encode({"object": "list", "data": [{"id": "served-model", "object": "model"}]})
Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class CompletionServer:
    """On a port of its own for as long as the block lasts.

    Args:
        answer: What it does with a request; by default it streams as many tokens as are wanted.
        models: What it says that it serves.
    """

    def __init__(self, answer: Answer | None = None, models: bytes = MODELS) -> None:
        self._answer = answer or whole
        self._models = models
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.num_open = self.most_open = 0
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/completions", self._respond)
        app.router.add_get("/v1/models", self._list)
        self._server = TestServer(app)

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            return await self._answer(request, body)
        finally:
            self.num_open -= 1

    async def _list(self, request: web.Request) -> web.Response:
        return web.Response(body=self._models, content_type="application/json")

    async def __aenter__(self) -> "CompletionServer":
        await self._server.start_server()
        self.url = str(self._server.make_url("")).rstrip("/")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def in_a_thread(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Calls something that waits for this server, while the server goes on."""
        return await asyncio.to_thread(call, *arguments)


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def token(text: str = "a") -> bytes:
    """One token's event."""
    return event({"choices": [{"text": text, "token_ids": [7]}]})


async def streaming(request: web.Request, headers: dict[str, str] | None = None) -> web.StreamResponse:
    """A stream whose headers have gone out."""
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def whole(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """All tokens that are wanted, the usage, the end."""
    response = await streaming(request)
    for _ in range(body["max_tokens"]):
        await response.write(token())
    usage = {"completion_tokens": body["max_tokens"], "prompt_tokens_details": {"cached_tokens": 16}}
    await response.write(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
    return response


def refusing(status: int, code: str = "", **headers: str) -> Answer:
    """A server that answers with a status and OpenAI's error body, or with any text where there is no code."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        content = msgspec.json.encode({"error": {"message": "no", "code": code}}) if code else b"<html>no</html>"
        return web.Response(body=content, status=status, headers={**headers})

    return answer


def breaking_off(*events: bytes, closes_connection: bool = False) -> Answer:
    """A server that sends these and stops."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await streaming(request)
        for each in events:
            await response.write(each)
        if closes_connection:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


async def silence(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """A server that says nothing until its client leaves."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets the event")
