"""How answers leave a gateway, and that each one's time is counted once, when it has left."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from fastapi import Request, Response
from prometheus_client.parser import text_string_to_metric_families

from cluster.latency_budget import LatencyStage, Span, spent_s
from deployments.gateway.egress import ClosingEvents, Egress, server_timing
from deployments.gateway.open_request import ServeOpenRequest
from deployments.gateway.tracing import FinishedRequest
from deployments.openai.errors import ApiError
from deployments.openai.responses import OpenAiAnswer
from engines.contract import Chunk
from policies import Role
from routing.request.effects import OutcomeKind
from tests.deployments.host_dialogue import HostDialogue
from tests.deployments.metrics_text import text_of
from tests.tables import for_each

END = Chunk(".", (3,), "stop")


class Recorder:
    """A tracer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[FinishedRequest] = []

    def record(self, finished: FinishedRequest) -> None:
        self.told.append(finished)

    def close(self) -> None: ...


class WayOut:
    """A gateway's way out, with a client that gets what is sent."""

    def __init__(self, talk: HostDialogue) -> None:
        self.talk = talk
        self.tracer = Recorder()
        self.egress = Egress(talk.host, talk.metrics, self.tracer)
        self.may_leave = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    def answer(self, opened: ServeOpenRequest, *, streams: bool) -> "asyncio.Task[Response]":
        made = OpenAiAnswer(kind="chat", request_id="q", model="tiny", created=1, prompt_tokens=3)
        return asyncio.create_task(self.egress.answer(self.request(), opened, made, streams=streams))

    def request(self) -> Request:
        return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, self.receive)

    async def receive(self) -> dict[str, Any]:
        await self.may_leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        self.talk.clock.time_s += 1.0

    async def deliver(self, response: Response) -> bytes:
        await response({"type": "http", "headers": []}, self.receive, self.send)
        return b"".join(each.get("body", b"") for each in self.sent)

    def counted(self, stage: LatencyStage) -> float:
        page = text_of(self.talk.metrics)
        name = f'spillway_request_stage_seconds_sum{{stage="{stage}"}} '
        return float(next(line for line in page.splitlines() if line.startswith(name)).removeprefix(name))

    def binding(self) -> list[str]:
        """What the gateway says binds its requests."""
        page = text_string_to_metric_families(text_of(self.talk.metrics))
        samples = (sample for family in page for sample in family.samples if sample.name == "spillway_lane_bound")
        return [sample.labels["bound"] for sample in samples if sample.value]


@pytest_asyncio.fixture
async def way_out() -> AsyncIterator[WayOut]:
    """One unified replica behind it; nothing is left open."""
    made = WayOut(HostDialogue().replicas(Role.UNIFIED, "a"))
    yield made
    await made.talk.until(lambda: made.talk.is_over)


async def test_a_whole_answer_is_counted_when_it_has_been_sent(way_out: WayOut) -> None:
    opened = await way_out.talk.arrives("q")
    answering = way_out.answer(opened, streams=False)
    (await way_out.talk.call("q.0")).answers(END)
    response = await answering
    assert way_out.tracer.told == []

    body = msgspec.json.decode(await way_out.deliver(response))

    (told,) = way_out.tracer.told
    assert (told.operation, told.model) == ("chat", "tiny")
    assert spent_s(told.timeline)[LatencyStage.EGRESS] == way_out.counted(LatencyStage.EGRESS) == 2.0, (
        "a second for each message"
    )
    assert way_out.binding() == ["client"]
    assert "spillway" not in body


async def test_a_streamed_answer_is_counted_when_its_last_event_has_been_sent(way_out: WayOut) -> None:
    opened = await way_out.talk.arrives("q")
    opened.budget.is_wanted = True
    answering = way_out.answer(opened, streams=True)
    call = await way_out.talk.call("q.0")
    way_out.talk.clock.time_s += 0.5
    call.gives(Chunk("He", (1,)))
    response = await answering
    assert response.headers["server-timing"] == "first_token;dur=500.000"
    assert response.headers["x-spillway-attempts"] == "1;hedges=0"
    call.answers(END)

    raw = await way_out.deliver(response)

    *_, last, done, nothing = raw.split(b"\n\n")
    told = msgspec.json.decode(last.removeprefix(b"data: "))["spillway"]
    budget = told["latency_budget_s"]
    assert (told["attempts"], told["hedges"]) == (1, 0)
    assert (done, nothing) == (b"data: [DONE]", b"")
    assert set(budget) == {each.value for each in LatencyStage}
    (traced,) = way_out.tracer.told
    assert (
        0.5 + way_out.counted(LatencyStage.DECODE) + way_out.counted(LatencyStage.EGRESS) == traced.timeline[-1].ends_s
    )


async def test_a_client_that_leaves_in_mid_stream_is_counted_as_far_as_it_came(way_out: WayOut) -> None:
    opened = await way_out.talk.arrives("q")
    answering = way_out.answer(opened, streams=True)
    (await way_out.talk.call("q.0")).gives(Chunk("He", (1,)))
    response = await answering
    delivering = asyncio.create_task(way_out.deliver(response))
    await way_out.talk.until(lambda: len(way_out.sent) == 2)

    way_out.may_leave.set()
    await delivering

    (told,) = way_out.tracer.told
    outcome = told.opened.stream.outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.CANCELLED
    assert way_out.counted(LatencyStage.DECODE) > 0


@for_each("streams", [False, True], ids=["whole", "stream"])
async def test_a_refusal_is_counted_and_says_where_the_time_went(streams: bool) -> None:
    way_out = WayOut(HostDialogue().replicas(Role.UNIFIED, "a", slots=1))
    first = await way_out.talk.arrives("first")
    opened = await way_out.talk.arrives("q", budget_s=5.0)
    opened.budget.is_wanted = True
    answering = way_out.answer(opened, streams=streams)
    way_out.talk.clock.time_s = 6.0
    way_out.talk.host._fire("q:deadline")

    with pytest.raises(ApiError) as caught:
        await answering

    assert caught.value.headers["server-timing"] == "queue;dur=6000.000"
    assert (len(way_out.tracer.told), way_out.counted(LatencyStage.QUEUE)) == (1, 6.0)
    (await way_out.talk.call("first.0")).answers(END)
    await way_out.talk.answer(first)


async def test_who_is_refused_at_intake_is_counted_too() -> None:
    way_out = WayOut(HostDialogue())
    opened = await way_out.talk.arrives("q")

    with pytest.raises(ApiError):
        await way_out.answer(opened, streams=False)

    (told,) = way_out.tracer.told
    assert told.timeline == [], "by a clock that stood still"


def test_server_timing_names_the_stages_in_milliseconds() -> None:
    timeline = [
        Span(LatencyStage.PARSE, 1.0, 1.0005),
        Span(LatencyStage.DISPATCH, 1.0005, 1.0015),
        Span(LatencyStage.DISPATCH, 1.002, 1.003),
    ]

    assert server_timing(timeline) == "parse;dur=0.500, dispatch;dur=2.000"


async def test_events_whose_client_has_gone_before_the_first_of_them_are_closed_all_the_same() -> None:
    """A generator that was never asked for an event runs nothing of its own end."""
    closed: list[str] = []

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.Event().wait()  # the head gets nowhere

    response = ClosingEvents(events(), {}, lambda: closed.append("closed"))
    await response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)

    assert closed == ["closed"]
