"""Degraded requests in the Serve host, with fake handles on a real event loop."""

import asyncio

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from deployments.wire import inner_hop
from deployments.wire.attempt_call import WINDOW_ITEMS
from deployments.wire.degradation import header_of, kinds_of, shortened
from engines.contract import Chunk, EngineRequest, KvHandle, Sampling
from policies import PolicyChoice, Priority, Reason, Role
from routing import DispatcherParams, TimerFired
from routing.request.effects import Degraded
from tests.deployments.host_dialogue import HostDialogue
from tests.deployments.metrics_text import text_of
from tests.routing.dialogue import DOUBLES, cancelled, completed, failed
from tests.tables import for_each

HELLO = Chunk("Hello", (1, 2))
END = Chunk(".", (3,), "stop")
CUT = Chunk("", (), "length")
TIME_IS_UP = TimerFired(token="q:output_time_limit")


def degrading(**bounds: object) -> HostDialogue:
    """Every request is degraded; time limits are so long that only the test ends them."""
    choice = PolicyChoice(name=f"{DOUBLES}:DegradeTo", params=bounds)
    return HostDialogue(degradation=choice).replicas(Role.UNIFIED, "a", "b")


def num_degraded(talk: HostDialogue, **labels: str) -> float:
    families = text_string_to_metric_families(text_of(talk.metrics))
    found = [sample for family in families for sample in family.samples if sample.name == "spillway_degraded_total"]
    return sum(sample.value for sample in found if labels.items() <= sample.labels.items())


def decision(**changes: object) -> Degraded:
    asked = {"request_id": "q", "priority": Priority.STANDARD, "max_output_tokens": 50, "asked_output_tokens": 50}
    return Degraded(**{**asked, **changes})  # type: ignore[arg-type]


@for_each(
    ("changes", "header"),
    [
        ({}, None),
        ({"max_output_tokens": 20}, "max_tokens=20"),
        ({"output_time_limit_s": 2.5}, "output_time_limit=2.5s"),
        ({"output_time_limit_s": 1 / 3}, "output_time_limit=0.333s"),
        ({"from_cache": True}, "cache"),
        ({"lane": "small"}, "lane=small"),
        (
            {"max_output_tokens": 20, "output_time_limit_s": 2.0, "lane": "small"},
            "max_tokens=20, output_time_limit=2s, lane=small",
        ),
    ],
)
def test_the_header_names_what_was_given_up(changes: dict[str, object], header: str | None) -> None:
    assert header_of(decision(**changes)) == ({} if header is None else {"x-spillway-degraded": header})
    assert len(kinds_of(decision(**changes))) == (0 if header is None else header.count(",") + 1)


def test_an_engine_is_asked_for_less_and_for_nothing_else_than_before() -> None:
    sampling = Sampling(max_tokens=50, min_tokens=30, temperature=0.5, stop=("x",))
    request = EngineRequest(request_id="q", prompt_token_ids=[1, 2], sampling=sampling, priority=1)
    less = inner_hop.decode_request(shortened(inner_hop.encode(request), 20))
    wanted = msgspec.structs.replace(sampling, max_tokens=20, min_tokens=20)
    assert less == msgspec.structs.replace(request, sampling=wanted)


async def test_the_engine_gets_the_shorter_request_and_the_client_is_told() -> None:
    talk = degrading(max_output_tokens=20)
    opened, call = await talk.opens("q")
    assert await talk.answered(opened, call, HELLO, END) == ("Hello.", completed())
    assert inner_hop.decode_request(call.arguments[0]).sampling.max_tokens == 20
    assert call.work == (3, 23)
    assert opened.headers == {"x-spillway-degraded": "max_tokens=20"}
    assert num_degraded(talk, kind="max_tokens", **{"class": "standard"}) == num_degraded(talk) == 1
    assert talk.is_over


async def test_who_asks_for_no_more_than_is_given_is_told_nothing() -> None:
    talk = degrading(max_output_tokens=50)
    opened, call = await talk.opens("q")
    call.answers(END)

    await talk.answer(opened)
    assert inner_hop.decode_request(call.arguments[0]).sampling.max_tokens == 50
    assert opened.headers == {}
    assert num_degraded(talk) == 0


