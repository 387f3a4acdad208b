"""The Serve host with two tied attempts: who is told what of the other, and what the one that is withdrawn ends in."""

import msgspec
import pytest

from deployments.gateway import serve_host
from deployments.gateway.open_request import ServeOpenRequest
from deployments.wire.fleet_registry import SeenReplica
from deployments.wire.inner_hop import Withdrawn
from engines.contract import Chunk, KvHandle
from policies import PolicyChoice, Role
from tests.deployments.host_dialogue import HostDialogue
from tests.deployments.metrics_text import text_of
from tests.routing.dialogue import cancelled, completed

TIE_AT_ONCE = PolicyChoice(name="tests.policy_doubles:TieAfter", params={"delay_s": 0.0})
END = Chunk("Hello.", (1, 2, 3), "stop")
HANDLE = KvHandle({"remote_block_ids": [1]}, 3)


@pytest.fixture
async def talk() -> HostDialogue:
    return HostDialogue(hedging=TIE_AT_ONCE).replicas(Role.UNIFIED, "a", "b")


async def arrives(talk: HostDialogue) -> ServeOpenRequest:
    """A request ``q``, whose first attempt is taken by the replica that it was sent to."""
    opened = await talk.arrives("q")
    talk.host.on_accepted("q.0", (await talk.call("q.0")).target)
    return opened


async def leaves(talk: HostDialogue, opened: ServeOpenRequest) -> None:
    """Its client goes, and nothing is left."""
    talk.host.abandon("q")
    assert await talk.answer(opened) == ("", cancelled())
    assert talk.is_over


async def test_the_second_attempt_is_told_where_the_first_ones_claim_is(talk: HostDialogue) -> None:
    opened = await arrives(talk)
    calls = [await talk.call(name) for name in ("q.0", "q.1")]
    assert [call.tied_to for call in calls] == [None, ("q.0", f"{calls[0].target}:5000")]
    await leaves(talk, opened)


async def test_the_claim_is_with_the_replica_that_took_the_first_attempt() -> None:
    talk = HostDialogue(hedging=PolicyChoice(name="tests.policy_doubles:TieAfter", params={"delay_s": 0.01}))
    talk.replicas(Role.UNIFIED, "a", "b", "c")
    opened = await talk.arrives("q")
    picked = (await talk.call("q.0")).target
    took = min({"a", "b", "c"} - {picked})
    talk.host.on_accepted("q.0", took)
    await talk.turn()
    talk.host._fire("q.0:hedge")

    assert (await talk.call("q.1")).tied_to == ("q.0", f"{took}:5000")
    await leaves(talk, opened)


async def test_the_second_attempt_waits_until_it_is_known_which_replica_took_the_first_one() -> None:
    talk = HostDialogue(hedging=TIE_AT_ONCE).replicas(Role.UNIFIED, "a", "b", "c")
    opened = await talk.arrives("q")
    picked = (await talk.call("q.0")).target
    await talk.until(lambda: "q.1" in talk.host._attempts)
    await talk.turn()
    assert list(talk.calls) == ["q.0"]

    took = min({"a", "b", "c"} - {picked})
    talk.host.on_accepted("q.0", took)

    assert (await talk.call("q.1")).tied_to == ("q.0", f"{took}:5000")
    await leaves(talk, opened)


async def test_a_second_attempt_whose_first_one_was_lost_on_its_way_is_alone(talk: HostDialogue) -> None:
    opened, first = await talk.opens("q")
    await talk.until(lambda: "q.1" in talk.host._attempts)

    talk.host.on_replica_lost(first.target)

    second = await talk.call("q.1")
    assert second.tied_to is None
    assert await talk.answered(opened, second, END) == ("Hello.", completed())
    assert talk.is_over


async def test_a_first_attempt_that_nobody_takes_for_long_is_asked_for_where_it_was_sent(
    talk: HostDialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_host, "TIE_PATIENCE_S", 0.0)
    opened = await talk.arrives("q")
    first, second = [await talk.call(name) for name in ("q.0", "q.1")]
    assert second.tied_to == ("q.0", f"{first.target}:5000")
    await leaves(talk, opened)


async def test_a_second_attempt_that_is_stopped_while_it_waits_is_never_made(talk: HostDialogue) -> None:
    opened = await talk.arrives("q")
    await talk.until(lambda: "q.1" in talk.host._attempts)
    talk.host.abandon("q")

    assert await talk.answer(opened) == ("", cancelled())
    await talk.turn()
    assert (list(talk.calls), talk.is_over) == (["q.0"], True)


async def test_beside_a_replica_whose_engine_has_no_claims_the_second_attempt_is_alone(talk: HostDialogue) -> None:
    silent = tuple(SeenReplica(replica_id=each, node_id="node", max_ongoing_requests=8) for each in "ab")
    talk.host.on_replicas("unified-pool", silent)
    opened = await arrives(talk)
    assert (await talk.call("q.1")).tied_to is None
    await leaves(talk, opened)


@pytest.mark.parametrize(("loser", "winner"), [("q.0", "q.1"), ("q.1", "q.0")])
async def test_the_one_that_gives_way_ends_once_and_the_other_one_answers(
    talk: HostDialogue, loser: str, winner: str
) -> None:
    opened = await arrives(talk)
    calls = {name: await talk.call(name) for name in ("q.0", "q.1")}

    calls[loser].answers(Withdrawn())
    await talk.until(lambda: len(talk.host._attempts) == 1)
    assert sorted(num for num, _ in talk.load.values()) == [0, 1], "its slot is free at once"
    assert await talk.answered(opened, calls[winner], END) == ("Hello.", completed())
    assert [call.num_cancels for call in calls.values()] == [0, 0]
    assert talk.is_over
    page = text_of(talk.metrics)
    assert f'spillway_hedge_races_total{{hedge_won="{str(winner == "q.1").lower()}"}} 1.0' in page
    assert "spillway_superseded_prompt_tokens_total 0.0" in page


async def test_a_prefill_that_gives_way_leaves_the_handoff_to_the_other_one() -> None:
    talk = HostDialogue(planner="always_disaggregated", hedging=TIE_AT_ONCE)
    talk.replicas(Role.PREFILL, "p1", "p2").replicas(Role.DECODE, "d")
    opened = await arrives(talk)
    loser, winner = [await talk.call(name) for name in ("q.0", "q.1")]
    loser.gives(Withdrawn())
    winner.gives(HANDLE)

    decode = await talk.call("q.2")
    assert msgspec.msgpack.decode(decode.arguments[1], type=KvHandle) == HANDLE
    assert decode.tied_to is None
    assert await talk.answered(opened, decode, END) == ("Hello.", completed())
    assert talk.is_over
