"""The vLLM engine against the contract, on the tiny model; and what happens to its processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
import psutil
import pytest
import pytest_asyncio

from cluster.clock import MonotonicClock
from engines import Chunk, Engine, EngineRequest, Sampling, StallDetector, check_engine, check_handoff, check_kv_events
from engines.contract import StructuredOutput
from engines.vllm.nixl.leases import HELD_UNTIL, time_of_day_s
from policies.errors import EngineDied, EngineUnavailable, KvTransferFailed, RequestInvalid
from policies.views import Role
from tests.engines.emulated_engines import tokens
from tests.engines.vllm_engines import engine_environment, is_engine_core, running
from tests.process_watch import has_ended
from tests.waiting import PATIENCE_S, until, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]  # three engines start, each in a minute where cores are slow

SMALL_CACHE_BLOCKS = 80
"""Of 128 tokens: one request of full length fits, and little beside it."""
PROMPT_LENGTHS = (5, 50, 700, 3000, 7000)


@dataclass(frozen=True, slots=True)
class Engines:
    """One of each role, and the engine core of the first."""

    unified: Engine
    prefill: Engine
    decode: Engine
    core: psutil.Process


@pytest_asyncio.fixture(scope="module")
async def engines() -> AsyncIterator[Engines]:
    """One of each role, with no processes left when all are shut down."""
    before = processes_of_engines()
    async with engine_environment(), AsyncExitStack() as stack:
        unified = await stack.enter_async_context(
            running(Role.UNIFIED, kv_events=True, num_gpu_blocks_override=SMALL_CACHE_BLOCKS)
        )
        core = engine_core(processes_of_engines() - before)
        prefill = await stack.enter_async_context(running(Role.PREFILL))
        decode = await stack.enter_async_context(running(Role.DECODE))
        started_by_them = processes_of_engines() - before
        yield Engines(unified, prefill, decode, core)
    wait_until(lambda: all_have_ended(started_by_them), "shutdown leaves no child process behind")


async def test_an_engine_says_what_comes_into_its_prefix_cache_and_goes_from_it(engines: Engines) -> None:
    assert len(await check_kv_events(engines.unified)) == 2


async def test_the_engine_keeps_the_contract(engines: Engines) -> None:
    passed = await check_engine(engines.unified)

    assert len(passed) >= 12


async def test_a_handoff_gives_the_tokens_that_one_engine_gives(engines: Engines) -> None:
    await check_handoff(engines.unified, engines.prefill, engines.decode, PROMPT_LENGTHS)

    assert engines.decode.stats().kv_bytes_received_total > 0
    assert engines.decode.stats().kv_transfer_failures_total == 0


async def test_a_prefill_says_what_it_found_cached_and_its_decode_says_the_same(engines: Engines) -> None:
    prompt = [1 + position % 700 for position in range(1000)]
    sampling = Sampling(max_tokens=2, temperature=0.0, ignore_eos=True)
    said = []
    for name in ("cached-a", "cached-b"):
        asked = EngineRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling)
        handle = await engines.prefill.prefill(asked)
        decoded, *_ = [chunk async for chunk in engines.decode.decode(asked, handle)]
        said.append((handle.cached_tokens, decoded.cached_tokens))

    (first, first_decoded), (again, again_decoded) = said
    assert first == first_decoded == 0
    assert again == again_decoded
    assert again is not None
    assert 800 < again < 1000, "all but the last block"


async def test_engines_say_what_prompts_and_transfers_took(engines: Engines) -> None:
    clock = MonotonicClock()
    asked = EngineRequest(
        request_id="times",
        prompt_token_ids=[1 + position % 900 for position in range(3000)],
        sampling=Sampling(max_tokens=4, temperature=0.0, ignore_eos=True),
    )
    begun_s = clock.now_s()
    whole, *later = [chunk async for chunk in engines.unified.generate(asked)]
    answered_s = clock.now_s()
    handle = await engines.prefill.prefill(asked)
    prefilled_s = clock.now_s()
    begun, decoded, *_ = [chunk async for chunk in engines.decode.decode(asked, handle)]
    ended_s = clock.now_s()

    assert whole.times is not None
    assert 0.01 < whole.times.prefill_s < answered_s - begun_s
    assert {chunk.times for chunk in later} <= {None}
    assert 0.01 < handle.prefill_s < prefilled_s - answered_s
    assert begun.is_from_prefill
    assert decoded.times is not None
    assert decoded.times.prefill_s == 0
    assert 0 < decoded.times.kv_transfer_s < ended_s - prefilled_s


async def test_blocks_that_are_not_held_any_more_are_not_pulled(engines: Engines) -> None:
    """They may have been another prompt's for long; what has come of them must be in no prefix cache."""
    sampling = Sampling(max_tokens=8, temperature=0.0, ignore_eos=True)
    request = EngineRequest(
        request_id="late", prompt_token_ids=[3 + each % 90 for each in range(400)], sampling=sampling
    )
    expected = tokens([each async for each in engines.unified.generate(request)])
    handle = await engines.prefill.prefill(request)
    old = msgspec.structs.replace(handle, params={**handle.params, HELD_UNTIL: time_of_day_s() - 1.0})

    with pytest.raises(KvTransferFailed):
        async for _ in engines.decode.decode(request, old):
            pass

    again = msgspec.structs.replace(request, request_id="in-time")
    assert tokens([each async for each in engines.decode.decode(again, handle)]) == expected