async def test_when_the_time_is_up_the_answer_ends_with_what_was_given_and_the_call_is_stopped() -> None:
    talk = degrading(output_time_limit_s=1000.0)
    opened, call = await talk.opens("q")
    call.gives(HELLO, Chunk(" there", (3,)))
    assert [await opened.stream.read() for _ in range(2)] == [HELLO, Chunk(" there", (3,))]
    assert opened.headers == {"x-spillway-degraded": "output_time_limit=1e+03s"}

    talk.host.handle(TIME_IS_UP)

    assert await asyncio.wait_for(opened.stream.read(), 5) == CUT
    assert await talk.answer(opened) == ("", completed())
    assert opened.output_tokens == 3
    assert call.num_cancels == 1
    assert talk.is_over


async def test_an_answer_whose_last_tokens_wait_for_the_client_is_whole_and_not_truncated() -> None:
    """The client reads slowly: the writer waits with the last chunk already in the pipe."""
    talk = degrading(output_time_limit_s=1000.0)
    opened, call = await talk.opens("q")
    call.answers(*[Chunk("x", (1,))] * (WINDOW_ITEMS - 1), END)
    await talk.until(lambda: call.num_unread <= 1)
    await talk.turn()

    talk.host.handle(TIME_IS_UP)

    chunks = [await asyncio.wait_for(opened.stream.read(), 5) for _ in range(WINDOW_ITEMS)]
    assert chunks[-1] == END
    assert await talk.answer(opened) == ("", completed())
    assert talk.is_over


async def test_a_client_that_reads_nothing_does_not_keep_a_truncated_answer_from_ending() -> None:
    talk = degrading(output_time_limit_s=1000.0)
    opened, call = await talk.opens("q")
    call.gives(*[Chunk("x", (1,))] * (WINDOW_ITEMS + 10))
    await talk.until(lambda: call.num_unread <= 10)
    await talk.turn()

    talk.host.handle(TIME_IS_UP)

    await talk.until(lambda: talk.is_over)
    assert await talk.answer(opened) == ("x" * WINDOW_ITEMS, completed())


async def test_a_client_that_goes_with_the_end_of_its_time_leaves_nothing_behind() -> None:
    talk = degrading(output_time_limit_s=1000.0)
    opened, call = await talk.opens("q")
    call.gives(HELLO)
    await opened.stream.read()

    talk.host.handle(TIME_IS_UP)
    talk.host.abandon("q")

    assert opened.stream.outcome == cancelled()
    await talk.until(lambda: talk.is_over)
    assert call.num_cancels == 1


async def test_an_answer_that_goes_on_elsewhere_ends_with_its_time_all_the_same() -> None:
    talk = degrading(output_time_limit_s=1000.0)
    opened, call = await talk.opens("q")
    call.answers(HELLO, inner_hop.Failure(Reason.REPLICA_LOST, "gone"))
    (await talk.call("q.1")).gives(HELLO)
    await talk.until(lambda: opened.committed == "q.1")
    talk.host.handle(TIME_IS_UP)

    assert await talk.answer(opened) == ("HelloHello", completed())
    assert talk.is_over


async def test_a_replica_that_dies_within_the_time_limit_fails_the_request_when_there_is_no_other() -> None:
    choice = PolicyChoice(name=f"{DOUBLES}:DegradeTo", params={"output_time_limit_s": 1000.0})
    talk = HostDialogue(degradation=choice, params=DispatcherParams(waiting_room_s=0)).replicas(Role.UNIFIED, "a")
    opened, call = await talk.opens("q")
    assert await talk.answered(opened, call, HELLO, inner_hop.Failure(Reason.REPLICA_LOST, "gone")) == (
        "Hello",
        failed(Reason.REPLICA_LOST),
    )
    talk.host.handle(TIME_IS_UP)
    assert talk.is_over


async def test_both_sides_of_a_handoff_get_the_shorter_request() -> None:
    choice = PolicyChoice(name=f"{DOUBLES}:DegradeTo", params={"max_output_tokens": 20})
    talk = HostDialogue(planner="always_disaggregated", degradation=choice)
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    opened, prefill = await talk.opens("q")
    prefill.gives(KvHandle({"remote_block_ids": [1]}, 3))
    decode = await talk.call("q.1")

    assert await talk.answered(opened, decode, END) == (".", completed())
    assert [inner_hop.decode_request(each.arguments[0]).sampling.max_tokens for each in (prefill, decode)] == [20, 20]
