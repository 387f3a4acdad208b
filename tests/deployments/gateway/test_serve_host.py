"""The Serve host on a real event loop, over connections and over fake handles: every attempt ends once, every slot
comes back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError

from deployments.data_plane import replica_connection
from deployments.data_plane.endpoint import Endpoint, new_key
from deployments.wire import inner_hop
from deployments.wire.attempt_call import WINDOW_ITEMS
from deployments.wire.fleet_registry import SeenReplica
from deployments.wire.inner_hop import Failure
from engines.contract import AWAITS_KV, Chunk, KvHandle
from engines.peer_port import free_port
from policies import PolicyChoice, Reason, RequestView, Role
from policies.errors import PolicyMisbehaved
from routing import DispatcherParams
from routing.lanes.lanes import Lane, TokenRange
from routing.sizing.length_prediction import OutputEstimate
from tests.deployments.host_dialogue import Call, HostDialogue, an_engine_request
from tests.deployments.metrics_text import text_of
from tests.policy_doubles import Undemanding
from tests.routing.dialogue import cancelled, completed, failed, hedge_after, refused
from tests.tables import for_each
from tests.waiting import until_here

HELLO = Chunk("Hello", (1, 2))
END = Chunk(".", (3,), "stop")
HANDLE = KvHandle({"remote_block_ids": [1]}, 3)
Breakage = Callable[[Call], None]


def loses_its_engine(call: Call) -> None:
    """The replica says how its attempt failed, and no more."""
    call.answers(Failure(Reason.REPLICA_LOST, "the engine core died"))


async def begun(talk: HostDialogue, inner_hop: str) -> AsyncIterator[HostDialogue]:
    """A dialogue; when the test is over, so is everything that it began."""
    if inner_hop == "connection":
        await talk.over_connections()
    yield talk
    await talk.until(lambda: talk.is_over)
    await talk.close()


@pytest_asyncio.fixture(params=["connection", "ray_handle"])
async def talk(request: pytest.FixtureRequest) -> AsyncIterator[HostDialogue]:
    """Two unified replicas, either way."""
    async for dialogue in begun(HostDialogue().replicas(Role.UNIFIED, "a", "b"), request.param):
        yield dialogue


@pytest_asyncio.fixture
async def by_handle() -> AsyncIterator[HostDialogue]:
    """The same over Ray's handles, where that makes a difference."""
    async for dialogue in begun(HostDialogue().replicas(Role.UNIFIED, "a", "b"), "ray_handle"):
        yield dialogue


@pytest_asyncio.fixture(params=["connection", "ray_handle"])
async def handoff(request: pytest.FixtureRequest) -> AsyncIterator[HostDialogue]:
    """Two prefill and two decode replicas, either way."""
    dialogue = HostDialogue(planner="always_disaggregated")
    dialogue.replicas(Role.PREFILL, "p1", "p2").replicas(Role.DECODE, "d1", "d2")
    async for begins in begun(dialogue, request.param):
        yield begins


