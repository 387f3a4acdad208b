import asyncio

import pytest

from engines import StallDetector
from engines.vllm.liveness import answered
from policies.errors import EngineUnavailable
from tests.engines.virtual_time import run_in_virtual_time


class Watch:
    """A detector that has looked at a busy engine at 0 s, and at its tenth step."""

    def __init__(self) -> None:
        self._detector = StallDetector(stall_after_s=30.0)
        assert not self.looks(at_s=0.0, num_steps=10)

    def looks(self, *, at_s: float, num_steps: int, num_requests: int = 1) -> bool:
        return self._detector.is_stalled(num_steps, num_requests, at_s)


def test_an_engine_with_requests_and_without_steps_has_stalled_when_the_time_is_up() -> None:
    watch = Watch()

    assert not watch.looks(at_s=29.9, num_steps=10)
    assert watch.looks(at_s=30.0, num_steps=10)


def test_it_stays_stalled_until_it_makes_a_step() -> None:
    watch = Watch()

    assert watch.looks(at_s=31.0, num_steps=10)
    assert watch.looks(at_s=32.0, num_steps=10)
    assert not watch.looks(at_s=33.0, num_steps=11)


def test_every_step_starts_the_time_anew() -> None:
    watch = Watch()

    assert not watch.looks(at_s=29.0, num_steps=11)
    assert not watch.looks(at_s=58.0, num_steps=11)
    assert watch.looks(at_s=59.0, num_steps=11)


def test_an_idle_engine_makes_no_steps_and_has_not_stalled() -> None:
    watch = Watch()

    assert not watch.looks(at_s=1000.0, num_steps=10, num_requests=0)
    assert not watch.looks(at_s=2000.0, num_steps=10, num_requests=0)


def test_time_spent_idle_does_not_count() -> None:
    watch = Watch()
    watch.looks(at_s=1000.0, num_steps=10, num_requests=0)

    assert not watch.looks(at_s=1029.0, num_steps=10)
    assert watch.looks(at_s=1030.0, num_steps=10)


def test_the_first_look_is_never_a_stall() -> None:
    assert not StallDetector(stall_after_s=1.0).is_stalled(num_steps=0, num_requests=5, now_s=10_000.0)


class Core:
    """An engine core that answers a call after so many seconds, and dies after so many."""

    def __init__(self, *, answers_s: float, dies_s: float, answer: int | Exception = 1) -> None:
        self._answers_s, self._dies_s, self._answer = answers_s, dies_s, answer

    async def call(self) -> int:
        await asyncio.sleep(self._answers_s)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def check_health(self) -> None:
        if asyncio.get_running_loop().time() >= self._dies_s:
            raise EngineUnavailable("it is dead")

    async def asked(self) -> int:
        return await answered(self.call(), self.check_health)


def test_a_slow_call_is_waited_for_while_the_engine_lives() -> None:
    assert run_in_virtual_time(Core(answers_s=100.5, dies_s=200.0).asked()) == 1


@pytest.mark.parametrize("answers_s", [9.0, 1e9])
def test_a_call_that_a_dead_engine_left_without_an_answer_ends(answers_s: float) -> None:
    with pytest.raises(EngineUnavailable):
        run_in_virtual_time(Core(answers_s=answers_s, dies_s=3.0).asked())


@pytest.mark.parametrize(("dies_s", "raised"), [(9.0, ValueError), (0.5, EngineUnavailable)])
def test_what_a_call_raises_is_the_callers_unless_the_engine_is_dead(dies_s: float, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        run_in_virtual_time(Core(answers_s=0.5, dies_s=dies_s, answer=ValueError("no")).asked())