async def test_a_stop_string_that_began_before_an_interruption_ends_the_request_in_the_engine(engines: Engines) -> None:
    """vLLM is not told of it, and would go on for thousands of tokens."""
    engine = engines.unified
    chunks = await read_to_the_end(engine, "whole", max_tokens=40)
    answer, text = tokens(chunks), "".join(chunk.text for chunk in chunks)
    before = "".join(chunk.text for chunk in await read_to_the_end(engine, "before", max_tokens=20))
    start = len(before) - 4
    stop = text[start : len(before) + 4]
    assert text.index(stop) == start
    output_tokens = engine.stats().output_tokens_total
    rest = EngineRequest(
        request_id="rest",
        prompt_token_ids=[5, 6, 7, 8, *answer[:20]],
        sampling=Sampling(max_tokens=6000, temperature=0.0, ignore_eos=True, stop=(stop,)),
        answered_tokens=20,
        answered_chars=start - 3,
    )

    chunks = [chunk async for chunk in engine.generate(rest)]

    assert "".join(chunk.text for chunk in chunks) == text[start - 3 : start]
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", stop)
    assert tokens(chunks) == answer[20 : 20 + len(tokens(chunks))]
    await until(lambda: engine.stats().num_requests_running == 0, "the engine has stopped")
    assert engine.stats().output_tokens_total < output_tokens + 1000


async def test_a_prefill_refuses_an_answer_that_can_not_have_been(engines: Engines) -> None:
    request = EngineRequest(
        request_id="wrong", prompt_token_ids=[5, 6], sampling=Sampling(max_tokens=4), answered_tokens=2
    )

    with pytest.raises(RequestInvalid):
        await engines.prefill.prefill(request)


async def test_a_grammar_that_no_allowed_token_goes_on_with_is_the_requests_fault(engines: Engines) -> None:
    """Or whoever sends such requests makes engines look sick."""
    sampling = Sampling(max_tokens=8, allowed_token_ids=(5,), structured_output=StructuredOutput("regex", "[0-9]{4}"))
    request = EngineRequest(request_id="contradictory", prompt_token_ids=[5, 6, 7], sampling=sampling)

    with pytest.raises(RequestInvalid, match="leave no token") as caught:
        async for _ in engines.unified.generate(request):
            pass

    assert caught.value.param == "structured_outputs"
    engines.unified.check_health()


async def test_a_suspended_engine_core_is_told_from_an_idle_one(engines: Engines) -> None:
    """Alive, answering nothing: only requests without steps give it away. It serves on when it is woken."""
    engine, detector, clock = engines.unified, StallDetector(stall_after_s=1.0), MonotonicClock()

    def is_stalled() -> bool:
        engine.check_health()
        stats = engine.stats()
        return detector.is_stalled(stats.num_steps, stats.num_requests_unfinished, clock.now_s())

    assert not is_stalled()
    stream = asyncio.create_task(read_to_the_end(engine, "through the stall", max_tokens=400))
    await until(lambda: engine.stats().num_requests_running == 1, "the stream runs")
    assert not is_stalled()
    cores = [each for each in processes_of_engines() if is_engine_core(each)]
    for core in cores:
        core.suspend()
    try:
        await until(is_stalled, "the stall is noticed")
    finally:
        for core in cores:
            core.resume()
    chunks = await asyncio.wait_for(stream, PATIENCE_S)

    assert sum(len(chunk.token_ids) for chunk in chunks) == 400
    assert not is_stalled()


async def test_the_orphan_guard_watches_every_process_of_an_engine(engines: Engines) -> None:
    children = psutil.Process().children(recursive=True)
    watched = {int(pid) for child in children for pid in guarded_by(child)}

    cores = {child.pid for child in children if "VLLM" in child.name() or "VLLM" in " ".join(child.cmdline())}
    assert len(cores) >= 3
    assert cores <= watched


async def test_a_dead_engine_core_is_noticed_and_ends_open_streams(engines: Engines) -> None:
    """Comes last: the engine is dead after it. That nothing is left of it is for the fixture to see."""
    engine = engines.unified
    streams = [asyncio.create_task(read_to_the_end(engine, f"stream-{n}")) for n in range(3)]
    await until(lambda: engine.stats().num_requests_running == 3, "the streams run")
    engine.check_health()

    engines.core.kill()

    ends = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), PATIENCE_S)
    assert [type(end) for end in ends] == [EngineDied] * 3
    with pytest.raises(EngineUnavailable):
        engine.check_health()
    with pytest.raises(EngineUnavailable):
        await read_to_the_end(engine, "too late")


async def read_to_the_end(engine: Engine, request_id: str, max_tokens: int = 8000) -> list[Chunk]:
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    request = EngineRequest(request_id=request_id, prompt_token_ids=[5, 6, 7, 8], sampling=sampling)
    return [chunk async for chunk in engine.generate(request)]


def engine_core(processes: set[psutil.Process]) -> psutil.Process:
    (core,) = [each for each in processes if is_engine_core(each)]
    return core


def guarded_by(process: psutil.Process) -> list[str]:
    """The process ids that an orphan guard's shell was given; none for any other process."""
    command = process.cmdline()
    return command[command.index("orphan-guard") + 1 :] if "orphan-guard" in command else []


def processes_of_engines() -> set[psutil.Process]:
    """All children of this process, but for Python's own bookkeeper, which stays for the next engine."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if is_an_engines(child)}


def is_an_engines(child: psutil.Process) -> bool:
    """Whether it is not Python's own, nor one of another test's that has ended and was not waited for yet."""
    try:
        return "multiprocessing.resource_tracker" not in " ".join(child.cmdline())
    except psutil.NoSuchProcess:
        return False


def all_have_ended(processes: set[psutil.Process]) -> bool:
    return all(has_ended(each) for each in processes)
