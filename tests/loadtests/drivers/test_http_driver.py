"""The driver against a server that does what it is told: what is sent when, and what becomes of every ending."""

import asyncio
import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pytest
from aiohttp import web

from cluster.seeds import Seeds
from cluster.sim.run_table import OUTCOMES, REASONS, UNKNOWN
from cluster.sim.traffic import Arrival, PlannedRequest
from loadtests.drivers.completions import Endpoint, authorization, head_of
from loadtests.drivers.http_driver import HttpDriver, HttpRun, drive
from loadtests.drivers.prompts import PromptsAlone, PromptTokens
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.clients import Clients, Retries
from loadtests.workloads.lengths import Constant, Uniform
from loadtests.workloads.sessions import Sessions
from loadtests.workloads.turns import ConstantThink, ConstantTurns
from loadtests.workloads.workload import TrafficClass, Workload
from routing.request.effects import Outcome
from tests.cluster.simulated import planned
from tests.loadtests.completion_server import (
    Answer,
    CompletionServer,
    breaking_off,
    event,
    refusing,
    silence,
    streaming,
    token,
    whole,
)
from tests.tables import for_each
from tests.waiting import until

PROMPTS = PromptTokens(range(5, 1000), "test")
DONE = b"data: [DONE]\n\n"
ERROR_EVENT = event({"error": {"message": "gone", "code": "replica_lost"}})


class Plan:
    """A list of arrivals; remembers how each request ended."""

    def __init__(self, *arrivals: Arrival) -> None:
        self._arrivals = arrivals
        self.ended: list[tuple[str, Outcome, float]] = []

    def arrivals(self) -> Iterator[Arrival]:
        return iter(self._arrivals)

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        self.ended.append((request.request_id, outcome, now_s))
        return ()


def arrival(logical_request: int = 0, at_s: float = 0.0, timeout_s: float = 30.0, output_tokens: int = 3) -> Arrival:
    return Arrival(at_s, planned(logical_request, scheduled_s=at_s, output_tokens=output_tokens, timeout_s=timeout_s))


async def run_against(answer: Answer | None, *arrivals: Arrival) -> tuple[HttpRun, Plan, CompletionServer]:
    plan = Plan(*arrivals)
    async with CompletionServer(answer) as server:
        run = await drive(Endpoint(base_url=server.url, model="m"), plan, PROMPTS, ("all",))
    return run, plan, server


async def test_what_gateways_and_replicas_did_is_not_known_over_http() -> None:
    run, _, _ = await run_against(None, arrival())

    assert run.table.computed_prompt_tokens.tolist() == [UNKNOWN]
    assert (run.table.attempts.tolist(), run.table.hedges.tolist()) == ([UNKNOWN], [UNKNOWN])


async def test_attempts_and_hedges_are_what_the_service_says_at_last() -> None:
    """A refusal says it in its head, a stream's head is too early, and its last event knows."""

    async def hedged(request: web.Request, body: object) -> web.StreamResponse:
        response = await streaming(request, {"x-spillway-attempts": "1;hedges=0"})
        budget = {"latency_budget_s": {}, "attempts": 3, "hedges": 1}
        await response.write(3 * token() + event({"choices": [], "spillway": budget}) + DONE)
        return response

    answered, _, _ = await run_against(hedged, arrival())
    refused, _, _ = await run_against(refusing(429, "shed", **{"x-spillway-attempts": "2;hedges=1"}), arrival())

    for run, attempts in ((answered, 3), (refused, 2)):
        assert (run.table.attempts.tolist(), run.table.hedges.tolist()) == ([attempts], [1])


async def test_a_request_asks_for_exactly_what_was_planned() -> None:
    """Token ids, so that no tokenizer changes the length; all tokens, whatever the model would say."""
    run, _, server = await run_against(None, arrival(output_tokens=3))

    (body,) = server.bodies
    assert body["prompt"] == PROMPTS.of(arrival().request)
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (3, 0.0, True)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert server.headers[0]["Accept-Encoding"] == "identity"
    assert (run.table.output_tokens[0], run.health.cached_tokens, run.health.wrong_lengths) == (3, 16, 0)


