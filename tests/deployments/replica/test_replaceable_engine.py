"""Another engine takes the place of a replica's, between two requests."""

import asyncio

import pytest

from deployments.replica.replaceable_engine import HEARD_S, ReplaceableEngine
from tests.engines.scripted_engine import ScriptedEngine
from tests.engines.virtual_time import run_in_virtual_time

START_S = 30.0
PATIENCE_S = 20.0


class Ending(ScriptedEngine):
    """Remembers that it was ended."""

    is_ended = False

    async def shutdown(self) -> None:
        self.is_ended = True


async def starting() -> Ending:
    await asyncio.sleep(START_S)
    return Ending()


async def failing() -> Ending:
    raise OSError("no such weights")


def test_gateways_hear_of_it_first_then_the_engine_finishes_and_another_one_starts() -> None:
    async def story() -> None:
        first, is_busy = Ending(), True
        replaceable = ReplaceableEngine(first)
        change = asyncio.create_task(replaceable.replace(starting, lambda: not is_busy, PATIENCE_S))
        await asyncio.sleep(HEARD_S + 3.0)
        assert (replaceable.is_leaving, replaceable.is_there, first.is_ended) == (True, True, False)
        is_busy = False
        await asyncio.sleep(1.0)
        assert (replaceable.is_leaving, replaceable.is_there, first.is_ended) == (True, False, True)
        late = asyncio.create_task(replaceable.there())
        await change
        assert (replaceable.is_leaving, replaceable.is_there) == (False, True)
        assert await late is replaceable.now is not first

    run_in_virtual_time(story())


def test_what_takes_too_long_to_finish_is_ended() -> None:
    async def story() -> None:
        first = Ending()
        replaceable = ReplaceableEngine(first)
        await replaceable.replace(starting, lambda: False, PATIENCE_S)
        now_s = asyncio.get_running_loop().time()
        assert now_s == pytest.approx(HEARD_S + PATIENCE_S + START_S)
        assert first.is_ended

    run_in_virtual_time(story())


def test_one_that_does_not_start_leaves_the_replica_out_of_service_and_lets_nobody_wait() -> None:
    async def story() -> None:
        replaceable = ReplaceableEngine(Ending())
        with pytest.raises(OSError, match="no such weights"):
            await replaceable.replace(failing, lambda: True, PATIENCE_S)
        assert replaceable.is_leaving
        assert (await replaceable.there()) is replaceable.now

    run_in_virtual_time(story())
