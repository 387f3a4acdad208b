import asyncio
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.token_stream import MAX_QUEUED_CHUNKS, TokenStream
from engines.contract import Chunk
from policies import Reason
from routing import Outcome, OutcomeKind
from tests.tables import for_each

COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)
CANCELLED = Outcome(kind=OutcomeKind.CANCELLED, reason=Reason.CLIENT_GONE)


def a_chunk(number: int) -> Chunk:
    return Chunk(f"{number} ", (number,))


async def write(stream: TokenStream, chunk: Chunk) -> None:
    stream.put(chunk)
    await stream.room()


async def turn() -> None:
    """Lets everybody who can go on go on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def a_full_stream() -> tuple[TokenStream, "asyncio.Task[None]"]:
    """A stream whose writer waits for its reader."""
    stream = TokenStream()
    for number in range(MAX_QUEUED_CHUNKS - 1):
        await write(stream, a_chunk(number))
    writer = asyncio.create_task(write(stream, a_chunk(MAX_QUEUED_CHUNKS - 1)))
    await turn()
    assert not writer.done()
    return stream, writer


async def test_chunks_come_in_order_and_the_outcome_comes_last_and_can_be_read_again() -> None:
    stream = TokenStream()
    await write(stream, a_chunk(1))
    await write(stream, a_chunk(2))
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


async def test_a_slow_reader_makes_the_writer_wait() -> None:
    stream, writer = await a_full_stream()
    assert await stream.read() == a_chunk(0)
    await asyncio.wait_for(writer, 5)


async def test_the_end_releases_a_writer_that_nobody_reads_from() -> None:
    stream, writer = await a_full_stream()
    stream.finish(CANCELLED)
    await asyncio.wait_for(writer, 5)
    assert [await stream.read() for _ in range(MAX_QUEUED_CHUNKS)] == [a_chunk(n) for n in range(MAX_QUEUED_CHUNKS)]
    assert await stream.read() == CANCELLED


async def test_a_writer_that_comes_after_the_end_does_not_wait() -> None:
    stream = TokenStream()
    stream.finish(CANCELLED)
    for number in range(2 * MAX_QUEUED_CHUNKS):
        await asyncio.wait_for(write(stream, a_chunk(number)), 5)


@for_each("who", ["reader", "writer"])
async def test_one_side_that_is_cancelled_while_it_waits_does_not_disturb_the_other(who: str) -> None:
    stream, waiting = await a_full_stream() if who == "writer" else (TokenStream(), None)
    task: asyncio.Task[object] = waiting or asyncio.create_task(stream.read())
    await turn()
    task.cancel()
    await turn()
    assert task.cancelled()

    if who == "reader":
        await write(stream, a_chunk(0))

    assert await asyncio.wait_for(stream.read(), 5) == a_chunk(0)
    stream.finish(COMPLETED)


async def _transfer(moves: list[str], num_chunks: int) -> list[Chunk | Outcome]:
    """A writer and a reader that go on only when it is their move."""
    stream, got = TokenStream(), list[Chunk | Outcome]()
    turns = {"writer": asyncio.Semaphore(0), "reader": asyncio.Semaphore(0)}

    async def write_all() -> None:
        for number in range(num_chunks):
            await turns["writer"].acquire()
            await write(stream, a_chunk(number))
            assert len(stream._chunks) < MAX_QUEUED_CHUNKS
        await turns["writer"].acquire()
        stream.finish(COMPLETED)

    async def read() -> None:
        while not got or isinstance(got[-1], Chunk):
            await turns["reader"].acquire()
            got.append(await stream.read())

    tasks = [asyncio.create_task(write_all()), asyncio.create_task(read())]
    for move in [*moves, *["writer", "reader"] * (num_chunks + 1)]:
        turns[move].release()
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    return got


@given(
    moves=st.lists(st.sampled_from(("writer", "reader")), max_size=300),
    num_chunks=st.integers(min_value=0, max_value=2 * MAX_QUEUED_CHUNKS),
)
def test_whoever_is_faster_everything_arrives_in_order_and_once(moves: list[str], num_chunks: int) -> None:
    with asyncio.Runner() as runner:
        got = runner.run(_transfer(moves, num_chunks))
    assert got == [*map(a_chunk, range(num_chunks)), COMPLETED]
