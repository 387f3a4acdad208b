"""Two emulated engines have a prompt and one computes it: over real connections, whoever is slow, dead or silent."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import pytest_asyncio

from engines import EngineRequest, FaultKind, KvHandle, TiedRequest
from engines.emulated import execution_claims as claim_exchange
from engines.emulated.engine import EmulatedEngine
from policies.errors import PromptWithdrawn
from policies.views import Role
from tests.engines.emulated_engines import ask, is_idle, read, running, tokens, turns
from tests.waiting import PATIENCE_S, until, until_here

pytestmark = pytest.mark.usefixtures("tokenizer", "no_task_is_left")

Pair = tuple[EmulatedEngine, EmulatedEngine]
PROMPT = [7] * 500


@pytest.fixture(autouse=True)
def _busy_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that gets no processor for a second has not met a silent engine; tests of silence say what is."""
    monkeypatch.setattr(claim_exchange, "PATIENCE_S", PATIENCE_S)


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    """The engine of first attempts, and that of second ones."""
    async with running(prefix_caching=False) as first_at, running(prefix_caching=False) as second_at:
        yield first_at, second_at
        await until(lambda: is_idle(first_at) and is_idle(second_at), "nothing is left in either")
        await until(lambda: num_connections(first_at, second_at) == 0, "no connection is left")


def num_connections(*engines: EmulatedEngine) -> int:
    return sum(each._host._keeper.num_connections for each in engines)


def first(name: str = "q.0") -> EngineRequest:
    return ask(name, prompt=PROMPT)


def second(tied_to: str = "q.0", at: str = "") -> EngineRequest:
    return msgspec.structs.replace(ask("q.1", prompt=PROMPT), tied_to=TiedRequest(tied_to, at))


def second_to(first_at: EmulatedEngine) -> EngineRequest:
    return second(at=first_at.info.claims_at)


async def whole(engine: EmulatedEngine, request: EngineRequest) -> list[int]:
    """The tokens of its answer."""
    return tokens(await read(engine.generate(request)))


def begins(engine: EmulatedEngine, request: EngineRequest) -> "asyncio.Task[list[int]]":
    return asyncio.create_task(whole(engine, request))


def stand_still(*engines: EmulatedEngine) -> None:
    for each in engines:
        each.inject_fault(FaultKind.STALL)


def go_on(engine: EmulatedEngine) -> None:
    engine.clear_fault(FaultKind.STALL)


async def has_met(first_at: EmulatedEngine) -> None:
    await until(lambda: first_at._host._keeper.num_waiting == 1, "the first one's engine has heard of the second one")


def computed(*engines: EmulatedEngine) -> int:
    return sum(each._host.model.steps.batch.num_prompt_tokens for each in engines)


async def test_the_second_one_computes_the_prompt_when_its_turn_comes_first(pair: Pair) -> None:
    first_at, second_at = pair
    stand_still(first_at)
    waiting = begins(first_at, first())
    await turns()

    assert len(await whole(second_at, second_to(first_at))) == 40

    with pytest.raises(PromptWithdrawn):
        await waiting
    go_on(first_at)
    assert (computed(first_at), computed(second_at)) == (0, len(PROMPT))


async def test_the_second_one_leaves_its_line_when_the_first_one_begins(pair: Pair) -> None:
    first_at, second_at = pair
    stand_still(first_at, second_at)
    winner, loser = begins(first_at, first()), begins(second_at, second_to(first_at))
    await has_met(first_at)

    go_on(first_at)

    with pytest.raises(PromptWithdrawn):
        await loser
    assert len(await winner) == 40
    go_on(second_at)
    assert (computed(first_at), computed(second_at)) == (len(PROMPT), 0)


async def test_a_prefill_gives_way_like_a_whole_request() -> None:
    async with running(Role.PREFILL) as first_at, running(Role.PREFILL) as second_at:
        stand_still(first_at)
        waiting = asyncio.create_task(first_at.prefill(first()))
        await turns()

        assert isinstance(await second_at.prefill(second_to(first_at)), KvHandle)

        with pytest.raises(PromptWithdrawn):
            await waiting
        assert not first_at._host.model.held


async def test_a_second_one_that_meets_a_first_one_done_has_lost(pair: Pair) -> None:
    first_at, second_at = pair
    await whole(first_at, first())

    with pytest.raises(PromptWithdrawn):
        await whole(second_at, second_to(first_at))


async def test_the_second_one_computes_the_prompt_where_the_first_ones_engine_is_dead(pair: Pair) -> None:
    _, second_at = pair
    async with running() as first_at:
        gone = second_to(first_at)

    assert len(await whole(second_at, gone)) == 40


async def test_the_second_one_goes_on_when_the_first_ones_engine_dies_before_the_turn(pair: Pair) -> None:
    _, second_at = pair
    stand_still(second_at)
    async with running() as first_at:
        stand_still(first_at)
        waiting = begins(first_at, first())
        left = begins(second_at, second_to(first_at))
        await has_met(first_at)
        first_at.inject_fault(FaultKind.CRASH)
        await asyncio.wait([waiting])
        go_on(second_at)

        assert len(await left) == 40


@asynccontextmanager
async def somebody_who_says(*words: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An address where somebody answers with these words and nothing else, and what it has heard."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for word in words:
            writer.write(word)
        while line := await reader.readline():
            heard.append(line)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}", heard


