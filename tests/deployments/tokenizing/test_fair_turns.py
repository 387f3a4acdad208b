"""Tenants take turns, whatever becomes of their work."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.tokenizing.fair_turns import FairTurns, TooMuchWaits

MOST_WAITING = 20
Work = Callable[[], Coroutine[Any, Any, object]]


async def nothing() -> None:
    """Work that is done at once."""


class Place:
    """One place, kept busy until somebody says so."""

    def __init__(self) -> None:
        self.turns = FairTurns(1, MOST_WAITING)
        self.done: list[str] = []
        self._may_go_on = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def take(self) -> None:
        self.begin("busy", self._may_go_on.wait)
        await asyncio.sleep(0)

    def begin(self, tenant: str, work: Work = nothing) -> asyncio.Task[None]:
        async def run() -> None:
            await self.turns.run(tenant, work)
            self.done.append(tenant)

        self._tasks.append(asyncio.create_task(run()))
        return self._tasks[-1]

    async def let_go(self) -> list[str]:
        """Who had a turn, in order."""
        await asyncio.sleep(0)
        self._may_go_on.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return self.done[1:]

    @property
    def num_waiting(self) -> int:
        """Pieces of work that have not begun."""
        return sum(map(len, self.turns._waiting.values()))


@pytest.fixture
async def place() -> Place:
    return Place()


async def test_a_tenant_with_one_text_waits_for_one_of_anothers(place: Place) -> None:
    await place.take()
    for tenant in ("much", "much", "much", "little"):
        place.begin(tenant)

    assert await place.let_go() == ["much", "little", "much", "much"]


async def test_work_that_nobody_waits_for_any_more_has_no_turn(place: Place) -> None:
    await place.take()
    gone = place.begin("gone")
    place.begin("other")
    await asyncio.sleep(0)
    gone.cancel()

    assert await place.let_go() == ["other"]
    assert place.num_waiting == 0


async def test_turns_that_nobody_waits_for_are_not_their_tenants(place: Place) -> None:
    await place.take()
    gone = [place.begin("little") for _ in range(5)]
    place.begin("little")
    for _ in range(3):
        place.begin("much")
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    await asyncio.sleep(0)

    assert (await place.let_go())[:2] == ["little", "much"]


async def test_a_tenant_has_no_more_waiting_than_it_may_and_others_have_their_own_room(place: Place) -> None:
    await place.take()
    for _ in range(MOST_WAITING):
        place.begin("much")
    await asyncio.sleep(0)

    with pytest.raises(TooMuchWaits):
        await place.turns.run("much", nothing)
    place.begin("little")
    assert (await place.let_go())[1] == "little"


async def test_work_that_has_begun_keeps_its_place_though_nobody_waits_for_it(place: Place) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await may_end.wait()

    gone = place.begin("gone", work)
    await begun.wait()
    gone.cancel()
    place.begin("other")
    await asyncio.sleep(0)
    waiting = place.num_waiting
    may_end.set()
    await place.let_go()

    assert waiting == 1
    assert place.done == ["other"]


async def test_who_leaves_just_when_its_turn_has_come_passes_it_on(place: Place) -> None:
    await place.take()
    leaving = place.begin("leaving")
    place.begin("other")
    await asyncio.sleep(0)
    place.turns._pass_on()
    leaving.cancel()
    await asyncio.sleep(0)
    await place.let_go()

    assert sorted(place.done) == ["busy", "other"]


async def test_what_the_work_raises_is_raised_and_the_place_is_free_again() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def give() -> int:
        return 7

    turns = FairTurns(1, MOST_WAITING)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await turns.run("any", fail)

    assert await turns.run("any", give) == 7


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_between_two_turns_of_a_tenant_every_other_that_waits_has_one(tenants: list[str]) -> None:
    async def turns() -> list[str]:
        place = Place()
        await place.take()
        for tenant in tenants:
            place.begin(tenant)
        return await place.let_go()

    order = asyncio.run(turns())

    assert sorted(order) == sorted(tenants)
    for place, tenant in enumerate(order):
        if tenant in order[place + 1 :]:
            between = order[place + 1 : order.index(tenant, place + 1)]
            assert set(between) >= set(order[place + 1 :]) - {tenant}