async def test_a_completed_request_leaves_its_times_in_order() -> None:
    """Scheduled, sent, first token, last token; from the run's time 0."""
    run, plan, _ = await run_against(None, arrival(at_s=0.02))

    table = run.table
    assert [OUTCOMES[index] for index in table.outcome] == ["completed"]
    assert table.scheduled_s[0] == 0.02 <= table.sent_s[0] <= table.first_token_s[0] <= table.end_s[0]
    assert table.end_s[0] <= plan.ended[0][2] < 10
    assert table.is_last[0]


async def test_a_slow_answer_does_not_hold_up_the_next_request() -> None:
    """Open loop: no answer comes before the last request was sent."""
    all_there = asyncio.Event()
    server_sees = 0

    async def answer(request: object, body: object) -> object:
        nonlocal server_sees
        server_sees += 1
        if server_sees == 300:
            all_there.set()
        await all_there.wait()
        return await whole(request, body)  # type: ignore[arg-type]

    run, _, server = await run_against(answer, *(arrival(each, at_s=each * 1e-4) for each in range(300)))  # type: ignore[arg-type]

    assert server.most_open == 300
    assert len(run.table) == run.health.sent == 300


async def test_requests_are_sent_in_the_plans_order_and_never_early() -> None:
    """Send lag is what a late client adds; nobody is ever early."""
    run, _, server = await run_against(None, *(arrival(each, at_s=each * 0.01) for each in range(10)))

    order = np.argsort(run.table.scheduled_s)
    assert [body["prompt"] for body in server.bodies] == [PROMPTS.of(arrival(each).request) for each in range(10)]
    assert np.all(run.table.sent_s[order] >= run.table.scheduled_s[order])
    assert run.health.send_lag_p99_s >= 0


@pytest.mark.parametrize(
    ("answer", "kind", "reason", "retry_after_s"),
    [
        pytest.param(refusing(429, "shed", **{"retry-after": "3"}), "refused", "shed", 3, id="429"),
        pytest.param(refusing(429), "refused", "admission_rejected", 0, id="429 of a proxy"),
        pytest.param(refusing(503, "replica_lost"), "refused", "replica_lost", 0, id="503"),
        pytest.param(refusing(503), "refused", "no_replica_available", 0, id="503 of a proxy"),
        pytest.param(refusing(503, "not_ready"), "refused", "no_replica_available", 0, id="503 with another code"),
        pytest.param(refusing(504, "deadline_exceeded"), "refused", "deadline_exceeded", 0, id="504"),
        pytest.param(refusing(400, "context_length_exceeded"), "refused", "invalid_request", 0, id="400"),
        pytest.param(refusing(500, "internal_error"), "refused", "engine_error", 0, id="500"),
        pytest.param(refusing(503, **{"retry-after": "Sat, 01 Jan"}), "refused", "no_replica_available", 0, id="date"),
        pytest.param(breaking_off(ERROR_EVENT), "refused", "replica_lost", 0, id="error event at once"),
        pytest.param(breaking_off(token(), ERROR_EVENT), "failed", "replica_lost", 0, id="error event later"),
        pytest.param(breaking_off(token()), "failed", "", 0, id="no DONE"),
        pytest.param(breaking_off(token(), closes_connection=True), "failed", "", 0, id="broken off"),
        pytest.param(breaking_off(closes_connection=True), "failed", "", 0, id="broken off at once"),
        pytest.param(breaking_off(b"data: {nonsense\n\n"), "failed", "", 0, id="no JSON"),
        pytest.param(breaking_off(b"<html>hello</html>"), "failed", "", 0, id="HTML"),
        pytest.param(breaking_off(DONE), "failed", "", 0, id="no token"),
        pytest.param(breaking_off(event({"choices": 7}), DONE), "failed", "", 0, id="no list of choices"),
        pytest.param(breaking_off(event({"error": "gone"}), DONE), "refused", "engine_error", 0, id="error in a word"),
    ],
)
async def test_every_ending_has_its_outcome(answer: Answer, kind: str, reason: str, retry_after_s: float) -> None:
    """Refused before the first token, failed after it, with the reason that the service gives or its status means.

    What is no answer has no reason, because nobody gave any.
    """
    run, plan, _ = await run_against(answer, arrival())

    assert (OUTCOMES[run.table.outcome[0]], REASONS[run.table.reason[0]]) == (kind, reason)
    assert plan.ended[0][1].retry_after_s == retry_after_s
    assert kind == "failed" or math.isnan(run.table.first_token_s[0])
    assert sum(run.health.errors.values()) == 1


