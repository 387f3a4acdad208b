"""Replicas that stand still, as a gateway sees them over its connections."""

import asyncio

from deployments.data_plane import stall_watch
from deployments.data_plane.stall_watch import LATE_S, StallWatch
from tests.deployments.data_plane.ends import END, Ends, Heard, an_order
from tests.engines.virtual_time import run_in_virtual_time
from tests.waiting import until_here


async def test_a_replica_that_says_nothing_stands_still_until_it_says_something() -> None:
    async with Ends.connected() as ends:
        assert not ends.connection.is_stalled(silent_s=5.0)
        assert ends.connection.is_stalled(silent_s=0.0), "it has said nothing for no time at all"
        before_s = ends.connection._heard_at_s = ends.connection._heard_at_s - 10.0
        assert ends.connection.is_stalled(silent_s=5.0)

        ends.server.beat(False)

        await until_here(lambda: ends.connection._heard_at_s > before_s)
        assert not ends.connection.is_stalled(silent_s=5.0)


async def test_whatever_it_says_is_a_sign_of_life() -> None:
    async with Ends.connected() as ends:
        heard = Heard()
        ends.connection.call(an_order("q"), heard)
        ends.connection._heard_at_s -= 10.0
        ends.engine.gives("q", END)
        await until_here(lambda: heard.items == [END])
        assert not ends.connection.is_stalled(silent_s=5.0)


async def test_a_replica_says_that_its_engine_stands_still_and_that_it_moves_again() -> None:
    async with Ends.connected() as ends:
        ends.server.beat(True)
        await until_here(lambda: ends.connection.is_stalled(silent_s=5.0))
        ends.server.beat(False)
        await until_here(lambda: not ends.connection.is_stalled(silent_s=5.0))


async def test_a_connection_that_is_lost_is_no_replica_that_stands_still() -> None:
    async with Ends.connected() as ends:
        ends.server.beat(True)
        await until_here(lambda: ends.connection.is_stalled(silent_s=5.0))
        await ends.server.close()
        await until_here(lambda: not ends.connection.is_stalled(silent_s=5.0))


def test_each_change_is_told_at_once_and_a_stall_once_a_second_while_it_lasts() -> None:
    async def story() -> None:
        stalled: set[str] = set()
        told: list[tuple[float, str, bool]] = []
        now_s = asyncio.get_running_loop().time
        watch = StallWatch(lambda: stalled, lambda replica, is_so: told.append((now_s(), replica, is_so)))
        await asyncio.sleep(10.1)
        stalled.add("a")
        await asyncio.sleep(2.5)
        stalled.clear()
        await asyncio.sleep(5.0)
        watch.close()
        assert [(replica, is_so) for _, replica, is_so in told] == [("a", True)] * 3 + [("a", False)]
        assert [round(at_s - 10.1, 2) for at_s, _, _ in told] == [0.15, 1.15, 2.15, 2.65]

    run_in_virtual_time(story())


def test_a_gateway_that_was_held_up_itself_reads_first_what_has_come() -> None:
    async def story() -> None:
        looks: list[float] = []
        loop = asyncio.get_running_loop()
        watch = StallWatch(lambda: looks.append(loop.time()) or (), lambda *_: None)  # type: ignore[func-returns-value]
        await asyncio.sleep(1.1)
        num_looks = len(looks)
        loop._jumping.now_s += LATE_S + 1.0  # type: ignore[attr-defined]
        await asyncio.sleep(0.0)
        assert len(looks) == num_looks
        await asyncio.sleep(stall_watch.LOOK_EVERY_S + 0.05)
        assert len(looks) == num_looks + 1
        watch.close()

    run_in_virtual_time(story())
