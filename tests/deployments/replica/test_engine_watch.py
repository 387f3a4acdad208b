"""A replica looks whether its engine moves, and asks it once nobody else does."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from deployments.replica.engine_watch import Beats, EngineWatch
from engines import Chunk, EngineRequest, EngineStats
from policies.errors import EngineUnavailable
from tests.engines.scripted_engine import ScriptedEngine
from tests.engines.virtual_time import run_in_virtual_time

STALL_S = 2.0


class Stuck(ScriptedEngine):
    """Makes steps when it is told to; the requests that it has are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.num_steps = 7
        self.requests: list[str] = []
        self.moves = asyncio.Event()
        self.is_dead = False

    def stats(self) -> EngineStats:
        unfinished = len(self.requests)
        return msgspec.structs.replace(super().stats(), num_steps=self.num_steps, num_requests_unfinished=unfinished)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        if self.is_dead:
            raise EngineUnavailable("the core is dead")
        self.requests.append(request.request_id)
        await self.moves.wait()
        self.num_steps += 1
        self.requests.remove(request.request_id)
        yield Chunk("", (1,), "length")


class LoopClock:
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()


def watched() -> tuple[Stuck, EngineWatch, Beats]:
    engine = Stuck()
    watch = EngineWatch(lambda: engine, STALL_S, LoopClock())
    return engine, watch, Beats(watch.look)


def test_an_engine_without_requests_does_not_stand_still() -> None:
    async def story() -> None:
        engine, watch, beats = watched()
        await asyncio.sleep(60.0)
        assert (watch.is_stalled, engine.requests) == (False, [])
        beats.close()

    run_in_virtual_time(story())


def test_one_that_stands_still_does_so_until_it_makes_a_step_though_its_requests_have_gone() -> None:
    async def story() -> None:
        engine, watch, beats = watched()
        engine.requests.append("client's")
        await asyncio.sleep(STALL_S - 0.1)
        assert not watch.is_stalled
        await asyncio.sleep(1.0)
        assert (watch.is_stalled, engine.requests) == (True, ["client's", "probe-0"])
        engine.requests.remove("client's")
        await asyncio.sleep(30.0)
        assert (watch.is_stalled, engine.requests) == (True, ["probe-0"]), "one probe, however long it takes"
        engine.moves.set()
        await asyncio.sleep(1.0)
        assert (watch.is_stalled, engine.requests) == (False, [])
        beats.close()

    run_in_virtual_time(story())


def test_a_probe_that_fails_is_followed_by_another_one_and_ends_no_beats() -> None:
    async def story() -> None:
        engine, watch, beats = watched()
        engine.requests.append("client's")
        engine.is_dead = True
        await asyncio.sleep(10.0)
        assert watch.is_stalled
        engine.is_dead = False
        await asyncio.sleep(1.0)
        assert [each.startswith("probe-") for each in engine.requests] == [False, True]
        beats.close()
        watch.close()

    run_in_virtual_time(story())


def test_a_beat_that_raises_is_not_the_last_one() -> None:
    async def story() -> None:
        count = 0

        def beat() -> None:
            nonlocal count
            count += 1
            raise RuntimeError("not this time")

        beats = Beats(beat)
        await asyncio.sleep(5.1)
        beats.close()
        assert count == 11

    run_in_virtual_time(story())
