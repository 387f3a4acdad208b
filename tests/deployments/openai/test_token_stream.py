import asyncio
from collections import Counter
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.token_stream import FULL_ITEMS, TokenStream
from deployments.wire.attempt_call import GRANT_ITEMS, WINDOW_ITEMS
from engines.contract import Chunk
from policies import Reason
from routing import Outcome, OutcomeKind

COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)
CANCELLED = Outcome(kind=OutcomeKind.CANCELLED, reason=Reason.CLIENT_GONE)


def a_chunk(number: int) -> Chunk:
    return Chunk(f"{number} ", (number,))


async def turn() -> None:
    """Lets everybody who can go on go on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_chunks_come_in_order_and_the_outcome_comes_last_and_can_be_read_again() -> None:
    stream = TokenStream()
    stream.put(a_chunk(1))
    stream.put(a_chunk(2))
    stream.finish(COMPLETED)
    assert [await stream.read() for _ in range(4)] == [a_chunk(1), a_chunk(2), COMPLETED, COMPLETED]


async def test_a_reader_waits_for_the_next_chunk_and_for_the_outcome() -> None:
    stream = TokenStream()
    for put, awaited in ((partial(stream.put, a_chunk(1)), a_chunk(1)), (partial(stream.finish, COMPLETED), COMPLETED)):
        reader = asyncio.create_task(stream.read())
        await turn()
        assert not reader.done()

        put()

        assert await reader == awaited


async def test_a_chunk_is_consumed_when_it_is_read_and_not_before() -> None:
    stream, consumed = TokenStream(), Counter[int]()
    for number in range(3):
        stream.put(a_chunk(number), partial(consumed.update, [number]))
    assert consumed == {}

    await stream.read()
    assert consumed == {0: 1}
    stream.finish(CANCELLED)
    await stream.read()
    assert consumed == {0: 1, 1: 1}


async def test_a_stream_is_full_with_more_than_half_a_window_of_chunks_and_says_when_there_is_room_again() -> None:
    rooms = Counter[str]()
    stream = TokenStream(lambda: rooms.update(["room"]))
    for number in range(FULL_ITEMS):
        assert not stream.is_full
        stream.put(a_chunk(number))
    assert stream.is_full

    await stream.read()
    await stream.read()

    assert (stream.is_full, rooms["room"]) == (False, 1)


async def test_a_stream_is_full_whenever_its_replica_may_send_no_more() -> None:
    """What is read is told the replica in packs: between two of them it stands still, though there is room."""
    stream, read = TokenStream(), Counter[str]()
    granted, sent = WINDOW_ITEMS, 0
    for _ in range(3 * WINDOW_ITEMS):
        while sent < granted:
            stream.put(a_chunk(sent), partial(read.update, ["chunks"]))
            sent += 1
        assert stream.is_full
        await stream.read()
        if read["chunks"] % GRANT_ITEMS == 0:
            granted += GRANT_ITEMS


async def test_after_the_end_nothing_is_waited_for() -> None:
    stream = TokenStream()
    for number in range(2 * WINDOW_ITEMS):
        stream.put(a_chunk(number))
    stream.finish(CANCELLED)
    assert not stream.is_full
    assert [await stream.read() for _ in range(2 * WINDOW_ITEMS)] == [a_chunk(n) for n in range(2 * WINDOW_ITEMS)]
    assert await stream.read() == CANCELLED


async def test_a_reader_that_is_cancelled_while_it_waits_takes_nothing_with_it() -> None:
    stream = TokenStream()
    reader = asyncio.create_task(stream.read())
    await turn()
    reader.cancel()
    await turn()
    assert reader.cancelled()

    stream.put(a_chunk(0))

    assert await asyncio.wait_for(stream.read(), 5) == a_chunk(0)


async def _transfer(moves: list[str], num_chunks: int) -> tuple[list[Chunk | Outcome], list[int]]:
    """A writer and a reader that go on only when it is their move."""
    stream, got, consumed = TokenStream(), list[Chunk | Outcome](), list[int]()
    coming = iter(range(num_chunks))
    turns = asyncio.Semaphore(0)

    async def read() -> None:
        while not got or isinstance(got[-1], Chunk):
            await turns.acquire()
            got.append(await stream.read())

    reader = asyncio.create_task(read())
    for move in [*moves, *["writer"] * (num_chunks + 1), *["reader"] * (num_chunks + 1)]:
        if move == "reader":
            turns.release()
        elif (number := next(coming, None)) is not None:
            stream.put(a_chunk(number), partial(consumed.append, number))
        else:
            stream.finish(COMPLETED)
        await asyncio.sleep(0)
    await asyncio.wait_for(reader, 5)
    return got, consumed


@given(
    moves=st.lists(st.sampled_from(("writer", "reader")), max_size=200),
    num_chunks=st.integers(min_value=0, max_value=2 * WINDOW_ITEMS),
)
def test_whoever_is_faster_everything_arrives_in_order_and_is_consumed_once(moves: list[str], num_chunks: int) -> None:
    with asyncio.Runner() as runner:
        got, consumed = runner.run(_transfer(moves, num_chunks))
    assert got == [*map(a_chunk, range(num_chunks)), COMPLETED]
    assert consumed == list(range(num_chunks))
