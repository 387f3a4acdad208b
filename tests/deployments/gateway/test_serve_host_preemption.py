"""The Serve host when a request gives its place up: its stream pauses, and goes on from another attempt."""

import pytest

from deployments.openai.token_stream import MAX_QUEUED_CHUNKS
from deployments.wire import inner_hop
from engines.contract import Chunk, KvHandle
from policies import Priority, Role
from tests.deployments.host_dialogue import Call, HostDialogue
from tests.deployments.metrics_text import text_of
from tests.routing.dialogue import cancelled, completed

END = Chunk(".", (9,), "stop")


@pytest.fixture
async def talk() -> HostDialogue:
    return HostDialogue(queueing="priority", preemption="newest_sheddable").replicas(Role.UNIFIED, "a", slots=1)


@pytest.fixture
async def talk_with_handoff() -> HostDialogue:
    talk = HostDialogue(planner="always_disaggregated", queueing="priority", preemption="newest_sheddable")
    return talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", slots=1)


async def gives(call: Call, *chunks: Chunk) -> None:
    call.answers(*chunks)


async def test_a_stream_pauses_and_goes_on_from_what_it_has_given_out(talk: HostDialogue) -> None:
    bulk, first = await talk.opens("bulk", priority=Priority.SHEDDABLE)
    first.gives(Chunk("ab", (11, 12)), Chunk("c", (13, 14)))
    await talk.until(lambda: bulk.emitted == [11, 12, 13, 14])

    other, call = await talk.opens("q")
    assert first.num_cancels == 1
    await gives(call, Chunk("other", (1,)), END)
    assert await talk.answer(other) == ("other.", completed())

    second = await talk.call("bulk.1")
    request = inner_hop.decode_request(second.arguments[0])
    assert request.prompt_token_ids == [1, 2, 3, 11, 12, 13, 14]
    assert (request.answered_tokens, request.answered_chars) == (4, 3)
    assert request.sampling.max_tokens == 46
    assert second.work == (7, 53)
    await gives(second, Chunk("de", (15,)), END)
    assert await talk.answer(bulk) == ("abcde.", completed())
    assert bulk.output_tokens == 6
    assert talk.is_over
    assert "spillway_preemptions_total 1.0" in text_of(talk.metrics)


async def test_a_stream_that_is_stopped_twice_goes_on_from_all_it_has_given_out(talk: HostDialogue) -> None:
    bulk = await talk.arrives("bulk", priority=Priority.SHEDDABLE)
    for turn, token in enumerate((11, 12)):
        call = await talk.call(f"bulk.{turn}")
        call.gives(Chunk("x", (token,)))
        await talk.until(lambda token=token: token in bulk.emitted)  # type: ignore[misc]
        other = await talk.arrives(f"q{turn}")
        await gives(await talk.call(f"q{turn}.0"), END)
        await talk.answer(other)

    last = await talk.call("bulk.2")
    request = inner_hop.decode_request(last.arguments[0])

    assert request.prompt_token_ids == [1, 2, 3, 11, 12]
    assert (request.answered_tokens, request.answered_chars) == (2, 2)
    assert request.sampling.max_tokens == 48
    await gives(last, END)
    assert await talk.answer(bulk) == ("xx.", completed())
    assert talk.is_over


async def test_the_time_to_the_first_token_is_that_of_the_first_attempt(talk: HostDialogue) -> None:
    bulk = await talk.arrives("bulk", priority=Priority.SHEDDABLE)
    (await talk.call("bulk.0")).gives(Chunk("a", (11,)))
    await talk.until(lambda: bulk.emitted == [11])
    other = await talk.arrives("q")
    await gives(await talk.call("q.0"), END)
    await talk.answer(other)

    talk.clock.time_s = 8.0
    await gives(await talk.call("bulk.1"), Chunk("b", (12,)), END)
    await talk.answer(bulk)

    assert bulk.first_token_at_s == 0.0


async def test_what_had_no_first_token_is_asked_for_again_as_it_was(talk: HostDialogue) -> None:
    bulk, first = await talk.opens("bulk", priority=Priority.SHEDDABLE)
    other = await talk.arrives("q")
    await gives(await talk.call("q.0"), END)
    await talk.answer(other)

    second = await talk.call("bulk.1")
    assert second.arguments == first.arguments
    await gives(second, END)
    assert await talk.answer(bulk) == (".", completed())
    assert talk.is_over


async def test_a_decode_that_was_stopped_is_prefilled_again_with_its_answer(talk_with_handoff: HostDialogue) -> None:
    talk = talk_with_handoff
    handle = KvHandle({"blocks": 1}, 3)
    bulk = await talk.arrives("bulk", priority=Priority.SHEDDABLE)
    (await talk.call("bulk.0")).gives(handle)
    (await talk.call("bulk.1")).gives(Chunk("ab", (11, 12)))
    await talk.until(lambda: bulk.emitted == [11, 12])
    other = await talk.arrives("q")
    (await talk.call("q.0")).gives(handle)
    await gives(await talk.call("q.1"), END)
    await talk.answer(other)

    prefill = await talk.call("bulk.2")
    assert prefill.method == "prefill"
    assert inner_hop.decode_request(prefill.arguments[0]).prompt_token_ids == [1, 2, 3, 11, 12]
    prefill.gives(handle)
    await gives(await talk.call("bulk.3"), END)
    assert await talk.answer(bulk) == ("ab.", completed())
    assert talk.is_over


async def test_a_client_that_goes_while_its_stream_pauses_leaves_nothing(talk: HostDialogue) -> None:
    bulk = await talk.arrives("bulk", priority=Priority.SHEDDABLE)
    (await talk.call("bulk.0")).gives(Chunk("ab", (11, 12)))
    await talk.until(lambda: bulk.emitted == [11, 12])
    other, call = await talk.opens("q")

    talk.host.abandon("bulk")
    await gives(call, END)
    await talk.answer(other)

    assert await talk.answer(bulk) == ("ab", cancelled())
    assert "bulk.1" not in talk.calls
    assert talk.is_over


async def test_a_slow_client_that_holds_its_stream_up_gives_way_too(talk: HostDialogue) -> None:
    bulk, first = await talk.opens("bulk", priority=Priority.SHEDDABLE)
    first.gives(*(Chunk("x", (number,)) for number in range(11, 200)))
    await talk.turn()
    num_given = len(bulk.emitted)
    assert 0 < num_given < 189, "its pipe is full"

    other = await talk.arrives("q")
    await gives(await talk.call("q.0"), END)
    await talk.answer(other)

    second = await talk.call("bulk.1")
    assert inner_hop.decode_request(second.arguments[0]).answered_tokens == num_given
    await gives(second, END)
    assert await talk.answer(bulk) == ("x" * num_given + ".", completed())
    assert talk.is_over


async def test_an_answer_whose_end_waits_for_a_slow_client_is_over_and_not_begun_again(talk: HostDialogue) -> None:
    bulk, first = await talk.opens("bulk", priority=Priority.SHEDDABLE)
    first.gives(*(Chunk("x", (number,)) for number in range(11, 11 + MAX_QUEUED_CHUNKS - 1)), END)
    await talk.until(lambda: len(bulk.emitted) == MAX_QUEUED_CHUNKS)

    other = await talk.arrives("q")
    await gives(await talk.call("q.0"), END)
    await talk.answer(other)

    assert await talk.answer(bulk) == ("x" * (MAX_QUEUED_CHUNKS - 1) + ".", completed())
    assert "bulk.1" not in talk.calls
    assert talk.is_over
