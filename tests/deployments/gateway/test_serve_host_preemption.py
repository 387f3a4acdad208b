"""The Serve host when a request gives its place up: its stream pauses, and goes on from another attempt."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from deployments.gateway.open_request import ServeOpenRequest
from deployments.wire import inner_hop
from deployments.wire.attempt_call import WINDOW_ITEMS
from engines.contract import Chunk, KvHandle
from policies import Priority, Role
from tests.deployments.host_dialogue import Call, HostDialogue
from tests.deployments.metrics_text import text_of
from tests.routing.dialogue import cancelled, completed

END = Chunk(".", (9,), "stop")


@pytest_asyncio.fixture(params=["connection", "ray_handle"])
async def talk(request: pytest.FixtureRequest) -> AsyncIterator[HostDialogue]:
    """One slot, either way; when the test is over, so is everything that it began."""
    talk = HostDialogue(queueing="priority", preemption="newest_sheddable").replicas(Role.UNIFIED, "a", slots=1)
    if request.param == "connection":
        await talk.over_connections()
    yield talk
    await talk.until(lambda: talk.is_over)
    await talk.close()


async def emits(talk: HostDialogue, *chunks: Chunk) -> tuple[ServeOpenRequest, Call]:
    """A sheddable request ``bulk``, which has so much of its answer."""
    bulk, first = await talk.opens("bulk", priority=Priority.SHEDDABLE)
    first.gives(*chunks)
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    await talk.until(lambda: list(bulk.emitted) == tokens)
    return bulk, first


async def test_a_stream_pauses_and_goes_on_from_what_it_has_given_out(talk: HostDialogue) -> None:
    bulk, first = await emits(talk, Chunk("ab", (11, 12)), Chunk("c", (13, 14)))

    other, call = await talk.opens("q")
    assert first.num_cancels == 1
    assert await talk.answered(other, call, Chunk("other", (1,)), END) == ("other.", completed())

    second = await talk.call("bulk.1")
    request = inner_hop.decode_request(second.arguments[0])
    assert request.prompt_token_ids == [1, 2, 3, 11, 12, 13, 14]
    assert (request.answered_tokens, request.answered_chars) == (4, 3)
    assert request.sampling.max_tokens == 46
    assert second.work == (7, 53)
    assert await talk.answered(bulk, second, Chunk("de", (15,)), END) == ("abcde.", completed())
    assert bulk.output_tokens == 6
    assert "spillway_preemptions_total 1.0" in text_of(talk.metrics)


async def test_a_stream_that_is_stopped_twice_goes_on_from_all_it_has_given_out(talk: HostDialogue) -> None:
    bulk = await talk.arrives("bulk", priority=Priority.SHEDDABLE)
    for turn, token in enumerate((11, 12)):
        call = await talk.call(f"bulk.{turn}")
        call.gives(Chunk("x", (token,)))
        await talk.until(lambda token=token: token in bulk.emitted)  # type: ignore[misc]
        await talk.serves(f"q{turn}", END)

    last = await talk.call("bulk.2")
    request = inner_hop.decode_request(last.arguments[0])

    assert request.prompt_token_ids == [1, 2, 3, 11, 12]
    assert (request.answered_tokens, request.answered_chars) == (2, 2)
    assert request.sampling.max_tokens == 48
    assert await talk.answered(bulk, last, END) == ("xx.", completed())


async def test_the_time_to_the_first_token_is_that_of_the_first_attempt(talk: HostDialogue) -> None:
    bulk, _ = await emits(talk, Chunk("a", (11,)))
    await talk.serves("q", END)
    talk.clock.time_s = 8.0
    await talk.answered(bulk, await talk.call("bulk.1"), Chunk("b", (12,)), END)
    assert bulk.first_token_at_s == 0.0


async def test_what_had_no_first_token_is_asked_for_again_as_it_was(talk: HostDialogue) -> None:
    bulk, first = await talk.opens("bulk", priority=Priority.SHEDDABLE)
    await talk.serves("q", END)
    second = await talk.call("bulk.1")
    assert second.arguments == first.arguments
    assert await talk.answered(bulk, second, END) == (".", completed())


async def test_a_decode_that_was_stopped_is_prefilled_again_with_its_answer() -> None:
    talk = HostDialogue(planner="always_disaggregated", queueing="priority", preemption="newest_sheddable")
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", slots=1)
    handle = KvHandle({"blocks": 1}, 3)
    bulk = await talk.arrives("bulk", priority=Priority.SHEDDABLE)
    (await talk.call("bulk.0")).gives(handle)
    (await talk.call("bulk.1")).gives(Chunk("ab", (11, 12)))
    await talk.until(lambda: list(bulk.emitted) == [11, 12])
    other, computing = await talk.opens("q")
    computing.gives(handle)
    await talk.answered(other, await talk.call("q.1"), END)

    prefill = await talk.call("bulk.2")
    assert prefill.method == "prefill"
    assert inner_hop.decode_request(prefill.arguments[0]).prompt_token_ids == [1, 2, 3, 11, 12]
    prefill.gives(handle)
    assert await talk.answered(bulk, await talk.call("bulk.3"), END) == ("ab.", completed())
    assert talk.is_over


async def test_a_client_that_goes_while_its_stream_pauses_leaves_nothing(talk: HostDialogue) -> None:
    bulk, _ = await emits(talk, Chunk("ab", (11, 12)))
    other, call = await talk.opens("q")

    talk.host.abandon("bulk")
    await talk.answered(other, call, END)

    assert await talk.answer(bulk) == ("ab", cancelled())
    assert "bulk.1" not in talk.calls


async def test_a_slow_client_that_holds_its_stream_up_gives_way_too(talk: HostDialogue) -> None:
    bulk, first = await talk.opens("bulk", priority=Priority.SHEDDABLE)
    first.gives(*(Chunk("x", (number,)) for number in range(11, 200)))
    await talk.turn()
    num_given = len(bulk.emitted)
    assert 0 < num_given < 189, "its pipe is full"

    await talk.serves("q", END)

    second = await talk.call("bulk.1")
    assert inner_hop.decode_request(second.arguments[0]).answered_tokens == num_given
    assert await talk.answered(bulk, second, END) == ("x" * num_given + ".", completed())


async def test_an_answer_whose_end_waits_for_a_slow_client_is_over_and_not_begun_again(talk: HostDialogue) -> None:
    bulk, first = await talk.opens("bulk", priority=Priority.SHEDDABLE)
    first.answers(*(Chunk("x", (number,)) for number in range(11, 11 + WINDOW_ITEMS - 1)), END)
    await talk.until(lambda: len(bulk.emitted) == WINDOW_ITEMS)
    await talk.serves("q", END)

    assert await talk.answer(bulk) == ("x" * (WINDOW_ITEMS - 1) + ".", completed())
    assert "bulk.1" not in talk.calls