async def hanging_after_an_error(request: web.Request, body: object) -> web.StreamResponse:
    response = await streaming(request)
    await response.write(ERROR_EVENT)
    await asyncio.Event().wait()
    return response


async def test_an_error_event_ends_a_request_whatever_becomes_of_its_connection() -> None:
    run, _, _ = await run_against(hanging_after_an_error, arrival())

    assert (OUTCOMES[run.table.outcome[0]], REASONS[run.table.reason[0]]) == ("refused", "replica_lost")
    assert run.health.errors == {"error event: gone": 1}


@for_each(("headers", "num_wrong"), [({}, 1), ({"x-spillway-degraded": "max_tokens"}, 0)])
async def test_a_shorter_answer_is_wrong_unless_the_service_says_that_it_is(
    headers: dict[str, str], num_wrong: int
) -> None:
    async def short(request: web.Request, body: object) -> web.StreamResponse:
        response = await streaming(request, headers)
        await response.write(token() + DONE)
        return response

    run, _, _ = await run_against(short, arrival(output_tokens=3))

    assert run.health.wrong_lengths == num_wrong


def test_what_a_head_says_can_be_kept_and_shown() -> None:
    """Whatever bytes and numbers a proxy puts there."""
    head = head_of(
        {"x-spillway-lane": "a\udcff\x1b[31m" + "b" * 500, "server-timing": "a;dur=nan, b;dur=-1, c;dur=5"}.get
    )

    assert head.lane.startswith("a\ufffd\ufffd[31mb")
    assert len(head.lane) == 200
    assert head.stages_s == {"c": 0.005}


def test_a_key_goes_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    request = arrival().request
    assert "Authorization" not in Endpoint(base_url="", model="m", authorization=authorization()).headers(request)

    monkeypatch.setenv("SPILLWAY_KEY", "secret")
    endpoint = Endpoint(base_url="", model="m", authorization=authorization())
    assert endpoint.headers(request)["Authorization"] == "Bearer secret"
    assert "secret" not in repr(endpoint)


def test_a_retry_is_told_as_its_clients_library_tells_it() -> None:
    endpoint, again = Endpoint(base_url="", model="m"), Endpoint(base_url="", model="m")
    counted = msgspec.structs.replace(arrival().request, retry_count=2)
    keyed = msgspec.structs.replace(arrival().request, idempotency_key="logical-0")

    assert endpoint.headers(arrival().request) == {}
    assert endpoint.headers(counted) == {"x-stainless-retry-count": "2"}
    assert endpoint.headers(keyed) == endpoint.headers(keyed) != again.headers(keyed)  # another run of the same plan


async def test_a_refusal_says_whether_a_retry_has_a_chance_and_which_gateway_it_comes_from() -> None:
    final = refusing(429, "shed", **{"x-should-retry": "false", "x-spillway-gateway": "g1"})
    run, plan, _ = await run_against(final, arrival(0), arrival(1))
    other, other_plan, _ = await run_against(refusing(429, "shed"), arrival(0))

    assert [outcome.may_retry for _, outcome, *_ in plan.ended] == [False, False]
    assert run.table.gateway.tolist() == [0, 0]
    assert other_plan.ended[0][1].may_retry
    assert other.table.gateway.tolist() == [-1]


async def test_nobody_listening_is_a_failure_without_a_reason_and_no_exception() -> None:
    """A run goes on while a service is down."""
    plan = Plan(arrival())
    run = await drive(Endpoint(base_url="http://127.0.0.1:9", model="m"), plan, PROMPTS, ("all",))

    assert (OUTCOMES[run.table.outcome[0]], REASONS[run.table.reason[0]]) == ("failed", "")
    assert run.health.errors == {"ClientConnectorError": 1}


async def test_a_client_gives_up_at_its_timeout_and_the_server_learns_of_it() -> None:
    """Counted from when it was due; the connection is closed."""
    plan = Plan(arrival(timeout_s=0.05))
    async with CompletionServer(silence) as server:
        run = await drive(Endpoint(base_url=server.url, model="m"), plan, PROMPTS, ("all",))
        assert (OUTCOMES[run.table.outcome[0]], REASONS[run.table.reason[0]]) == ("cancelled", "client_gone")
        assert 0.05 <= run.table.end_s[0] < 10

        await until(lambda: server.num_open == 0, "the server's handler ends")


