"""Long texts in the time that cores have left, and in a share of one where they have none."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from itertools import permutations
from pathlib import Path

import psutil
import pytest

from deployments.tokenizing.checkpoint import load
from deployments.tokenizing.encoding_messages import Encoded, Wanted
from deployments.tokenizing.encoding_process import EncodingFailed, EncodingLost, EncodingProcess, Source
from deployments.tokenizing.encoding_program import NUM_AT_A_TIME
from deployments.tokenizing.hedged_encoding import HedgedEncoding
from tests.waiting import until_here

MODEL = Path(__file__).parents[3] / ".models" / "tiny-llama"
TEXT = "queues and lanes " * 2_000
HEDGE_AFTER = "deployments.tokenizing.hedged_encoding.HEDGE_AFTER_S"


class Encodes:
    """In the place of a process: a text is done when the test says so.

    Args:
        name: Answers have as many tokens as it has letters.
    """

    def __init__(self, name: str) -> None:
        self.asked: list[asyncio.Future[None]] = []
        self.name = name

    async def encode(self, text: str, add_special_tokens: bool, wanted: Wanted) -> Encoded:
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]
        return Encoded(0, len(self.name))

    async def loaded(self) -> None: ...

    def close(self) -> None: ...


class Doubles:
    """What encodes, over two doubles of its processes."""

    def __init__(self, source: Source) -> None:
        self.encoding = HedgedEncoding(source)
        self.spare, self.share = Encodes("spare"), Encodes("its share")
        self.encoding._spare = self.spare  # type: ignore[assignment]
        self.encoding._share = self.share  # type: ignore[assignment]

    def end(self) -> None:
        """All texts are done."""
        for each in (*self.spare.asked, *self.share.asked):
            if not each.done():
                each.set_result(None)

    def ask(self) -> "asyncio.Task[Encoded]":
        return asyncio.create_task(self.encoding.encode("", True, Wanted.COUNT))


async def _until_asked(process: Encodes, number: int = 1) -> None:
    await until_here(lambda: len(process.asked) >= number)


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source(load(str(MODEL)), str(MODEL))
    yield made
    made.close()


@pytest.fixture
async def doubles(source: Source) -> AsyncIterator[Doubles]:
    made = Doubles(source)
    yield made
    made.end()
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=1)


@pytest.fixture
async def encoding(source: Source) -> AsyncIterator[HedgedEncoding]:
    made = HedgedEncoding(source)
    yield made
    made.close()
    await asyncio.sleep(0)


def _pid(process: EncodingProcess) -> int:
    return process._running.pid


async def test_a_text_that_is_done_in_time_is_encoded_once(doubles: Doubles) -> None:
    asking = doubles.ask()
    await _until_asked(doubles.spare)
    doubles.spare.asked[0].set_result(None)

    assert (await asking).num_tokens == len("spare")
    assert not doubles.share.asked


async def test_one_that_is_not_done_in_time_goes_to_the_other_too_and_who_is_first_answers(
    doubles: Doubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HEDGE_AFTER, 0.0)
    first, second = doubles.ask(), doubles.ask()
    await _until_asked(doubles.share, 2)
    doubles.spare.asked[0].set_result(None)
    doubles.share.asked[1].set_result(None)

    assert (await first).num_tokens == len("spare")
    assert (await second).num_tokens == len("its share")


async def test_no_text_waits_behind_those_that_could_not_be_done_in_time(
    doubles: Doubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HEDGE_AFTER, 0.0)
    late = [doubles.ask() for _ in range(NUM_AT_A_TIME)]
    await _until_asked(doubles.share, NUM_AT_A_TIME)
    for each in doubles.share.asked:
        each.set_result(None)
    await asyncio.gather(*late)
    monkeypatch.setattr(HEDGE_AFTER, 1e9)
    at_once = doubles.ask()
    await _until_asked(doubles.share, NUM_AT_A_TIME + 1)
    doubles.share.asked[-1].set_result(None)
    assert (await at_once).num_tokens == len("its share")

    doubles.spare.asked[0].set_result(None)
    await asyncio.sleep(0)
    doubles.ask()
    await _until_asked(doubles.spare, NUM_AT_A_TIME + 1)


async def test_where_the_other_has_no_place_nothing_is_hedged(
    doubles: Doubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HEDGE_AFTER, 0.0)
    hedged = [doubles.ask() for _ in range(NUM_AT_A_TIME)]
    await _until_asked(doubles.share, NUM_AT_A_TIME)
    for each in doubles.spare.asked:
        each.set_result(None)
    assert [(await each).num_tokens for each in hedged] == [len("spare")] * NUM_AT_A_TIME

    asking = doubles.ask()
    await _until_asked(doubles.spare, NUM_AT_A_TIME + 1)
    await asyncio.wait({asking}, timeout=0.01)
    assert len(doubles.share.asked) == NUM_AT_A_TIME
    doubles.spare.asked[-1].set_result(None)
    assert (await asking).num_tokens == len("spare")


async def test_where_one_process_is_lost_the_other_answers(doubles: Doubles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HEDGE_AFTER, 0.0)
    for number, (lost, other) in enumerate(permutations((doubles.spare, doubles.share))):
        asking = doubles.ask()
        await _until_asked(doubles.share, number + 1)
        lost.asked[-1].set_exception(EncodingLost())
        await asyncio.wait({asking}, timeout=0.01)
        other.asked[-1].set_result(None)

        assert (await asking).num_tokens == len(other.name)


async def test_a_text_that_both_are_lost_with_is_lost(doubles: Doubles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HEDGE_AFTER, 0.0)
    asking = doubles.ask()
    await _until_asked(doubles.share)
    for each in (doubles.share, doubles.spare):
        each.asked[0].set_exception(EncodingLost())
    with pytest.raises(EncodingLost):
        await asking


async def test_what_a_text_fails_of_is_heard_of_whoever_finds_out(
    doubles: Doubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HEDGE_AFTER, 0.0)
    asking = doubles.ask()
    await _until_asked(doubles.share)
    doubles.share.asked[0].set_exception(EncodingFailed("no such letter"))
    with pytest.raises(EncodingFailed):
        await asking


async def test_a_process_that_gets_no_core_holds_no_text_up(
    encoding: HedgedEncoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HEDGE_AFTER, 1e9)
    first = await encoding.encode(TEXT, True, Wanted.IDS)
    os.kill(_pid(encoding._spare), signal.SIGSTOP)
    monkeypatch.setattr(HEDGE_AFTER, 0.0)

    assert (await encoding.encode(TEXT, True, Wanted.IDS)).ids == first.ids
    os.kill(_pid(encoding._spare), signal.SIGCONT)


async def test_one_process_has_spare_time_and_is_the_only_one_where_there_is_enough(
    encoding: HedgedEncoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HEDGE_AFTER, 1e9)
    await encoding.encode("a", True, Wanted.COUNT)

    pid = _pid(encoding._spare)
    others = {each.id for each in psutil.Process(pid).threads()} - {pid}
    assert {os.sched_getscheduler(each) for each in others} == {os.SCHED_IDLE}
    assert os.sched_getscheduler(pid) == os.SCHED_OTHER, "which hears of its gateway's end"
    assert not _pid(encoding._share)
