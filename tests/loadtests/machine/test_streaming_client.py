"""The client that measures others is itself measured: against streams whose content is known."""

from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadtests.machine.streaming_client import Load, Sample, run_load, stream_completion

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKEN = b'data: {"choices": [{"text": "a"}]}\n\n'
THREE_TOKENS = b'data: {"choices": [{"text": "abc"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 4}}\n\n'
DONE = b"data: [DONE]\n\n"


def answering(*events: bytes, status: int = 200) -> Respond:
    async def respond(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for event in events:
            await response.write(event)
        await response.write_eof()
        return response

    return respond


async def sample_of(respond: Respond, max_tokens: int = 4) -> Sample:
    async with serving(respond) as url, aiohttp.ClientSession() as session:
        return await stream_completion(session, url, "m", [1, 2], max_tokens)


class serving:  # noqa: N801 - reads as a verb where it is used
    """A server on a port of its own for as long as the block lasts."""

    def __init__(self, respond: Respond) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", respond)
        self._server = TestServer(app)

    async def __aenter__(self) -> str:
        await self._server.start_server()
        return str(self._server.make_url("")).rstrip("/")

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()


async def test_tokens_are_counted_from_usage_and_events_from_the_wire() -> None:
    """Two events that carry four tokens are four tokens in two steps."""
    sample = await sample_of(answering(TOKEN, THREE_TOKENS, USAGE, DONE))

    assert (sample.output_tokens, sample.events) == (4, 2)
    assert 0 < sample.ttft_s <= sample.e2e_s


async def test_tpot_is_the_time_after_the_first_token_by_the_tokens_after_it() -> None:
    """(last - first) / (tokens - 1), whatever the number of events."""
    sample = await sample_of(answering(TOKEN, THREE_TOKENS, USAGE, DONE))

    assert sample.tpot_s == pytest.approx((sample.e2e_s - sample.ttft_s) / 3)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((TOKEN, USAGE), id="no DONE"),
        pytest.param((TOKEN, DONE), id="no usage"),
        pytest.param((TOKEN, b'data: {"error": {"code": "replica_lost"}}\n\n'), id="error event"),
    ],
)
async def test_a_stream_without_its_end_is_an_error_and_not_a_fast_request(events: tuple[bytes, ...]) -> None:
    """A truncated stream would otherwise look like a short, quick answer."""
    with pytest.raises(RuntimeError):
        await sample_of(answering(*events))


async def test_an_error_response_names_its_status() -> None:
    """The user of the benchmark is told what the system said."""
    with pytest.raises(RuntimeError, match="HTTP 503"):
        await sample_of(answering(b"no", status=503))


async def test_a_load_sends_every_request_once_and_keeps_its_streams_busy() -> None:
    """Nine requests over three streams are nine samples, never more than three at a time."""
    open_now = most_open = 0

    async def respond(request: web.Request) -> web.StreamResponse:
        nonlocal open_now, most_open
        open_now += 1
        most_open = max(most_open, open_now)
        response = await answering(TOKEN, THREE_TOKENS, USAGE, DONE)(request)
        open_now -= 1
        return response

    async with serving(respond) as url:
        result = await run_load(url, "m", Load(streams=3, requests=9, output_tokens=4))

    assert len(result.samples) == 9
    assert 1 <= most_open <= 3
    assert result.tokens_per_s == pytest.approx(36 / result.wall_s)