async def test_a_client_that_gives_up_in_mid_stream_keeps_what_it_got() -> None:
    """Tokens that reached it are in its row, and when the first one came."""

    async def answer(request: object, body: object) -> object:
        response = await streaming(request)  # type: ignore[arg-type]
        await response.write(token() + token())
        await asyncio.Event().wait()
        return response

    run, _, _ = await run_against(answer, arrival(timeout_s=1.0))  # type: ignore[arg-type]

    assert OUTCOMES[run.table.outcome[0]] == "cancelled"
    assert run.table.output_tokens[0] == 2
    assert run.table.first_token_s[0] <= run.table.end_s[0]


async def test_a_retry_follows_a_refusal_and_is_a_row_of_its_own() -> None:
    """Three refusals of one logical request are three rows, the last of which is its last."""
    users = TrafficClass(
        name="users",
        arrivals=Poisson(rate_per_s=100),
        prompt_tokens=Constant(num_tokens=9),
        output_tokens=Constant(num_tokens=2),
        timeout_s=10,
    )
    workload = Workload(classes=(users,), duration_s=0.1)
    clients = Clients(workload, Seeds(1), Retries(max_requests=3, backoff_s=0.01))
    async with CompletionServer(refusing(429, "shed")) as server:
        run = await drive(Endpoint(base_url=server.url, model="m"), clients, PROMPTS, workload.class_names)

    table = run.table
    assert len(table) == 3 * table.is_last.sum() > 0
    assert np.all(table.is_last == (table.retry_index == 2))
    assert np.all(table.sent_s[table.retry_index > 0] > table.scheduled_s[table.retry_index > 0])


async def test_a_session_goes_on_after_each_answer_and_repeats_its_text() -> None:
    """Turn by turn; a later prompt begins with the earlier one's whole units."""
    sessions = Sessions(
        turns=ConstantTurns(num_turns=3),
        think=ConstantThink(duration_s=0.01),
        system_prompt_tokens=32,
        content_unit_tokens=16,
    )
    users = TrafficClass(
        name="users",
        arrivals=Poisson(rate_per_s=20),
        prompt_tokens=Uniform(least_tokens=5, most_tokens=50),
        output_tokens=Uniform(least_tokens=1, most_tokens=5),
        timeout_s=10,
        sessions=sessions,
        for_s=0.3,
    )
    workload = Workload(classes=(users,), duration_s=60)
    traffic = PromptsAlone(Clients(workload, Seeds(5)))
    async with CompletionServer() as server:
        run = await drive(Endpoint(base_url=server.url, model="m"), traffic, PROMPTS, workload.class_names)

    table = run.table
    logical_requests = set(table.logical_request.tolist())
    assert len(logical_requests) == len(table) >= 6
    assert len(logical_requests) % 3 == 0
    by_length = sorted((body["prompt"] for body in server.bodies), key=len)
    assert len({tuple(prompt[:32]) for prompt in by_length}) == 1, "all begin with the system prompt"
    end_s = dict(zip(table.logical_request.tolist(), table.end_s.tolist(), strict=True))
    sent_s = dict(zip(table.logical_request.tolist(), table.sent_s.tolist(), strict=True))
    assert all(sent_s[each] >= end_s[each - 1] for each in logical_requests if each % 3)


async def test_a_hard_end_leaves_no_row_of_what_is_unanswered_and_no_connection() -> None:
    """What had ended is there; the rest is closed."""

    async def answer(request: object, body: dict[str, int]) -> object:
        return await (whole if body["max_tokens"] == 1 else silence)(request, body)  # type: ignore[arg-type]

    plan = Plan(arrival(0, output_tokens=1), arrival(1, output_tokens=2), arrival(2, at_s=3600.0))
    async with CompletionServer(answer) as server:  # type: ignore[arg-type]
        run = await drive(Endpoint(base_url=server.url, model="m"), plan, PROMPTS, ("all",), until_s=3.0)

    assert run.table.logical_request.tolist() == [0]
    assert run.health.sent == 2


