"""How answers leave a gateway: as a stream, whole, or as an error; and the account of where each one's time went."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask
from starlette.types import Receive, Scope, Send

from cluster.clock import unix_s
from cluster.latency_budget import Timeline, spent_s
from deployments.front_end.choice import Content, Kind
from deployments.gateway.open_request import ServeOpenRequest
from deployments.gateway.serve_host import ServeHost
from deployments.gateway.tracing import FinishedRequest, Tracer
from deployments.http.direct_request import DirectRequest, EventWriter, PushedEvents
from deployments.http.json_body import until_gone
from deployments.openai.errors import ApiError, error_of
from deployments.openai.identity import TIME_LEFT_HEADER
from deployments.openai.responses import Extra, OpenAiAnswer, read_all
from deployments.telemetry.metrics import GatewayMetrics
from engines.contract import Chunk
from routing.request.effects import Outcome, OutcomeKind

SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
JSON = "application/json"
TIMING_HEADER = "server-timing"
ATTEMPTS_HEADER = "x-spillway-attempts"
Item = TypeVar("Item")
OPERATIONS: dict[Kind, str] = {
    "completion": "text_completion",
    "chat": "chat",
    "response": "chat",
    "message": "chat",
    "embedding": "embeddings",
    "score": "score",
    "rerank": "rerank",
}
"""Kinds of answers, as OpenTelemetry's conventions for generative AI call them."""


class Egress:
    """The way out of one gateway.

    Args:
        host: Is told when nobody waits for an answer any more.
        metrics: Where times are counted.
        tracer: Makes traces of them.
    """

    def __init__(self, host: ServeHost, metrics: GatewayMetrics, tracer: Tracer) -> None:
        self._host = host
        self._metrics = metrics
        self._tracer = tracer

    async def answer(
        self, request: Request, opened: ServeOpenRequest, answer: OpenAiAnswer, *, streams: bool
    ) -> Response:
        """The response to a request that the host has taken in.

        Raises:
            ApiError: It got no answer.
        """
        try:
            outcome = opened.stream.outcome
            if outcome is not None and outcome.kind is not OutcomeKind.COMPLETED:
                raise error_for(opened, outcome)  # refused at intake: nothing needs to be waited for
            return await (self._streamed if streams else self._whole)(request, opened, answer)
        except BaseException:
            self._close(request, opened, answer)
            raise

    async def _streamed(self, request: Request, opened: ServeOpenRequest, answer: OpenAiAnswer) -> Response:
        """The status line waits for the first token, so that everything refused before it is a plain HTTP error."""
        try:
            first = await opened.stream.read()
        except asyncio.CancelledError:
            self._host.abandon(opened.view.request_id)
            raise
        if isinstance(first, Outcome):
            raise error_for(opened, first)
        close = partial(self._close, request, opened, answer)
        if isinstance(request, DirectRequest):
            pushed = _PushedAnswer(self._host, opened, answer, first, close)
            return PushedEvents(SSE_HEADERS | _headers(opened), pushed)

        def abandon_and_close() -> None:
            self._host.abandon(opened.view.request_id)
            close()

        return ClosingEvents(_events(opened, answer, first), _headers(opened), abandon_and_close)

    async def _whole(self, request: Request, opened: ServeOpenRequest, answer: OpenAiAnswer) -> Response:
        try:
            outcome = await self._unless_gone(request, read_all(opened.stream, answer), [opened])
        finally:
            self._host.abandon(opened.view.request_id)
        if outcome.kind is not OutcomeKind.COMPLETED:
            raise error_for(opened, outcome)

        async def close() -> None:
            self._close(request, opened, answer)

        body, headers = answer.body(_extra(opened)), _headers(opened)
        return Response(body, media_type=JSON, headers=headers, background=BackgroundTask(close))

    async def _unless_gone(self, request: Request, asking: Awaitable[Item], opened: list[ServeOpenRequest]) -> Item:
        """What is asked for, or what there is of it when the client goes and its requests are abandoned."""
        if isinstance(request, DirectRequest):  # this is cancelled when the client goes
            return await asking
        reading = asyncio.ensure_future(asking)
        leaving = asyncio.create_task(until_gone(request))
        try:
            await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                for each in opened:
                    self._host.abandon(each.view.request_id)
            return await reading
        finally:
            leaving.cancel()
            reading.cancel()

    async def relay(
        self,
        request: Request,
        asking: Awaitable[Content],
        opened: list[ServeOpenRequest],
        *,
        kind: Kind,
        model: str,
    ) -> Response:
        """The response to a request that a front end has made others of.

        Args:
            request: The client's.
            asking: What the front end answers.
            opened: The requests that have come of them so far.
            kind: Which endpoint.
            model: The model.

        Raises:
            ApiError: It got no answer.
        """

        def close() -> None:
            for each in opened:
                self._host.abandon(each.view.request_id)
                self._count(request, each, kind, model)

        try:
            content = await self._unless_gone(request, asking, opened)
        except BaseException:
            close()
            raise
        headers = _headers(opened[0]) if opened else {}
        if isinstance(content, bytes):
            return Response(content, media_type=JSON, headers=headers, background=BackgroundTask(close))
        return ClosingEvents(content, headers, close)

    def _close(self, request: Request, opened: ServeOpenRequest, answer: OpenAiAnswer) -> None:
        self._count(request, opened, answer.kind, answer.model)

    def _count(self, request: Request, opened: ServeOpenRequest, kind: Kind, model: str) -> None:
        """Once for each request, when nothing of it is left to send."""
        timeline = opened.budget.timeline()
        self._metrics.count_times(
            opened.lane,
            timeline,
            prompt_tokens=opened.view.prompt_tokens,
            cached_tokens=opened.cached_tokens,
            output_tokens=opened.output_tokens or len(opened.emitted),
        )
        finished = FinishedRequest(
            opened=opened,
            operation=OPERATIONS[kind],
            model=model,
            headers=request.headers,
            timeline=timeline,
        )
        self._tracer.record(finished)


