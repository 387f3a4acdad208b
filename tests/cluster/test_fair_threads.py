"""Tenants take turns at a few threads, whatever becomes of their work."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.fair_threads import NICENESS, FairThreads, TooMuchWaits

MOST_WAITING = 20
linux_alone = pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")


class Thread:
    """One thread, kept busy until somebody says so."""

    def __init__(self) -> None:
        self.threads = FairThreads(1, MOST_WAITING)
        self.done: list[str] = []
        self._may_go_on = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def take(self) -> None:
        self.begin("busy", lambda: self._may_go_on.wait(60))
        await asyncio.sleep(0)

    def begin(self, tenant: str, work: Callable[[], object] = lambda: None) -> asyncio.Task[None]:
        async def run() -> None:
            await self.threads.run(tenant, work)
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
        """Pieces of work that the thread has not begun."""
        return sum(map(len, self.threads._waiting.values()))

    def free(self) -> None:
        self._may_go_on.set()


@pytest.fixture
def thread() -> Iterator[Thread]:
    made = Thread()
    yield made
    made.free()


async def test_a_tenant_with_one_text_waits_for_one_of_anothers(thread: Thread) -> None:
    await thread.take()
    for tenant in ("much", "much", "much", "little"):
        thread.begin(tenant)

    assert await thread.let_go() == ["much", "little", "much", "much"]


async def test_work_that_nobody_waits_for_any_more_has_no_turn(thread: Thread) -> None:
    await thread.take()
    gone = thread.begin("gone")
    thread.begin("other")
    await asyncio.sleep(0)
    gone.cancel()

    assert await thread.let_go() == ["other"]
    assert thread.num_waiting == 0


async def test_turns_that_nobody_waits_for_are_not_their_tenants(thread: Thread) -> None:
    await thread.take()
    gone = [thread.begin("little") for _ in range(5)]
    thread.begin("little")
    for _ in range(3):
        thread.begin("much")
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    await asyncio.sleep(0)

    assert (await thread.let_go())[:2] == ["little", "much"]


async def test_a_tenant_has_no_more_waiting_than_it_may_and_others_have_their_own_room(thread: Thread) -> None:
    await thread.take()
    for _ in range(MOST_WAITING):
        thread.begin("much")
    await asyncio.sleep(0)

    with pytest.raises(TooMuchWaits):
        await thread.threads.run("much", lambda: None)
    thread.begin("little")
    assert (await thread.let_go())[1] == "little"


async def test_work_that_has_begun_keeps_its_thread_though_nobody_waits_for_it(thread: Thread) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(60)

    gone = thread.begin("gone", work)
    await asyncio.to_thread(begun.wait, 60)
    gone.cancel()
    thread.begin("other")
    await asyncio.sleep(0)
    waiting = thread.num_waiting
    may_end.set()
    await thread.let_go()

    assert waiting == 1
    assert thread.done == ["other"]


async def test_who_leaves_just_when_its_turn_has_come_passes_it_on(thread: Thread) -> None:
    await thread.take()
    leaving = thread.begin("leaving")
    thread.begin("other")
    await asyncio.sleep(0)
    thread.threads._pass_on()
    leaving.cancel()
    await asyncio.sleep(0)

    assert await thread.let_go() == ["other"]


async def test_what_the_work_raises_is_raised_and_the_thread_is_free_again() -> None:
    threads = FairThreads(1, MOST_WAITING)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await threads.run("any", lambda: 1 / 0)

    assert await threads.run("any", lambda: 7) == 7


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_between_two_turns_of_a_tenant_every_other_that_waits_has_one(tenants: list[str]) -> None:
    async def turns() -> list[str]:
        thread = Thread()
        await thread.take()
        for tenant in tenants:
            thread.begin(tenant)
        return await thread.let_go()

    order = asyncio.run(turns())

    assert sorted(order) == sorted(tenants)
    for place, tenant in enumerate(order):
        if tenant in order[place + 1 :]:
            between = order[place + 1 : order.index(tenant, place + 1)]
            assert set(between) >= set(order[place + 1 :]) - {tenant}


@linux_alone
async def test_the_threads_give_way_to_all_others() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert await FairThreads(1, MOST_WAITING).run("any", niceness) == min(19, niceness() + NICENESS)