async def test_an_interrupted_run_still_has_its_rows() -> None:
    """Whoever cancels the driver may ask it for what there is."""
    first_has_ended = asyncio.Event()

    async def answer(request: object, body: dict[str, int]) -> object:
        return await (whole if body["max_tokens"] == 1 else silence)(request, body)  # type: ignore[arg-type]

    plan = Plan(arrival(0, output_tokens=1), arrival(1, output_tokens=2))
    async with CompletionServer(answer) as server:  # type: ignore[arg-type]
        driver = HttpDriver(
            Endpoint(base_url=server.url, model="m"),
            plan,
            PROMPTS,
            ("all",),
            on_progress=lambda now_s: first_has_ended.set(),
        )
        running = asyncio.create_task(driver.run())
        await asyncio.wait_for(first_has_ended.wait(), 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert driver.result().table.logical_request.tolist() == [0]


async def test_an_answer_of_another_length_than_planned_is_counted() -> None:
    """A service that ignores max_tokens or ends early does other work than the plan says."""

    async def answer(request: object, body: dict[str, int]) -> object:
        return await whole(request, body | {"max_tokens": 1})  # type: ignore[arg-type]

    run, _, _ = await run_against(answer, arrival(output_tokens=3))  # type: ignore[arg-type]

    assert (run.health.wrong_lengths, run.table.output_tokens[0]) == (1, 1)


async def test_traffic_that_raises_ends_the_run_with_its_error() -> None:
    """A bug in a workload must not look like a run without requests."""

    class Broken(Plan):
        def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
            raise RuntimeError("a bug")

    async with CompletionServer() as server:
        with pytest.raises(RuntimeError, match="a bug"):
            await drive(Endpoint(base_url=server.url, model="m"), Broken(arrival()), PROMPTS, ("all",))


async def test_a_plan_without_requests_ends_at_once() -> None:
    """And leaves an empty table."""
    run = await drive(Endpoint(base_url="http://127.0.0.1:9", model="m"), Plan(), PROMPTS, ("all",))

    assert len(run.table) == 0
    assert run.table.duration_s == 0.0


def going_on(num_tokens: int) -> Answer:
    """The first request breaks off after two tokens and a piece of the third; others get what they don't have."""
    num_asked = 0

    async def answer(request: web.Request, body: object) -> web.StreamResponse:
        nonlocal num_asked
        num_asked += 1
        has = int(request.headers.get("last-event-id", "a.0").partition(".")[2])
        response = await streaming(request)
        events = [f"id: a.{number + 1}\n".encode() + token() for number in range(has, num_tokens)]
        if num_asked == 1:
            await response.write(b"".join(events[:2]) + events[2][:-5])
            assert request.transport is not None
            request.transport.close()
        else:
            usage = event({"choices": [], "usage": {"completion_tokens": num_tokens}})
            await response.write(b"".join(events) + usage + DONE)
        return response

    return answer


async def test_a_client_that_reconnects_gets_the_rest_and_each_token_once() -> None:
    plan = Plan(arrival())
    async with CompletionServer(going_on(3)) as server:
        run = await drive(Endpoint(base_url=server.url, model="m", reconnects=True), plan, PROMPTS, ("all",))
    assert len({each["idempotency-key"] for each in server.headers}) == 1
    assert (len(server.headers), OUTCOMES[run.table.outcome[0]]) == (2, "completed")
    assert (run.table.output_tokens[0], run.health.errors, run.health.wrong_lengths) == (3, {}, 0)


async def test_a_client_reconnects_once_and_only_where_it_is_told_to() -> None:
    for reconnects, requests in ((False, 1), (True, 2)):
        async with CompletionServer(breaking_off(token())) as server:
            endpoint = Endpoint(base_url=server.url, model="m", reconnects=reconnects)
            run = await drive(endpoint, Plan(arrival()), PROMPTS, ("all",))
        assert (OUTCOMES[run.table.outcome[0]], len(server.headers)) == ("failed", requests)


async def test_who_is_refused_does_not_reconnect() -> None:
    async with CompletionServer(refusing(503, "no_gateway_available")) as server:
        endpoint = Endpoint(base_url=server.url, model="m", reconnects=True)
        await drive(endpoint, Plan(arrival()), PROMPTS, ("all",))
    assert len(server.headers) == 1
