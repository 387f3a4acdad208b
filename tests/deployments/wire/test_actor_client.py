"""Questions to an actor that may not be there, with look-ups that end when the test says so."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from deployments.wire.actor_client import ActorClient, NoAnswerError
from tests.waiting import PATIENCE_S, until

SHORT_S = 0.01
MANY = 40
"""More than a default pool has threads on most machines."""


class Actor:
    """Answers at once, with its name, until it is killed."""

    def __init__(self, name: str = "a") -> None:
        self._name = name
        self.is_dead = False
        self.greet = self

    def remote(self, greeting: str) -> Any:
        return self._answer(greeting)

    async def _answer(self, greeting: str) -> str:
        if self.is_dead:
            raise ActorDiedError
        return f"{greeting} {self._name}"


class LookUp:
    """Hangs until it is let go, and gives an actor then, or raises."""

    def __init__(self, result: Actor | Exception) -> None:
        self._result = result
        self._may_end = threading.Event()
        self.threads: list[str] = []

    def __call__(self) -> Actor:
        self.threads.append(threading.current_thread().name)
        assert self._may_end.wait(PATIENCE_S)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def end(self) -> None:
        self._may_end.set()


@pytest.fixture
def hanging() -> Iterator[Callable[[Actor | Exception], LookUp]]:
    """Look-ups that hang no longer than their test."""
    made: list[LookUp] = []

    def make(result: Actor | Exception) -> LookUp:
        made.append(LookUp(result))
        return made[-1]

    yield make
    for each in made:
        each.end()


MakeLookUp = Callable[[Actor | Exception], LookUp]


def num_threads(what: str) -> int:
    return sum(each.name.startswith(f"find {what}") for each in threading.enumerate())


async def ask(client: ActorClient, patience_s: float = PATIENCE_S) -> str:
    answer: str = await client.ask("greet", "hello", patience_s=patience_s)
    return answer


async def ask_in_vain(client: ActorClient, patience_s: float = SHORT_S) -> None:
    with pytest.raises(NoAnswerError):
        await ask(client, patience_s)


async def test_a_look_up_that_hangs_takes_one_thread_however_often_the_actor_is_asked(hanging: MakeLookUp) -> None:
    find = hanging(Actor())
    client = ActorClient("the one", find)

    await asyncio.gather(*(ask_in_vain(client) for _ in range(MANY)))
    for _ in range(MANY // 10):
        await ask_in_vain(client)

    assert len(find.threads) == 1
    assert num_threads("the one") == 1
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.to_thread(lambda: "free") == "free", "nobody else's threads are in use"


async def test_what_a_look_up_finds_after_all_have_given_up_is_there_for_the_next_question(hanging: MakeLookUp) -> None:
    find = hanging(Actor())
    client = ActorClient("it", find)
    await ask_in_vain(client)
    find.end()

    assert await ask(client) == "hello a"
    assert await ask(client) == "hello a"
    assert len(find.threads) == 1


async def test_all_who_wait_for_a_look_up_get_their_answers(hanging: MakeLookUp) -> None:
    find = hanging(Actor())
    client = ActorClient("it", find)
    asked = [asyncio.create_task(ask(client)) for _ in range(3)]
    await until(lambda: len(find.threads) == 1, "the look-up")
    find.end()

    assert await asyncio.gather(*asked) == ["hello a"] * 3


async def test_after_a_look_up_that_fails_when_nobody_waits_any_more_the_next_question_looks_anew(
    hanging: MakeLookUp,
) -> None:
    first, second = hanging(ValueError("no actor of that name")), hanging(Actor("b"))
    second.end()
    look_ups = [first, second]

    def find() -> Actor:
        return look_ups.pop(0)()

    client = ActorClient("it", find)
    await ask_in_vain(client)
    first.end()

    with suppress(NoAnswerError):  # it may still wait for the first one
        await ask(client)

    assert await ask(client) == "hello b"


async def test_an_actor_that_died_is_looked_for_anew() -> None:
    actors = [Actor("a"), Actor("b")]
    first = actors[0]
    client = ActorClient("it", lambda: actors.pop(0))
    assert await ask(client) == "hello a"
    first.is_dead = True
    await ask_in_vain(client, PATIENCE_S)

    assert await ask(client) == "hello b"


async def test_an_answer_that_is_of_no_use_is_none() -> None:
    actors = [Actor("a"), Actor("b")]

    def check(answer: str) -> None:
        if answer == "hello a":
            raise ValueError("not this one")

    client = ActorClient("it", lambda: actors.pop(0), check)
    await ask_in_vain(client, PATIENCE_S)

    assert await ask(client) == "hello b"


async def test_what_is_no_loss_is_not_taken_for_one() -> None:
    def find() -> Actor:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await ask(ActorClient("it", find))


async def test_a_loss_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="ray.serve")
    actors: list[Actor] = []

    def find() -> Actor:
        if not actors:
            raise ValueError("no actor of that name")
        return actors[0]

    client = ActorClient("the one", find)
    for _ in range(3):
        await ask_in_vain(client, PATIENCE_S)
    actors.append(Actor())
    for _ in range(2):
        await ask(client)

    assert [record.getMessage() for record in caplog.records if record.name == "ray.serve"] == [
        "the one does not answer: ValueError: no actor of that name",
        "the one answers again",
    ]