async def test_a_silent_engine_is_waited_for_no_longer_than_patience_lasts(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_exchange, "PATIENCE_S", 2.0)
    _, second_at = pair
    async with somebody_who_says() as (address, heard):
        assert len(await whole(second_at, second(at=address))) == 40

    assert heard == [b'"q.0"\n', b"ask\n"]


def tied_prompts(num: int, address: str) -> list[EngineRequest]:
    tie = [TiedRequest(f"q{number}.0", address) for number in range(num)]
    return [msgspec.structs.replace(ask(f"q{number}.1", prompt=PROMPT), tied_to=tie[number]) for number in range(num)]


async def lose_patience(engine: EmulatedEngine, heard: list[bytes]) -> None:
    """What the timer does, once the silent one has been asked."""
    await until_here(lambda: claim_exchange.ASK in heard)
    asked = [each for each in engine._host._requesters._requesters.values() if each._is_asked]
    asked[0]._lose_patience()


async def test_a_silent_engine_is_waited_for_once_and_not_by_each_of_those_who_ask_it(pair: Pair) -> None:
    _, second_at = pair
    async with somebody_who_says() as (address, heard):
        asking = [begins(second_at, each) for each in tied_prompts(6, address)]
        await lose_patience(second_at, heard)
        assert [len(each) for each in await asyncio.gather(*asking)] == [40] * 6
        assert heard.count(b"ask\n") == 1

        heard.clear()
        assert len(await whole(second_at, second(at=address))) == 40
        assert heard == [], "it is not asked again soon"


async def test_an_engine_that_was_silent_is_asked_again_after_a_while(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_exchange, "SILENT_FOR_S", 0.0)
    _, second_at = pair
    async with somebody_who_says() as (address, heard):
        for each in tied_prompts(2, address):
            asking = begins(second_at, each)
            await lose_patience(second_at, heard)
            assert len(await asking) == 40
            heard.clear()


async def test_an_engine_that_takes_no_connection_in_time_is_silent_too(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_exchange, "PATIENCE_S", 0.05)
    _, second_at = pair
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.create_connection(server.getsockname()):
        address = "{}:{}".format(*server.getsockname())
        assert len(await whole(second_at, second(at=address))) == 40

        assert second_at._host._requesters.is_silent(address)


async def test_an_engine_that_talks_nonsense_has_not_begun(pair: Pair) -> None:
    _, second_at = pair
    async with somebody_who_says(b"x" * 100_000) as (address, _):
        assert len(await whole(second_at, second(at=address))) == 40


@pytest.mark.parametrize("line", [b"nonsense\n", b"7\n", b"", b"x" * 100_000, b'"%s"\nask\n' % (b"q" * 257)])
async def test_whoever_is_no_engine_is_told_nothing(pair: Pair, line: bytes) -> None:
    first_at, _ = pair
    host, _, port = first_at.info.claims_at.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(line)
    writer.write_eof()

    assert await reader.read() == b""
    writer.close()


async def test_whoever_connects_and_says_nothing_is_not_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_exchange, "FIRST_LINE_S", 0.05)
    first_at, _ = pair
    host, _, port = first_at.info.claims_at.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_a_second_one_that_leaves_while_it_asks_leaves_nothing_behind(pair: Pair) -> None:
    _, second_at = pair
    async with somebody_who_says() as (address, heard):
        asking = begins(second_at, second(at=address))
        await until(lambda: len(heard) == 2, "it has asked")

        asking.cancel()
        await asyncio.wait([asking])

        await until(lambda: is_idle(second_at), "its place is free")
        assert len(await whole(second_at, ask("another", prompt=PROMPT))) == 40


async def test_an_engine_that_is_shut_down_while_it_asks_leaves_nothing_behind() -> None:
    async with somebody_who_says() as (address, heard):
        async with running() as second_at:
            asking = begins(second_at, second(at=address))
            await until(lambda: len(heard) == 2, "it has asked")
        await asyncio.wait([asking])


async def test_every_prompt_of_many_pairs_is_computed_once(pair: Pair) -> None:
    """Either engine keeps the claims of some; one is three times as slow; some first ones come late."""
    pair[0].inject_fault(FaultKind.SLOW, factor=3.0)
    rng = random.Random(5)

    async def attempt(engine: EmulatedEngine, request: EngineRequest, num_turns: int) -> bool:
        for _ in range(num_turns):
            await asyncio.sleep(0)
        try:
            return len(await whole(engine, request)) == 40
        except PromptWithdrawn:
            return False

    async def race(number: int) -> tuple[bool, bool]:
        first_at, second_at = rng.sample(pair, 2)
        one = ask(f"q{number}.0", prompt=PROMPT)
        tie = TiedRequest(one.request_id, first_at.info.claims_at)
        other = msgspec.structs.replace(one, request_id=f"q{number}.1", tied_to=tie)
        both = await asyncio.gather(
            attempt(first_at, one, rng.randrange(10)), attempt(second_at, other, rng.randrange(10))
        )
        return both[0], both[1]

    winners = await asyncio.gather(*(race(number) for number in range(100)))

    assert set(winners) == {(True, False), (False, True)}
    assert computed(*pair) == 100 * len(PROMPT)