class ClosingEvents(StreamingResponse):
    """A stream of events after which something is closed, also where its client has gone before the first of them.

    Args:
        events: They; a generator that was never asked for one would close nothing itself.
        headers: Of the response.
        close: Called once, at the end.
    """

    def __init__(
        self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str], close: Callable[[], None]
    ) -> None:
        super().__init__(events, media_type="text/event-stream", headers={**SSE_HEADERS, **headers})
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
            await self._events.aclose()


async def _events(opened: ServeOpenRequest, answer: OpenAiAnswer, first: Chunk) -> AsyncGenerator[bytes, None]:
    yield answer.opening() + answer.event(first)
    while isinstance(item := await opened.stream.read(), Chunk):
        yield answer.event(item)
    yield _last_events(opened, answer, item)


class _PushedAnswer:
    """Writes an answer's events as soon as its tokens come."""

    def __init__(
        self,
        host: ServeHost,
        opened: ServeOpenRequest,
        answer: OpenAiAnswer,
        first: Chunk,
        close: Callable[[], None],
    ) -> None:
        self._host = host
        self._opened = opened
        self._answer = answer
        self._first = first
        self._close = close
        self._writer: EventWriter
        self._is_gone = False

    # -- for the connection -------------------------------------------------------------------------------------------

    def begin(self, writer: EventWriter) -> None:
        self._writer = writer
        writer.write(self._answer.opening() + self._answer.event(self._first))
        self._opened.stream.flow_into(self)

    def go_on(self) -> None:
        self._opened.stream.drain()

    def gone(self) -> None:
        self._is_gone = True
        self._opened.stream.flow_into(self)
        self._host.abandon(self._opened.view.request_id)

    # -- for the stream -----------------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return not self._is_gone and self._writer.is_paused

    def take(self, chunk: Chunk) -> None:
        if not self._is_gone:
            self._writer.write(self._answer.event(chunk))

    def finish(self, outcome: Outcome) -> None:
        if not self._is_gone:
            self._writer.end(_last_events(self._opened, self._answer, outcome))
        self._close()


def ended_stream(answer: OpenAiAnswer, last: Chunk) -> Response:
    """A stream that has nothing but its end left."""
    return Response(answer.event(last) + answer.closing(), media_type="text/event-stream", headers=SSE_HEADERS)


def _last_events(opened: ServeOpenRequest, answer: OpenAiAnswer, outcome: Outcome) -> bytes:
    """What follows the last chunk."""
    if outcome.kind is OutcomeKind.COMPLETED:
        return answer.closing(_extra(opened))
    return b"data: " + error_for(opened, outcome).body() + b"\n\n"


def _headers(opened: ServeOpenRequest) -> dict[str, str]:
    """What a response says beside the answer."""
    headers = opened.headers
    if opened.client_deadline_unix_s < math.inf:
        headers = {**headers, TIME_LEFT_HEADER: f"{max(0.0, opened.client_deadline_unix_s - unix_s()):.3f}"}
    if opened.budget.is_wanted:
        attempts = f"{opened.num_attempts};hedges={opened.num_hedges}"
        timing = server_timing(opened.budget.timeline())
        headers = {**headers, TIMING_HEADER: timing, ATTEMPTS_HEADER: attempts}
    return headers


def _extra(opened: ServeOpenRequest) -> Extra | None:
    """What the end of an answer says beside it."""
    if not opened.budget.is_wanted:
        return None
    spent = spent_s(opened.budget.timeline())
    return Extra(
        latency_budget_s={stage.value: round(each_s, 6) for stage, each_s in spent.items()},
        attempts=opened.num_attempts,
        hedges=opened.num_hedges,
    )


def error_for(opened: ServeOpenRequest, outcome: Outcome) -> ApiError:
    """What the client is told of a request that got no answer, or no whole one."""
    error, said = error_of(outcome), opened.failure
    if said is not None and outcome.reason is said.reason:
        error = error_of(outcome, said.message, said.param)
    error.headers |= _headers(opened)
    return error


def server_timing(timeline: Timeline) -> str:
    """The header ``Server-Timing``: the stages that a request came to, in milliseconds."""
    return ", ".join(f"{stage};dur={1e3 * each_s:.3f}" for stage, each_s in spent_s(timeline).items() if each_s)
