"""What a replica keeps of answers, alone and over a connection."""

import gc
import weakref
from collections.abc import Callable

import pytest

from deployments.data_plane import kept_answers
from deployments.data_plane.connections import Connections, NoConnections
from deployments.data_plane.kept_answers import ENTRY_TOKENS, KeptAnswer, KeptAnswers
from deployments.data_plane.replica_connection import ConnectionState, ReplicaConnection
from deployments.wire import inner_hop
from deployments.wire.attempt_call import AttemptOrder
from deployments.wire.inner_hop import Failure, WithCacheChange
from engines.contract import Chunk, EngineRequest, Sampling
from policies import Reason, Role
from tests.deployments.data_plane.ends import END, Ends, Heard
from tests.waiting import until_here


def order(name: str = "kept", *, answered: int = 0, attempt_id: str = "q") -> AttemptOrder:
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=[7, 8, *range(answered)],
        sampling=Sampling(max_tokens=9),
        answered_tokens=answered,
        answered_chars=2 * answered,
    )
    return AttemptOrder(attempt_id, Role.UNIFIED, inner_hop.encode(request), kept_as=name, kept_for_s=30.0)


class Later:
    """A clock that the test moves on."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, after_s: float, call: Callable[[], None]) -> None:
        self.calls.append((after_s, call))


def test_an_answer_is_kept_while_it_grows_and_for_so_long_after_its_end() -> None:
    later = Later()
    kept = KeptAnswers(later)
    growing = kept.begin(order())
    growing.add(WithCacheChange(Chunk("ab", (1, 2)), (), ()))
    assert kept.find("kept") == KeptAnswer((1, 2), 2)
    growing.add(END)
    assert kept.find("kept") == KeptAnswer((1, 2, 9), 3, END)
    growing.end()
    assert kept.find("kept") is not None
    [(after_s, forget)] = later.calls
    assert after_s == 30.0
    forget()
    assert (kept.find("kept"), len(kept)) == (None, 0)


def test_an_attempt_that_goes_on_with_an_answer_has_all_of_it() -> None:
    kept = KeptAnswers(Later())
    kept.begin(order()).add(Chunk("first", (5, 5)))
    kept.begin(order(answered=3)).add(Chunk("x", (6,)))
    assert kept.find("kept") == KeptAnswer((0, 1, 2, 6), 7)


def test_the_end_of_an_earlier_attempt_does_not_take_the_later_one_along() -> None:
    later = Later()
    kept = KeptAnswers(later)
    former = kept.begin(order())
    kept.begin(order(answered=1))
    former.end()
    later.calls[0][1]()
    assert kept.find("kept") == KeptAnswer((0,), 2)


def test_what_is_cut_off_is_no_end() -> None:
    kept = KeptAnswers(Later())
    growing = kept.begin(order())
    growing.add(Chunk("a", (1,)))
    growing.add(Chunk("", (), "abort"))
    growing.add(Failure(Reason.ENGINE_ERROR, "broken"))
    assert kept.find("kept") == KeptAnswer((1,), 1)


def test_nothing_is_kept_for_who_has_not_asked() -> None:
    kept = KeptAnswers(Later())
    kept.begin(order("")).add(END)
    assert len(kept) == 0


def test_of_too_many_tokens_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "MOST_TOKENS", 2 * (2 + ENTRY_TOKENS))
    later = Later()
    kept = KeptAnswers(later)
    for name in "abc":
        growing = kept.begin(order(name))
        growing.add(Chunk("xy", (1, 2)))
        growing.end()
    assert [name for name in "abc" if kept.find(name)] == ["b", "c"]
    assert len(later.calls) == 3
    held = weakref.ref(kept._ended[3])
    for name in "de":
        kept.begin(order(name)).end()
    del growing
    gc.collect()
    assert held() is None, "its timer does not hold it"


async def test_another_gateway_gets_what_there_is_and_the_first_one_is_told_that_it_is_over() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        ends.connection.call(order(), heard)
        ends.engine.gives("q", Chunk("ab", (1, 2)))
        await until_here(lambda: heard.text == "ab")
        other = ReplicaConnection(ends.server.endpoint, "gateway-b")

        assert await other.recall("kept") == KeptAnswer((1, 2), 2)
        await until_here(lambda: ends.engine.stopped == ["q"])
        await until_here(lambda: len(heard.items) == 2)
        assert isinstance(verdict := heard.items[1], Failure)
        assert verdict.reason is Reason.CLIENT_GONE
        assert await other.recall("another") is None
        other.close()


async def test_an_answer_outlives_its_gateway_and_its_client() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        ends.connection.call(order("lost"), heard)
        ends.engine.gives("q", Chunk("ab", (1, 2)))
        ends.connection.call(order("left", attempt_id="left"), left := Heard()).cancel()
        await until_here(lambda: heard.text == "ab" and ends.engine.stopped == [] and not left.items)
        ends.connection.close()
        await until_here(lambda: not ends.server.streams)

        other = ReplicaConnection(ends.server.endpoint, "gateway-b")
        assert await other.recall("lost") == KeptAnswer((1, 2), 2)
        other.close()


async def test_all_replicas_are_asked_and_what_is_not_the_answer_is_none() -> None:
    async with Ends.connected() as one, Ends.connected() as two:
        for ends, token in ((one, 1), (two, 2)):
            heard = Heard()
            ends.connection.call(order(), heard)
            ends.engine.gives("q", Chunk("a", (token,)), END)
            await until_here(lambda heard=heard: heard.text == "a.")  # type: ignore[misc]
        connections = Connections("gateway-b")
        endpoints = {str(number): each.server.endpoint.to_metadata() for number, each in enumerate((one, two))}
        connections.follow("pool", endpoints)

        assert await connections.recall("kept", lambda answer: answer.token_ids[0] == 2) == KeptAnswer((2, 9), 2, END)
        assert await connections.recall("kept", lambda answer: answer.token_ids[0] == 3) is None
        connections.close()
    assert await NoConnections().recall("kept", lambda _: True) is None


async def test_a_replica_that_is_lost_or_silent_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Ends.connected() as ends:
        monkeypatch.setattr("deployments.data_plane.connections.RECALL_PATIENCE_S", 0.05)
        monkeypatch.setattr(ends.server, "recall", lambda name: None)
        connections = Connections("gateway-b")
        connections.follow("pool", {"a": ends.server.endpoint.to_metadata()})
        monkeypatch.setattr(ReplicaConnection, "hear", lambda self, messages: None)
        assert await connections.recall("kept", lambda _: True) is None, "it says nothing"
        [connection] = connections._connections.values()
        connection.close()
        assert connection.state is ConnectionState.CLOSED
        assert await connections.recall("kept", lambda _: True) is None
        connections.close()