async def test_a_request_runs_on_the_replica_that_was_picked(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")

    assert await talk.answered(opened, call, HELLO, END) == ("Hello.", completed())
    assert (call.method, call.target) == ("generate", "a")
    assert inner_hop.decode_request(call.arguments[0]) == an_engine_request("q")
    assert call.num_cancels == 0
    assert talk.is_over


@for_each(
    ("engine_order", "at_prefill", "at_decode"),
    [("by_arrival", 0, 0), ("shortest_prompt", 3, 0)],
)
async def test_each_attempt_brings_its_place_inside_the_engine(
    engine_order: str, at_prefill: int, at_decode: int
) -> None:
    talk = HostDialogue(planner="always_disaggregated", engine_order=engine_order)
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    opened, prefill = await talk.opens("q", priority="critical")
    prefill.gives(HANDLE)
    decode = await talk.call("q.1")

    assert (prefill.priority, decode.priority) == (at_prefill, at_decode)
    await talk.answered(opened, decode, HELLO, END)
    await talk.until(lambda: talk.is_over)


@for_each("way", ["connection", "ray_handle"])
async def test_a_replica_that_has_changed_its_role_is_called_where_it_has_started(way: str) -> None:
    dialogue = HostDialogue(planner="always_disaggregated", change_roles=True)
    dialogue.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    async for talk in begun(dialogue, way):
        talk.replicas(Role.PREFILL, "p", prefill_tokens=0, kv_tokens=0, kv_cache_usage=0, serves="decode-pool")
        talk.replicas(Role.DECODE, "d", prefill_tokens=0, kv_tokens=0, kv_cache_usage=0, serves="prefill-pool")
        opened, prefill = await talk.opens("q")
        prefill.gives(HANDLE)
        decode = await talk.call("q.1")

        assert [(each.method, each.target) for each in (prefill, decode)] == [("prefill", "d"), ("decode", "p")]
        assert {pool: [each.replica_id for each in its] for pool, its in talk.host.seen_replicas().items()} == {
            "prefill-pool": ["d"],
            "decode-pool": ["p"],
        }
        assert await talk.answered(opened, decode, HELLO, END) == ("Hello.", completed())
        talk.replicas(Role.PREFILL, "p", prefill_tokens=0, kv_tokens=0, kv_cache_usage=0, is_warm=1)
        await talk.turn()
        assert talk.host.live_replicas() == {"unified-pool": 0, "prefill-pool": 1, "decode-pool": 0}


async def test_what_a_replica_has_that_stands_still_goes_on_elsewhere_and_it_gets_nothing_more(
    talk: HostDialogue,
) -> None:
    opened, call = await talk.opens("q")
    call.gives(HELLO)
    await talk.until(lambda: bool(opened.emitted))

    talk.host.take_in_stall("a", True)

    again = await talk.call("q.1")
    assert (call.target, again.target) == ("a", "b")
    assert inner_hop.decode_request(again.arguments[0]).answered_token_ids == [1, 2]
    call.gives(END)
    assert await talk.answered(opened, again, END) == ("Hello.", completed())
    for number in range(3):
        other, other_call = await talk.opens(f"r{number}")
        assert other_call.target == "b"
        await talk.answered(other, other_call, END)
    talk.host.take_in_stall("a", False)
    after, after_call = await talk.opens("s")
    assert after_call.target == "a"
    await talk.answered(after, after_call, END)


async def test_the_first_token_goes_out_before_the_rest_is_there(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")
    call.gives(HELLO)

    assert await asyncio.wait_for(opened.stream.read(), 5) == HELLO
    call.gives(END)
    assert await talk.answer(opened) == (".", completed())
    call.ends()


async def test_a_decode_gets_the_handle_that_its_prefill_answered(handoff: HostDialogue) -> None:
    opened, prefill = await handoff.opens("q")
    prefill.gives(HANDLE)
    decode = await handoff.call("q.1")

    assert await handoff.answered(opened, decode, HELLO, END) == ("Hello.", completed())
    assert (prefill.method, prefill.target, decode.method, decode.target) == ("prefill", "p1", "decode", "d1")
    assert decode.arguments[0] == prefill.arguments[0]
    assert (prefill.work, decode.work) == ((3, 0), (0, 53)), "the prompt; the prompt and the longest answer"
    assert inner_hop.decode_handle(decode.arguments[1]) == HANDLE
    assert handoff.is_over


async def test_what_a_replica_says_of_its_cache_comes_with_what_it_gives(talk: HostDialogue) -> None:
    blocks = (1, 2, 3)
    opened, call = await talk.opens("q")
    said = inner_hop.WithCacheChange(HELLO, blocks, ()), inner_hop.WithCacheChange(END, (), (3,))
    assert await talk.answered(opened, call, *said) == ("Hello.", completed())

    assert talk.cached_blocks(blocks) == {"a": 2}


async def test_a_decode_gets_the_handle_alone_of_what_its_prefill_answered(handoff: HostDialogue) -> None:
    opened, prefill = await handoff.opens("q")
    prefill.gives(inner_hop.WithCacheChange(HANDLE, (1, 2, 3), ()))
    decode = await handoff.call("q.1")

    assert await handoff.answered(opened, decode, HELLO, END) == ("Hello.", completed())
    assert inner_hop.decode_handle(decode.arguments[1]) == HANDLE
    assert handoff.cached_blocks((1, 2, 3)) == {"p1": 3}


async def test_answers_of_a_prefill_come_whole_and_everything_else_as_a_stream(by_handle: HostDialogue) -> None:
    options = {pool: handle.options_given for pool, handle in by_handle.handles.items()}

    assert {pool: {each["method_name"]: each["stream"] for each in given} for pool, given in options.items()} == {
        "unified-pool": {"generate": True},
        "prefill-pool": {"prefill": False, "generate": True},
        "decode-pool": {"decode": True, "generate": True},
    }


async def test_a_decode_replica_runs_a_whole_request_when_it_is_asked_to() -> None:
    talk = HostDialogue(whole_request_pools=("decode-pool",)).replicas(Role.DECODE, "d")
    opened, call = await talk.opens("q")
    assert await talk.answered(opened, call, HELLO, END) == ("Hello.", completed())
    assert (call.method, call.target, call.work, len(call.arguments)) == ("generate", "d", (3, 53), 1)


async def test_every_attempt_has_an_internal_request_id_of_its_own(by_handle: HostDialogue) -> None:
    opened = {name: await by_handle.opens(name) for name in ("q", "r", "s")}
    assert len({call.internal_request_id for _, call in opened.values()} - {""}) == 3
    for each, call in opened.values():
        assert await by_handle.answered(each, call, END) == (".", completed())


async def test_many_requests_at_once_keep_their_texts_apart(talk: HostDialogue) -> None:
    names = [f"q{n}" for n in range(12)]
    opened = {name: await talk.arrives(name) for name in names}
    for name in reversed(names):
        (await talk.call(f"{name}.0")).answers(Chunk(name, (1,)), END)
    assert [await talk.answer(opened[name]) for name in names] == [(f"{name}.", completed()) for name in names]


async def test_what_follows_the_verdict_is_ignored(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")
    call.gives(END, HELLO, Failure(Reason.ENGINE_ERROR, "too late"))
    call.breaks(RayActorError())
    assert await talk.answer(opened) == (".", completed())
    assert opened.failure is None


async def test_a_client_that_goes_in_mid_stream_cancels_the_call_once(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")
    call.gives(HELLO)
    await opened.stream.read()
    assert talk.load["a"][0] == 1

    talk.host.abandon("q")
    talk.host.abandon("q")

    assert await talk.answer(opened) == ("", cancelled())
    await talk.until(lambda: call.num_cancels == 1)
    assert talk.load["a"] == (0, 0)
    assert talk.is_over


async def test_a_client_that_goes_during_the_prefill_cancels_the_call_once(handoff: HostDialogue) -> None:
    opened, call = await handoff.opens("q")
    handoff.host.abandon("q")
    assert await handoff.answer(opened) == ("", cancelled())
    await handoff.until(lambda: call.num_cancels == 1)
    assert handoff.is_over


async def test_a_client_that_goes_before_its_attempt_has_begun_leaves_nothing(talk: HostDialogue) -> None:
    await talk.turn()
    opened = talk.submit("q")
    talk.host.abandon("q")

    assert await talk.answer(opened) == ("", cancelled())
    assert talk.calls == {}
    assert talk.is_over


async def test_a_client_that_goes_after_the_answer_changes_nothing(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")
    await talk.answered(opened, call, END)
    talk.host.abandon("q")
    assert opened.stream.outcome == completed()
    assert call.num_cancels == 0


async def test_a_slow_client_holds_the_replicas_stream_up_and_lets_go_when_it_leaves(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")
    call.gives(*[HELLO] * (WINDOW_ITEMS + 10))
    await talk.until(lambda: call.num_unread == 10)
    await talk.turn()
    assert call.num_unread == 10

    for _ in range(WINDOW_ITEMS // 2):
        await opened.stream.read()
    await talk.until(lambda: call.num_unread == 0)
    talk.host.abandon("q")

    await talk.until(lambda: talk.is_over)
    await talk.until(lambda: call.num_cancels == 1)


LOSSES: dict[str, Breakage] = {
    "reported": loses_its_engine,
    "actor_died": lambda call: call.breaks(ActorDiedError()),
    "actor_error": lambda call: call.breaks(RayActorError()),
    "actor_unavailable": lambda call: call.breaks(ActorUnavailableError("gone", b"\0" * 16)),
    "no_verdict": lambda call: call.ends(),
}
loses = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@loses
async def test_a_replica_lost_before_the_first_token_is_replaced_by_another(talk: HostDialogue, loss: Breakage) -> None:
    opened = await talk.arrives("q")
    loss(await talk.call("q.0"))

    second = await talk.call("q.1")
    assert await talk.answered(opened, second, HELLO, END) == ("Hello.", completed())
    assert (talk.calls["q.0"].target, second.target) == ("a", "b")
    assert list(talk.load) == ["b"]


@loses
async def test_an_answer_whose_replica_is_lost_goes_on_on_another_from_what_was_given_out(
    talk: HostDialogue, loss: Breakage
) -> None:
    opened, call = await talk.opens("q")
    call.gives(Chunk("ab", (11, 12)), Chunk("c", (13, 14)))
    loss(call)

    second = await talk.call("q.1")
    request = inner_hop.decode_request(second.arguments[0])
    assert second.target == "b"
    assert request.prompt_token_ids == [1, 2, 3, 11, 12, 13, 14]
    assert (request.answered_tokens, request.answered_chars) == (4, 3)
    assert request.sampling.max_tokens == 46
    assert await talk.answered(opened, second, HELLO, END) == ("abcHello.", completed())
    assert opened.output_tokens == 4 + len(HELLO.token_ids) + len(END.token_ids)
    assert talk.is_over
    assert "spillway_resumptions_total 1.0" in text_of(talk.metrics)
    assert "spillway_retries_total{" not in text_of(talk.metrics), "that is for those without a token"


@loses
async def test_an_answer_that_no_other_replica_can_go_on_with_has_failed(loss: Breakage) -> None:
    talk = HostDialogue(params=DispatcherParams(waiting_room_s=0)).replicas(Role.UNIFIED, "a")
    opened, call = await talk.opens("q")
    call.gives(HELLO)
    loss(call)

    assert await talk.answer(opened) == ("Hello", failed(Reason.REPLICA_LOST))
    assert list(talk.calls) == ["q.0"]


async def test_a_decode_that_is_lost_in_mid_answer_is_prefilled_again_with_its_answer(handoff: HostDialogue) -> None:
    opened = await handoff.arrives("q")
    (await handoff.call("q.0")).gives(HANDLE)
    lost = await handoff.call("q.1")
    lost.gives(HELLO)
    lost.breaks(ActorDiedError())

    again = await handoff.call("q.2")
    assert again.method == "prefill"
    assert inner_hop.decode_request(again.arguments[0]).answered_tokens == len(HELLO.token_ids)
    other = KvHandle({"remote_block_ids": [2]}, 4)
    again.gives(other)
    decode = await handoff.call("q.3")
    assert (decode.target, inner_hop.decode_handle(decode.arguments[1])) == ("d2", other)
    assert await handoff.answered(opened, decode, END) == ("Hello.", completed())


@pytest.mark.parametrize("loss", [LOSSES["reported"], LOSSES["actor_died"]], ids=["reported", "actor_died"])
async def test_a_lost_prefill_runs_on_another_replica(handoff: HostDialogue, loss: Breakage) -> None:
    opened, lost = await handoff.opens("q")
    loss(lost)
    (await handoff.call("q.1")).gives(HANDLE)
    assert await handoff.answered(opened, await handoff.call("q.2"), END) == (".", completed())
    assert handoff.calls["q.1"].target == "p2"


async def test_a_lost_decode_begins_anew_and_goes_elsewhere(handoff: HostDialogue) -> None:
    opened = await handoff.arrives("q")
    (await handoff.call("q.0")).gives(HANDLE)
    lost = await handoff.call("q.1")
    handoff.host.on_accepted("q.1", "d1")
    await handoff.turn()
    lost.breaks(ActorDiedError())
    other = KvHandle({"remote_block_ids": [2]}, 3)
    (await handoff.call("q.2")).gives(other)
    again = await handoff.call("q.3")
    assert await handoff.answered(opened, again, END) == (".", completed())
    assert (again.method, again.target) == ("decode", "d2")
    assert inner_hop.decode_handle(again.arguments[1]) == other


async def test_a_decode_that_no_engine_had_pulls_the_same_blocks_elsewhere(handoff: HostDialogue) -> None:
    opened = await handoff.arrives("q")
    (await handoff.call("q.0")).gives(HANDLE)
    (await handoff.call("q.1")).answers(Failure(Reason.REPLICA_LOST, "takes none", was_taken=False))
    again = await handoff.call("q.2")
    assert await handoff.answered(opened, again, END) == (".", completed())
    assert (again.method, again.target) == ("decode", "d2")
    assert again.arguments == handoff.calls["q.1"].arguments


async def test_blocks_that_are_lost_on_their_way_are_pulled_elsewhere_and_then_made_anew(handoff: HostDialogue) -> None:
    opened = await handoff.arrives("q")
    (await handoff.call("q.0")).gives(HANDLE)
    for name in ("q.1", "q.2"):
        (await handoff.call(name)).answers(Failure(Reason.KV_TRANSFER_FAILED, "no such blocks"))
    assert [handoff.calls[name].target for name in ("q.1", "q.2")] == ["d1", "d2"]
    other = KvHandle({"remote_block_ids": [2]}, 3)
    (await handoff.call("q.3")).gives(other)
    decode = await handoff.call("q.4")
    assert await handoff.answered(opened, decode, END) == (".", completed())
    assert inner_hop.decode_handle(decode.arguments[1]) == other


@pytest.mark.parametrize("way", ["connection", "ray_handle"])
async def test_blocks_that_wait_for_a_decode_when_their_client_goes_are_given_up(way: str) -> None:
    """Over Ray's handles nobody can be told, and their lease ends."""
    talk = HostDialogue(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", slots=1)
    if way == "connection":
        await talk.over_connections()
    first = await talk.arrives("first")
    (await talk.call("first.0")).gives(HANDLE)
    decode = await talk.call("first.1")
    waiting = await talk.arrives("q")
    held = KvHandle({"remote_block_ids": [2]}, 3)
    (await talk.call("q.0")).gives(held)
    await talk.until(lambda: "q.0" in waiting.handles)

    talk.host.abandon("q")

    if way == "connection":
        await talk.until(lambda: bool(talk.served["d"].released))
        assert [inner_hop.decode_handle(each) for each in talk.served["d"].released] == [held]
    assert await talk.answered(first, decode, END) == (".", completed())
    await talk.until(lambda: talk.is_over)
    await talk.close()


async def test_a_first_token_that_came_with_the_prompt_goes_out_before_the_kv_has_come(handoff: HostDialogue) -> None:
    opened = await handoff.arrives("q")
    (await handoff.call("q.0")).gives(HANDLE)
    decode = await handoff.call("q.1")
    decode.gives(Chunk("He", (1,), times=AWAITS_KV))
    await handoff.turn()
    assert opened.first_token_at_s is not None

    assert await handoff.answered(opened, decode, Chunk("llo", (2,)), END) == ("Hello.", completed())
    assert opened.output_tokens == 3


async def test_after_such_a_first_token_blocks_that_are_lost_are_made_anew_with_it(handoff: HostDialogue) -> None:
    opened = await handoff.arrives("q")
    (await handoff.call("q.0")).gives(HANDLE)
    lost = await handoff.call("q.1")
    lost.gives(Chunk("He", (1,), times=AWAITS_KV))
    lost.answers(Failure(Reason.KV_TRANSFER_FAILED, "no such blocks"))

    again = await handoff.call("q.2")
    assert (again.method, again.target) == ("prefill", "p2")
    request = inner_hop.decode_request(again.arguments[0])
    assert (request.answered_tokens, request.answered_chars) == (1, 2)
    again.gives(KvHandle({"remote_block_ids": [2]}, 4))
    decode = await handoff.call("q.3")
    assert await handoff.answered(opened, decode, Chunk("llo", (2,), times=AWAITS_KV), END) == ("Hello.", completed())


async def test_the_last_loss_is_told_to_the_client_with_the_replicas_own_words() -> None:
    talk = HostDialogue(params=DispatcherParams(max_attempts=1)).replicas(Role.UNIFIED, "a")
    opened, call = await talk.opens("q")
    assert await talk.answered(opened, call, Failure(Reason.REPLICA_LOST, "the engine core died")) == (
        "",
        refused(Reason.REPLICA_LOST),
    )
    assert opened.failure == Failure(Reason.REPLICA_LOST, "the engine core died")
    assert talk.is_over


async def test_a_request_that_the_engine_refuses_is_not_tried_again(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")
    failure = Failure(Reason.INVALID_REQUEST, "top_k is odd", "top_k")
    assert await talk.answered(opened, call, failure) == ("", refused(Reason.INVALID_REQUEST))
    assert opened.failure == failure
    assert list(talk.calls) == ["q.0"]


ENGINE_ERRORS: dict[str, Breakage] = {
    "reported": lambda call: call.gives(Failure(Reason.ENGINE_ERROR, "a bug")),
    "aborted": lambda call: call.gives(Chunk("", (), "abort")),
    "not_an_item": lambda call: call.gives_bytes(b"\xc1"),
    "a_handle": lambda call: call.gives(HANDLE),
    "ray_error": lambda call: call.breaks(RayError()),
    "any_error": lambda call: call.breaks(ZeroDivisionError()),
}


@pytest.mark.parametrize("error", ENGINE_ERRORS.values(), ids=ENGINE_ERRORS)
@pytest.mark.parametrize("is_streaming", [False, True], ids=["before_the_first_token", "after_the_first_token"])
async def test_anything_else_that_goes_wrong_is_the_engines_error(
    talk: HostDialogue, error: Breakage, is_streaming: bool
) -> None:
    opened, call = await talk.opens("q")
    if is_streaming:
        call.gives(HELLO)
    error(call)
    call.ends()
    if not is_streaming:
        error(await talk.call("q.1"))
        talk.calls["q.1"].ends()
    text, outcome = await talk.answer(opened)

    assert text == ("Hello" if is_streaming else "")
    assert outcome == (failed(Reason.ENGINE_ERROR) if is_streaming else refused(Reason.ENGINE_ERROR, may_retry=False))
    assert call.num_cancels <= 1
    assert talk.load.keys() == {"a", "b"}, "nothing is held against a replica"


async def test_a_prefill_that_answers_with_tokens_is_the_engines_error(handoff: HostDialogue) -> None:
    opened, prefill = await handoff.opens("q")
    prefill.gives(HELLO)
    (await handoff.call("q.1")).gives(HELLO)
    assert await handoff.answer(opened) == ("", refused(Reason.ENGINE_ERROR, may_retry=False))


async def test_without_a_replica_a_request_is_refused_at_once() -> None:
    talk = HostDialogue()
    assert await talk.answer(await talk.arrives("q")) == ("", refused(Reason.NO_REPLICA_AVAILABLE))
    assert talk.is_over


async def test_an_attempt_that_a_dead_replica_never_accepted_goes_elsewhere(by_handle: HostDialogue) -> None:
    opened, first = await by_handle.opens("q")
    by_handle.host.on_replica_lost("a")
    second = await by_handle.call("q.1")
    assert await by_handle.answered(opened, second, END) == (".", completed())
    assert (first.num_cancels, second.target) == (1, "b")


@for_each("lost", ["a", "b"], ids=["its own, which has accepted it", "another"])
async def test_an_attempt_that_was_accepted_and_those_of_other_replicas_are_left_to_their_calls(lost: str) -> None:
    talk = HostDialogue().replicas(Role.UNIFIED, "a", "b")
    opened, call = await talk.opens("q")
    if lost == call.target:
        talk.host.on_accepted("q.0", "a")

    talk.host.on_replica_lost(lost)
    await talk.turn()

    assert await talk.answered(opened, call, END) == (".", completed())
    assert call.num_cancels == 0
    assert talk.is_over


async def test_a_replica_that_no_connection_leads_to_is_called_over_rays_handle(
    by_handle: HostDialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_connection, "FIRST_BACKOFF_S", 0.0)
    nobody = Endpoint("127.0.0.1", free_port("127.0.0.1"), new_key())
    seen = SeenReplica(
        replica_id="c", node_id="node", max_ongoing_requests=8, metadata={"claims_at": "", **nobody.to_metadata()}
    )
    by_handle.host.on_replicas("unified-pool", (seen,))
    await by_handle.turn()
    connection = by_handle.host._connections._connections["c"]  # type: ignore[attr-defined]
    await until_here(lambda: not connection.is_usable)

    opened, call = await by_handle.opens("q")
    assert await by_handle.answered(opened, call, END) == (".", completed())
    assert call.target == "c"


async def test_a_slot_moves_to_the_replica_that_took_the_attempt(by_handle: HostDialogue) -> None:
    opened, call = await by_handle.opens("q")

    by_handle.host.on_accepted("q.0", "b")
    await by_handle.turn()

    assert by_handle.load == {"a": (0, 0), "b": (1, 56)}
    call.answers(END)
    await by_handle.answer(opened)
    assert by_handle.load == {"a": (0, 0), "b": (0, 0)}


async def test_an_acceptance_that_comes_late_is_ignored(by_handle: HostDialogue) -> None:
    await by_handle.serves("q", END)
    by_handle.host.on_accepted("q.0", "b")
    await by_handle.turn()
    assert by_handle.load == {"a": (0, 0), "b": (0, 0)}


class PicksNobody(Undemanding):
    """A balancer with a bug, and with no breaker around it."""

    def pick(self, *_: object) -> None:
        return None


async def test_of_a_request_that_was_too_much_for_the_dispatcher_nothing_stays() -> None:
    name = "tests.deployments.gateway.test_serve_host:PicksNobody"
    talk = HostDialogue(balancing=name).replicas(Role.UNIFIED, "a", "b")
    for request_id in ("q1", "q2"):
        with pytest.raises(PolicyMisbehaved):
            await talk.arrives(request_id)
    assert talk.is_over
    await talk.close()


async def test_replicas_and_their_reports_reach_the_dispatcher(talk: HostDialogue) -> None:
    talk.replicas(Role.UNIFIED, "b", "c", prefill_tokens=30, kv_tokens=40, kv_cache_usage=0.5)
    await talk.turn()
    assert talk.load == {"b": (0, 70), "c": (0, 70)}
    assert talk.host.live_replicas() == {"unified-pool": 2, "prefill-pool": 0, "decode-pool": 0}
    assert [each.replica_id for each in talk.host.seen_replicas()["unified-pool"]] == ["b", "c"]


async def test_a_replica_that_fails_is_out_and_counted() -> None:
    choice = PolicyChoice(name="outlier", params={"signs": ["failures"], "max_failures": 1, "base_s": 0.02})
    talk = HostDialogue(ejection=choice).replicas(Role.UNIFIED, "a", "b")
    _, broken = await talk.opens("broken")
    broken.answers(Failure(Reason.ENGINE_ERROR, "it went wrong"))
    (await talk.call("broken.1")).answers(END)
    await talk.until(lambda: talk.is_over)
    page = text_of(talk.metrics)
    assert 'spillway_ejections_total{pool="unified-pool",reason="failures"} 1.0' in page
    assert talk.host.live_replicas()["unified-pool"] == 1

    for name in ("q1", "q2"):
        assert await talk.serves(name, END) == (".", completed())
        assert talk.calls[f"{name}.0"].target == "b"

    talk.clock.time_s += 6.0
    await talk.until(lambda: talk.host.live_replicas()["unified-pool"] == 2)
    assert talk.is_over


async def test_a_deadline_before_the_first_token_refuses_the_request(talk: HostDialogue) -> None:
    opened = await talk.arrives("q", budget_s=0.0)
    assert await talk.answer(opened) == ("", refused(Reason.DEADLINE_EXCEEDED))
    assert all(call.num_cancels == 1 for call in talk.calls.values())
    assert talk.is_over


async def test_a_deadline_in_mid_stream_breaks_the_answer_off(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")
    call.gives(HELLO)
    await opened.stream.read()
    talk.host._fire("q:deadline")

    assert await talk.answer(opened) == ("", failed(Reason.DEADLINE_EXCEEDED))
    await talk.until(lambda: call.num_cancels == 1)
    assert talk.is_over


async def test_a_deadline_that_is_met_is_forgotten(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")
    timer = talk.host._timers["q:deadline"]
    await talk.answered(opened, call, END)
    assert timer.cancelled()
    assert talk.host._timers == {}


@for_each(("winner", "loser"), [("q.0", "q.1"), ("q.1", "q.0")])
async def test_of_two_attempts_the_first_to_give_a_token_answers(winner: str, loser: str) -> None:
    talk = HostDialogue(hedging=hedge_after(0.0)).replicas(Role.UNIFIED, "a", "b")
    opened = await talk.arrives("q")
    calls = {name: await talk.call(name) for name in ("q.0", "q.1")}
    for name, call in calls.items():
        talk.host.on_accepted(name, call.target)

    calls[winner].gives(HELLO)
    calls[loser].gives(Chunk("Goodbye", (9,)))
    await opened.stream.read()
    calls[winner].answers(END)

    assert await talk.answer(opened) == (".", completed())
    assert (calls[winner].num_cancels, calls[loser].num_cancels) == (0, 1)
    assert {call.target for call in calls.values()} == {"a", "b"}
    assert (opened.num_attempts, opened.num_hedges) == (2, 1)
    assert talk.is_over
    page = text_of(talk.metrics)
    assert f'spillway_hedge_races_total{{hedge_won="{str(winner == "q.1").lower()}"}} 1.0' in page
    assert "spillway_superseded_prompt_tokens_total 3.0" in page
    assert "spillway_cancel_seconds_count 1.0" in page
    done_s, needed_s = (value(page, f"spillway_work_{what}_seconds_total") for what in ("done", "needed"))
    assert done_s > 1.5 * needed_s > 0, "the prompt was computed twice"


def value(page: str, name: str) -> float:
    """Of the one sample of that name."""
    [line] = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
    return float(line.rpartition(" ")[2])


async def test_outcomes_first_tokens_and_placements_are_counted(talk: HostDialogue) -> None:
    opened, call = await talk.opens("q")
    talk.clock.time_s = 2.0
    call.gives(HELLO)
    await opened.stream.read()
    talk.clock.time_s = 5.0
    call.answers(END)
    await talk.answer(opened)

    page = text_of(talk.metrics)
    samples = {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    of_standard = ("standard", "")
    assert samples[("spillway_requests_total", *of_standard, "completed", "")] == 1
    assert samples[("spillway_attempts_total", "false", "a")] == 1
    assert samples[("spillway_time_to_first_token_seconds_sum", *of_standard)] == 2.0
    assert samples[("spillway_e2e_request_latency_seconds_sum", *of_standard)] == 5.0
    assert samples[("spillway_request_longest_gap_seconds_sum", *of_standard)] == 3.0
    assert samples[("spillway_request_queue_time_seconds_sum", *of_standard)] == 0.0
    assert samples[("spillway_request_generation_tokens_sum", *of_standard)] == 3.0


class ExpectsTwo:
    """Every answer is expected to have two tokens."""

    wants_ngrams = None

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(2, 2)

    def observe(self, request: RequestView, output_tokens: int) -> None: ...


async def test_an_answer_that_outgrows_its_lane_goes_on_and_its_demotion_is_counted() -> None:
    pools = tuple(f"{role}-pool" for role in Role)
    lanes = (
        Lane(name="quick", output_tokens=TokenRange(0, 4), pools=pools, ttft_slo_s=1.0, tpot_slo_s=0.5),
        Lane(name="slow", output_tokens=TokenRange(4), pools=pools),
    )
    talk = HostDialogue(lanes=lanes, length_prediction=f"{__name__}:ExpectsTwo").replicas(Role.UNIFIED, "a")
    opened, call = await talk.opens("q")

    talk.clock.time_s = 0.5
    call.gives(Chunk("abc", (1, 2, 3)))
    await talk.until(lambda: opened.committed == "q.0")
    assert talk.load == {"a": (1, 5)}, "the prompt of three, and the two that are expected"
    call.gives(Chunk("de", (4, 5)))
    await talk.until(lambda: talk.load != {"a": (1, 5)})
    assert talk.load == {"a": (1, 13)}, "twice the five that there are"
    assert talk.dispatcher.gauges(0.0)["lane_demotions_total:quick"] == 1
    talk.clock.time_s = 9.5
    call.answers(END)

    text, outcome = await talk.answer(opened)
    assert (text, outcome) == ("abcde.", completed())
    assert opened.headers["x-spillway-lane"] == "quick"
    assert talk.is_over
    page = text_of(talk.metrics)
    assert 'spillway_lane_slo_total{lane="quick",met="true",slo="ttft"} 1.0' in page
    assert 'spillway_lane_slo_total{lane="quick",met="false",slo="tpot"} 1.0' in page, "1.8 s a token"
    assert 'spillway_e2e_request_latency_seconds_count{class="standard",lane="quick"} 1.0' in page
