"""The process that encodes long texts: what it gives, and what becomes of it when anybody dies."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deployments.tokenizing.checkpoint import load
from deployments.tokenizing.encoding_messages import Encoded, Priority, Text, Wanted, message
from deployments.tokenizing.encoding_process import EncodingFailed, EncodingLost, EncodingProcess, Source
from deployments.tokenizing.encoding_program import NICENESS, Encoding, Listed, encoded, serve, whole
from tests.tables import for_each
from tests.waiting import PATIENCE_S, until_here

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
    process = EncodingProcess(source, Priority.SHARE)
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
    process = EncodingProcess(source, Priority.SHARE)
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

    process = EncodingProcess(source, Priority.SHARE)
    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(EncodingLost):
        await process.encode("a", True, Wanted.COUNT)
    monkeypatch.undo()
    assert (await process.encode("a", False, Wanted.COUNT)).num_tokens == 1, "the next one may be"
    process.close()
    await asyncio.sleep(0)


async def test_the_process_gives_way_and_ends_with_its_gateway(source: Source) -> None:
    process = EncodingProcess(source, Priority.SHARE)
    await process.encode("a", True, Wanted.COUNT)
    running = psutil.Process(_pid(process))
    assert running.nice() == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)

    process.close()
    await asyncio.sleep(0)
    await until_here(lambda: not running.is_running())


@for_each("text", ["a", "queues and lanes " * 400_000], ids=["idle", "busy"])
def test_the_process_ends_where_its_gateway_is_killed(text: str) -> None:
    program = """
import asyncio, sys
from deployments.tokenizing.checkpoint import load
from deployments.tokenizing.encoding_process import EncodingProcess, Source
from deployments.tokenizing.encoding_messages import Priority, Wanted

async def main(path):
    process = EncodingProcess(Source(load(path), path), Priority.SPARE)
    await process.encode("a", True, Wanted.COUNT)
    encoding = asyncio.create_task(process.encode(sys.stdin.read(), True, Wanted.COUNT))
    await asyncio.sleep(0.1)
    print(process._running.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(sys.argv[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(MODEL)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=MODEL.parents[1]) as gateway:
        assert gateway.stdin is not None
        assert gateway.stdout is not None
        gateway.stdin.write(text.encode())
        gateway.stdin.close()
        beside = psutil.Process(int(gateway.stdout.readline()))
        gateway.kill()
    with suppress(psutil.NoSuchProcess):
        beside.wait(PATIENCE_S)


def test_a_tokenizer_that_fails_on_a_text_says_so() -> None:
    def fail(text: str, add_special_tokens: bool) -> Encoding:
        raise ValueError("no such letter")

    found = encoded(Text(3, "\u00e9", True, Wanted.IDS), fail)
    assert (found.number, found.error) == (3, "ValueError: no such letter")

    def panic(text: str, add_special_tokens: bool) -> Encoding:
        raise BaseException("as a panic of Rust's is")

    assert encoded(Text(5, "a", True, Wanted.COUNT), panic).error == "BaseException: as a panic of Rust's is"
    listed = encoded(Text(4, "a", True, Wanted.JSON), lambda text, specials: Listed([5, 6]))
    assert (listed.num_tokens, listed.ids) == (2, b"[5,6]")


async def test_any_tokenizer_of_transformers_will_do(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "arguments", ("whole", str(MODEL)))
    process = EncodingProcess(source, Priority.SHARE)
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

    process = EncodingProcess(source, Priority.SHARE)
    monkeypatch.setattr(process, "_started", started)
    with pytest.raises(EncodingFailed, match="no such letter"):
        await process.encode("a", True, Wanted.IDS)
    process.close()


async def test_an_answer_that_can_not_be_given_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the gateway hears of it, and no text waits for ever."""
    ends = list[int]()
    monkeypatch.setattr("deployments.tokenizing.encoding_program.os._exit", ends.append)
    monkeypatch.setattr("deployments.tokenizing.encoding_program.message", lambda content: 1 / 0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(message(Text(0, "a", True, Wanted.COUNT)))
        ours.shutdown(socket.SHUT_WR)
        await asyncio.to_thread(serve, theirs, lambda text, specials: Listed([1]), ThreadPoolExecutor(1))
        await until_here(lambda: ends == [1])


async def test_what_waits_when_it_is_closed_is_lost_and_nothing_is_started_any_more(source: Source) -> None:
    process = EncodingProcess(source, Priority.SHARE)
    await process.encode("a", True, Wanted.COUNT)
    pid = _pid(process)
    os.kill(pid, signal.SIGSTOP)
    asking = asyncio.create_task(process.encode(TEXT, True, Wanted.IDS))
    await asyncio.sleep(0)
    process.close()
    with pytest.raises(EncodingLost):
        await asking
    with pytest.raises(EncodingLost):
        await process.encode("a", True, Wanted.COUNT)
    assert _pid(process) == pid


async def test_it_is_loaded_before_it_encodes_and_waiting_for_that_ends_with_it(source: Source) -> None:
    process = EncodingProcess(source, Priority.SHARE)
    await process.loaded()
    assert process._running._has_loaded.is_set()  # type: ignore[attr-defined]
    os.kill(_pid(process), signal.SIGKILL)
    await until_here(lambda: process._running.is_over)

    await process.loaded()
    process.close()
    await process.loaded()


async def test_processes_load_at_the_same_time(source: Source) -> None:
    """Both from one open file, which has one place to read at."""
    processes = [EncodingProcess(source, priority) for priority in (*Priority, *Priority)]
    answers = await asyncio.gather(*(each.encode(TEXT, True, Wanted.COUNT) for each in processes))
    pids = {_pid(each) for each in processes}
    for each in processes:
        each.close()
    await asyncio.sleep(0)

    assert len({each.num_tokens for each in answers}) == 1
    assert len(pids) == len(processes)


async def test_one_that_is_closed_while_it_is_started_ends(source: Source) -> None:
    process = EncodingProcess(source, Priority.SHARE)
    asking = asyncio.create_task(process.encode(TEXT, True, Wanted.IDS))
    await asyncio.sleep(0)
    process.close()
    with pytest.raises(EncodingLost):
        await asking
    await until_here(lambda: not _pid(process) or not psutil.pid_exists(_pid(process)))


async def test_what_is_not_in_a_tokenizers_json_is_not_lost() -> None:
    """Whether special tokens in a text are taken for text."""
    tokenizer = load(str(MODEL))
    special = tokenizer.all_special_tokens[0]
    tokenizer.backend_tokenizer.encode_special_tokens = True
    source = Source(tokenizer, str(MODEL))
    assert source.arguments == ("whole", str(MODEL))
    source.close()
    plain_source = Source(load(str(MODEL)), str(MODEL))
    process = EncodingProcess(plain_source, Priority.SHARE)
    assert (await process.encode(special, False, Wanted.COUNT)).num_tokens == 1
    process.close()
    await asyncio.sleep(0)
