"""The process that encodes long texts: what it gives, and what becomes of it when anybody dies."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deployments.tokenizing.checkpoint import load
from deployments.tokenizing.encoding_messages import Encoded, Text, Wanted
from deployments.tokenizing.encoding_process import EncodingFailed, EncodingLost, EncodingProcess, Source
from deployments.tokenizing.encoding_program import NICENESS, Encoding, Listed, encoded, whole
from tests.waiting import until_here

MODEL = Path(__file__).parents[3] / ".models" / "tiny-llama"
TEXT = "queues and lanes " * 2_000


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source(load(str(MODEL)), str(MODEL))
    yield made
    made.close()


def _pid(process: EncodingProcess) -> int:
    return process._running.pid


async def test_the_next_one_answers_where_the_first_was_killed(source: Source) -> None:
    process = EncodingProcess(source)
    first = await process.encode(TEXT, True, Wanted.IDS)
    pid = _pid(process)
    os.kill(pid, signal.SIGSTOP)
    asking = [asyncio.create_task(process.encode(TEXT, True, Wanted.IDS)) for _ in range(2)]
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)

    assert [each.ids for each in await asyncio.gather(*asking)] == [first.ids] * 2
    assert _pid(process) != pid
    process.close()
    await asyncio.sleep(0)


async def test_a_text_that_the_process_ends_with_twice_is_lost(source: Source) -> None:
    process = EncodingProcess(source)
    await process.encode("a", True, Wanted.COUNT)
    killed = set[int]()

    async def kill() -> None:
        while len(killed) < 2:
            if _pid(process) not in killed:
                killed.add(_pid(process))
                os.kill(_pid(process), signal.SIGKILL)
            await asyncio.sleep(0)

    os.kill(_pid(process), signal.SIGSTOP)
    killing = asyncio.create_task(kill())
    with pytest.raises(EncodingLost):
        await process.encode(TEXT, True, Wanted.COUNT)
    await killing
    assert (await process.encode("a", False, Wanted.COUNT)).num_tokens == 1, "others are not"
    process.close()
    await asyncio.sleep(0)


async def test_a_process_that_can_not_be_started_is_a_lost_one(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    process = EncodingProcess(source)
    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(EncodingLost):
        await process.encode("a", True, Wanted.COUNT)
    monkeypatch.undo()
    assert (await process.encode("a", False, Wanted.COUNT)).num_tokens == 1, "the next one may be"
    process.close()
    await asyncio.sleep(0)


async def test_the_process_gives_way_and_ends_with_its_gateway(source: Source) -> None:
    process = EncodingProcess(source)
    await process.encode("a", True, Wanted.COUNT)
    running = psutil.Process(_pid(process))
    assert running.nice() == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)

    process.close()
    await asyncio.sleep(0)
    await until_here(lambda: not running.is_running())


def test_the_process_ends_where_its_gateway_is_killed() -> None:
    program = """
import asyncio, sys
from deployments.tokenizing.checkpoint import load
from deployments.tokenizing.encoding_process import EncodingProcess, Source
from deployments.tokenizing.encoding_messages import Wanted

async def main(path):
    process = EncodingProcess(Source(load(path), path))
    await process.encode("a", True, Wanted.COUNT)
    print(process._running.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(sys.argv[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(MODEL)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=MODEL.parents[1]) as gateway:
        assert gateway.stdout is not None
        beside = psutil.Process(int(gateway.stdout.readline()))
        gateway.kill()
    with suppress(psutil.NoSuchProcess):
        beside.wait(20)


def test_a_tokenizer_that_fails_on_a_text_says_so() -> None:
    def fail(text: str, add_special_tokens: bool) -> Encoding:
        raise ValueError("no such letter")

    found = encoded(Text(3, "\u00e9", True, Wanted.IDS), fail)
    assert (found.number, found.error) == (3, "ValueError: no such letter")
    listed = encoded(Text(4, "a", True, Wanted.JSON), lambda text, specials: Listed([5, 6]))
    assert (listed.num_tokens, listed.ids) == (2, b"[5,6]")


async def test_any_tokenizer_of_transformers_will_do(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "arguments", ("whole", str(MODEL)))
    process = EncodingProcess(source)
    found = await process.encode("a lane", True, Wanted.IDS)
    process.close()
    await asyncio.sleep(0)

    assert found.ids == encoded(Text(0, "a lane", True, Wanted.IDS), whole(str(MODEL))).ids


async def test_what_the_tokenizer_fails_on_is_told(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        async def encode(self, *_: object) -> Encoded:
            return Encoded(0, error="ValueError: no such letter")

    async def started() -> Fails:
        return Fails()

    process = EncodingProcess(source)
    monkeypatch.setattr(process, "_started", started)
    with pytest.raises(EncodingFailed, match="no such letter"):
        await process.encode("a", True, Wanted.IDS)
    process.close()
