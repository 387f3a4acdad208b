"""A replica that is out of service finishes what it has, sleeps, and is there when it is needed."""

import asyncio

from deployments.replica.standby import Standby
from tests.engines.scripted_engine import ScriptedEngine
from tests.engines.virtual_time import run_in_virtual_time

SLEEP_S, WAKE_S = 3.0, 2.0


class Sleeper(ScriptedEngine):
    """Falls asleep and wakes up in its time."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.is_busy = False

    async def sleep(self) -> None:
        self.log.append("falls asleep")
        await asyncio.sleep(SLEEP_S)
        self.log.append("sleeps")

    async def wake(self) -> None:
        self.log.append("wakes up")
        await asyncio.sleep(WAKE_S)
        self.log.append("is awake")


ASLEEP, AWAKE = ["falls asleep", "sleeps"], ["wakes up", "is awake"]


def a_standby() -> tuple[Sleeper, Standby]:
    engine = Sleeper()
    return engine, Standby(lambda: engine, lambda: not engine.is_busy)


def test_it_is_warm_at_once_and_sleeps_when_it_has_nothing_to_do() -> None:
    async def story() -> None:
        engine, standby = a_standby()
        engine.is_busy = True
        standby.leave_service()
        await asyncio.sleep(60.0)
        assert (standby.is_warm, engine.log) == (True, [])
        engine.is_busy = False
        await asyncio.sleep(SLEEP_S + 1.0)
        assert (standby.is_warm, engine.log) == (True, ASLEEP)
        standby.close()

    run_in_virtual_time(story())


def test_it_is_in_service_again_when_its_engine_is_awake() -> None:
    async def story() -> None:
        engine, standby = a_standby()
        standby.leave_service()
        await asyncio.sleep(10.0)
        standby.enter_service()
        await asyncio.sleep(WAKE_S / 2)
        assert standby.is_warm
        await asyncio.sleep(WAKE_S)
        assert (standby.is_warm, engine.log) == (False, [*ASLEEP, *AWAKE])

    run_in_virtual_time(story())


def test_one_that_is_needed_before_it_sleeps_is_in_service_at_once() -> None:
    async def story() -> None:
        engine, standby = a_standby()
        engine.is_busy = True
        standby.leave_service()
        await asyncio.sleep(10.0)
        standby.enter_service()
        assert not standby.is_warm
        engine.is_busy = False
        await asyncio.sleep(10.0)
        assert engine.log == []

    run_in_virtual_time(story())


def test_an_engine_that_falls_asleep_is_asleep_before_it_wakes_up() -> None:
    async def story() -> None:
        engine, standby = a_standby()
        standby.leave_service()
        await asyncio.sleep(SLEEP_S / 2)
        standby.enter_service()
        await asyncio.sleep(SLEEP_S + WAKE_S)
        assert (standby.is_warm, engine.log) == (False, [*ASLEEP, *AWAKE])

    run_in_virtual_time(story())


def test_a_late_request_wakes_it_up_and_it_sleeps_again_afterwards() -> None:
    async def story() -> None:
        engine, standby = a_standby()
        standby.leave_service()
        await asyncio.sleep(10.0)
        engine.is_busy = True
        await standby.awake()
        assert (standby.is_warm, engine.log) == (True, [*ASLEEP, *AWAKE])
        await asyncio.sleep(10.0)
        engine.is_busy = False
        await asyncio.sleep(10.0)
        assert engine.log == [*ASLEEP, *AWAKE, *ASLEEP]
        standby.close()

    run_in_virtual_time(story())


def test_two_late_requests_wake_it_up_once_each_way() -> None:
    async def story() -> None:
        engine, standby = a_standby()
        standby.leave_service()
        await asyncio.sleep(10.0)
        engine.is_busy = True
        await asyncio.gather(standby.awake(), standby.awake())
        assert engine.log == [*ASLEEP, *AWAKE]
        standby.close()

    run_in_virtual_time(story())


def test_an_engine_in_the_place_of_one_that_slept_is_awake_and_falls_asleep_in_its_turn() -> None:
    async def story() -> None:
        engine, standby = a_standby()
        standby.leave_service()
        await asyncio.sleep(10.0)
        async with standby.undisturbed():
            await asyncio.sleep(20.0)
            assert engine.log == ASLEEP
        await standby.awake()
        assert engine.log == ASLEEP, "it need not wake up"
        await asyncio.sleep(10.0)
        assert (standby.is_warm, engine.log) == (True, [*ASLEEP, *ASLEEP])
        standby.close()

    run_in_virtual_time(story())


def test_a_request_that_comes_meanwhile_waits_and_wakes_nothing() -> None:
    async def story() -> None:
        engine, standby = a_standby()
        standby.leave_service()
        await asyncio.sleep(10.0)
        async with standby.undisturbed():
            late = asyncio.create_task(standby.awake())
            await asyncio.sleep(20.0)
            assert not late.done()
        await late
        assert "wakes up" not in engine.log
        standby.close()

    run_in_virtual_time(story())
