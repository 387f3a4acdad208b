"""Who watches gets the latest state, all get the same one, and nobody costs nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from deployments.export.live_feed import LiveFeed
from tests.waiting import until


class States:
    """Counts how often it was made."""

    def __init__(self) -> None:
        self.num_made = 0

    async def make(self) -> bytes:
        self.num_made += 1
        return str(self.num_made).encode()


def state_in(event: bytes) -> int:
    return int(event.removeprefix(b"data: ").removesuffix(b"\n\n"))


async def state_of(watch: AsyncIterator[bytes]) -> int:
    """The next state that one who watches is told."""
    return state_in(await anext(watch))


async def leave(watch: AsyncIterator[bytes]) -> None:
    await watch.aclose()  # type: ignore[attr-defined]


async def test_nothing_is_made_before_somebody_watches_and_nothing_afterwards() -> None:
    states = States()
    feed = LiveFeed(states.make, period_s=0.001)
    assert states.num_made == 0

    watch = feed.watch()
    assert await state_of(watch) == 1
    await anext(watch)
    await leave(watch)
    made = states.num_made
    await asyncio.gather(*(asyncio.sleep(0.002) for _ in range(5)))

    assert (feed.num_watchers, states.num_made) == (0, made)


async def test_the_first_state_comes_at_once_and_the_next_after_a_period() -> None:
    feed = LiveFeed(States().make, period_s=3600)

    watch = feed.watch()
    assert await state_of(watch) == 1
    second = asyncio.ensure_future(anext(watch))
    done, _ = await asyncio.wait({second}, timeout=0.01)

    assert not done
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_a_state_is_made_once_for_all_who_watch() -> None:
    feed = LiveFeed(States().make, period_s=0.01)
    watches = [feed.watch() for _ in range(5)]

    first = await asyncio.gather(*(anext(watch) for watch in watches))
    second = await asyncio.gather(*(anext(watch) for watch in watches))

    assert [*map(state_in, first)] == [1] * 5
    assert [*map(state_in, second)] == [2] * 5
    for watch in watches:
        await leave(watch)


async def test_who_reads_slowly_is_given_the_latest_and_nothing_waits_for_him() -> None:
    feed = LiveFeed(States().make, period_s=0.001)
    slow, quick = feed.watch(), feed.watch()
    await asyncio.gather(anext(slow), anext(quick))

    while await state_of(quick) < 20:
        pass

    assert await state_of(slow) >= 20
    await leave(slow)
    await leave(quick)


async def test_one_who_leaves_while_he_waits_takes_nothing_from_the_others() -> None:
    feed = LiveFeed(States().make, period_s=0.01)
    leaving, staying = feed.watch(), feed.watch()
    await asyncio.gather(anext(leaving), anext(staying))
    left, stayed = asyncio.ensure_future(anext(leaving)), asyncio.ensure_future(anext(staying))
    await asyncio.sleep(0)
    left.cancel()

    assert state_in(await stayed) == 2
    assert feed.num_watchers == 1
    await leave(staying)


async def test_one_who_comes_right_after_the_last_has_left_is_served() -> None:
    feed = LiveFeed(States().make, period_s=0.01)
    first = feed.watch()
    await anext(first)
    waiting = asyncio.ensure_future(anext(first))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    second = feed.watch()

    assert await state_of(second) == 2
    await leave(second)


async def test_there_are_no_more_watchers_than_allowed() -> None:
    feed = LiveFeed(States().make, period_s=0.001, max_watchers=2)
    watches = [feed.watch() for _ in range(2)]
    await asyncio.gather(*(anext(watch) for watch in watches))
    assert feed.is_full

    assert [event async for event in feed.watch()] == []

    await leave(watches[0])
    assert not feed.is_full
    assert state_in(await anext(feed.watch()))
    await leave(watches[1])


async def test_a_watch_ends_by_itself() -> None:
    feed = LiveFeed(States().make, period_s=0.001, watch_s=0.01)
    events = [event async for event in feed.watch()]
    assert len(events) > 1
    assert feed.num_watchers == 0


async def test_a_state_that_can_t_be_made_ends_the_watch_and_not_the_feed() -> None:
    states = States()

    async def make() -> bytes:
        if states.num_made == 0:
            states.num_made = 1
            raise RuntimeError("not now")
        return await states.make()

    feed = LiveFeed(make, period_s=0.001)
    with pytest.raises(RuntimeError, match="not now"):
        await anext(feed.watch())

    watch = feed.watch()
    assert await state_of(watch) == 2
    await leave(watch)
    await until(lambda: feed.num_watchers == 0, "nobody watches")
