"""The emulated engine: the contract, its answers in time, its faults, and that nothing is left behind."""

import asyncio
import math
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from deployments.config import ROOT
from engines import (
    NO_ADAPTER,
    ONE_STEP,
    Adapter,
    Chunk,
    EngineRequest,
    FaultKind,
    Pooling,
    Sequence,
    StallDetector,
    StepModel,
    check_adapter_handoff,
    check_adapters,
    check_engine,
    check_handoff,
    check_kv_events,
    check_pooling,
)
from engines.contract import KvStored
from engines.emulated.engine import EmulatedEngine
from engines.emulated.kv_events import KvEvents
from engines.model.batching import BatchLimits
from policies.errors import (
    ConfigError,
    EngineAborted,
    EngineDied,
    EngineError,
    EngineUnavailable,
    KvTransferFailed,
    RequestInvalid,
)
from policies.views import Role
from tests.engines.emulated_engines import PROFILE, ask, is_idle, opened, read, running, settings, text, tokens, turns
from tests.tables import for_each
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("tokenizer", "no_task_is_left")

SLOW_LINK = msgspec.structs.replace(PROFILE, kv=msgspec.structs.replace(PROFILE.kv, transfer_overhead_s=10_000.0))
"""A transfer takes longer than any test waits."""


@dataclass(frozen=True, slots=True)
class Engines:
    unified: EmulatedEngine
    prefill: EmulatedEngine
    decode: EmulatedEngine


@pytest_asyncio.fixture
async def engines() -> AsyncIterator[Engines]:
    """One of each role."""
    async with running() as unified, running(Role.PREFILL) as prefill, running(Role.DECODE) as decode:
        yield Engines(unified, prefill, decode)


# -- the contract -----------------------------------------------------------------------------------------------------


async def test_the_engine_keeps_the_contract(engines: Engines) -> None:
    assert len(await check_engine(engines.unified)) >= 12


async def test_an_engine_says_what_comes_into_its_prefix_cache_and_goes_from_it() -> None:
    async with running(kv_events=True, context_tokens=2048, kv_capacity_tokens=4096) as engine:
        assert len(await check_kv_events(engine)) == 2


async def test_an_engine_that_nobody_asks_says_nothing_of_its_cache(engines: Engines) -> None:
    await read(engines.unified.generate(ask(prompt=list(range(100)))))

    assert engines.unified.take_kv_events() == []


async def test_text_is_forgotten_with_the_last_that_has_it(engines: Engines) -> None:
    """Requests that are stopped before their text is cached, while others have it still, and after."""
    async with running(kv_events=True, context_tokens=2048, kv_capacity_tokens=2048) as engine:
        texts = [list(range(number, number + 900)) for number in (0, 0, 1, 2)]
        streams = [opened(engine.generate(ask(f"q{number}", text))) for number, text in enumerate(texts)]
        await anext(streams[0])
        for stream in streams:
            await stream.aclose()
        await read(engine.generate(ask("last", [3 + position % 1000 for position in range(1900)], max_tokens=1)))
        engine.take_kv_events()

        assert len(cast(KvEvents, engine._kv_events)._units) == len(engine._host.model.steps.batch.blocks._cached)


async def test_what_is_cached_of_an_answer_that_was_stopped_is_said_when_its_step_is_over() -> None:
    async with running(kv_events=True) as engine:
        prompt = list(range(100))
        stream = opened(engine.generate(ask("stopped", prompt, max_tokens=2000)))
        num_tokens = 0
        while num_tokens < 50:
            num_tokens += len((await anext(stream)).token_ids)
        await stream.aclose()
        await until(lambda: is_idle(engine), "its step is over")

        said = [each.token_ids for each in engine.take_kv_events() if isinstance(each, KvStored)]
        text = [token for block in said for token in block]
        assert text[:96] == prompt[:96]
        assert len(text) >= 144
        units = cast(KvEvents, engine._kv_events)._units
        assert not units.keys() - engine._host.model.steps.batch.blocks._cached


async def test_a_handoff_gives_the_tokens_that_one_engine_gives(engines: Engines) -> None:
    await check_handoff(engines.unified, engines.prefill, engines.decode)

    await until(lambda: is_idle(engines.prefill), "what was pulled is not held any more")
    await until(lambda: is_idle(engines.decode), "the decode engine has nothing left")
    stats = engines.decode.stats()
    assert stats.kv_bytes_received_total == stats.kv_tokens_received_total * PROFILE.kv.bytes_per_token
    assert stats.kv_transfer_failures_total == 0


async def test_the_profile_can_be_overruled_where_it_fits() -> None:
    async with running(context_tokens=900, kv_capacity_tokens=1005, max_num_seqs=3) as engine:
        assert engine.info.context_tokens == 900
        assert engine.info.kv_capacity_tokens == 992
        assert engine.info.max_num_seqs == 3


async def test_a_context_that_does_not_fit_into_the_cache_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="max_model_len: got 1000; allowed: at most the KV cache's 992 tokens"):
        async with running(context_tokens=1000, kv_capacity_tokens=1005):
            pass


async def test_a_model_without_a_tokenizer_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path"):
        async with running(model=str(tmp_path)):
            pass


async def test_only_a_prefill_engine_holds_blocks(engines: Engines) -> None:
    with pytest.raises(KvTransferFailed):
        await engines.unified.prefill(ask())

    assert is_idle(engines.unified)


async def test_two_open_requests_of_one_name_are_not_mixed_up(engines: Engines) -> None:
    async with aclosing(opened(engines.unified.generate(ask(max_tokens=4000)))) as first:
        await anext(first)
        with pytest.raises(EngineError, match="open already"):
            await read(engines.unified.generate(ask()))
        assert (await anext(first)).token_ids


async def test_an_aborted_prefill_has_no_handle(engines: Engines) -> None:
    prefill = asyncio.create_task(engines.prefill.prefill(ask(prompt=[9] * 20_000)))
    await turns()

    await engines.prefill.abort("request")

    with pytest.raises(EngineAborted):
        await prefill
    await until(lambda: is_idle(engines.prefill), "it holds nothing")


async def test_shutdown_ends_open_streams_with_an_error() -> None:
    async with running() as engine:
        stream = asyncio.create_task(read(engine.generate(ask(max_tokens=100_000))))
        await until(lambda: engine.stats().num_requests_running == 1, "the stream runs")

    with pytest.raises(EngineUnavailable, match="shut down"):
        await stream


def test_an_emulated_engine_needs_neither_vllm_nor_torch_nor_transformers() -> None:
    """In a process of its own: this one has seen them all."""
    heavy = "{'vllm', 'torch', 'transformers', 'ray'}"
    script = f"import sys, engines.emulated.engine; print(sorted({heavy} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


# -- in time ----------------------------------------------------------------------------------------------------------


class HandDrivenClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def planned_s(num_tokens: int) -> list[float]:
    """When each token of a lone request leaves an engine, by the model alone."""
    model = StepModel(settings().spec())
    model.submit(Sequence("alone", 4, num_tokens), 0.0)
    times: list[float] = []
    while (at_s := model.next_event_s) < math.inf:
        model.advance(at_s)
        if model.batch.num_output_tokens > len(times):
            times.append(at_s + model.spec.token_overhead_s)
    return times


@for_each("speed", [1.0, 8.0])
async def test_after_a_late_wake_up_all_that_was_due_is_there_and_the_plan_goes_on(speed: float) -> None:
    clock, plan = HandDrivenClock(), planned_s(40)
    async with running(now_s=clock, speed=speed) as engine:
        stream = opened(engine.generate(ask(max_tokens=40)))
        looks = [(0, -1e-9, None), (0, 1e-9, 1), (20, -1e-9, 19), (20, 1e-9, 1), (39, -1e-9, 18), (39, 1e-9, 1)]
        reader: asyncio.Task[Chunk] | None = None
        for token, off_s, wanted in looks:
            reader = reader or asyncio.create_task(read_one(stream))
            await turns()
            clock.now_s = 100.0 + (plan[token] + off_s) / speed
            engine._host.catch_up()
            await turns()
            assert reader.done() == (wanted is not None), f"token {token}, {off_s} s from when it leaves"
            if reader.done():
                assert len(reader.result().token_ids) == wanted
                reader = None
        assert [chunk async for chunk in stream] == []


async def read_one(stream: AsyncIterator[Chunk]) -> Chunk:
    return await anext(stream)


async def test_what_a_slow_reader_missed_is_one_chunk() -> None:
    clock, plan = HandDrivenClock(), planned_s(40)
    async with running(now_s=clock, speed=1.0) as engine:
        stream = opened(engine.generate(ask(max_tokens=40)))
        reader = asyncio.ensure_future(anext(stream))
        await turns()
        for at_s in plan[:30]:
            clock.now_s = 100.0 + at_s + 1e-9
            engine._host.catch_up()

        assert len((await reader).token_ids) == 30
        for at_s in plan[30:]:
            clock.now_s = 100.0 + at_s + 1e-9
            engine._host.catch_up()
        assert [len(chunk.token_ids) async for chunk in stream] == [10]


# -- the prefix cache -------------------------------------------------------------------------------------------------


async def test_a_repeated_prompt_is_cached_but_for_its_last_block(engines: Engines) -> None:
    prompt = list(range(5, 5 + 100))
    first = await read(engines.unified.generate(ask(prompt=prompt)))
    again = await read(engines.unified.generate(ask(prompt=prompt)))

    assert {chunk.cached_tokens for chunk in first} == {0}
    assert {chunk.cached_tokens for chunk in again} == {96}


async def test_the_next_turn_finds_the_answer_of_the_last_one(engines: Engines) -> None:
    prompt = list(range(5, 5 + 100))
    answer = tokens(await read(engines.unified.generate(ask(prompt=prompt, max_tokens=60))))

    following = await read(engines.unified.generate(ask(prompt=[*prompt, *answer, 9, 9, 9])))

    assert following[0].cached_tokens == 144


async def test_without_prefix_caching_nothing_is_found_again() -> None:
    async with running(prefix_caching=False) as engine:
        for _ in range(2):
            chunks = await read(engine.generate(ask(prompt=[5] * 100)))
            assert chunks[0].cached_tokens == 0


async def test_a_decode_reports_what_the_prefill_found_cached(engines: Engines) -> None:
    said, cached = [], []
    for name in ("a", "b"):
        request = ask(name, prompt=[7] * 100)
        handle = await engines.prefill.prefill(request)
        said.append(handle.cached_tokens)
        cached.append((await read(engines.decode.decode(request, handle)))[0].cached_tokens)

    assert said == cached == [0, 96]
    assert engines.decode.stats().kv_tokens_received_total == 101 + 5  # each with its first token


# -- the handoff when something breaks --------------------------------------------------------------------------------


async def test_blocks_that_nobody_claims_are_freed_after_their_lease() -> None:
    async with running(Role.PREFILL, kv_lease_s=0.05) as prefill, running(Role.DECODE) as decode:
        handle = await prefill.prefill(ask())
        assert prefill.stats().kv_cache_usage > 0
        await until(lambda: is_idle(prefill), "the lease is over")

        with pytest.raises(KvTransferFailed, match="gone"):
            await read(decode.decode(ask(), handle))
        assert decode.stats().kv_transfer_failures_total == 1
        assert is_idle(decode)


async def test_blocks_that_are_given_up_are_free_at_once_unless_another_decode_pulls_them() -> None:
    async with running(Role.PREFILL) as prefill, running(Role.DECODE) as decode:
        handle = await prefill.prefill(ask())
        await decode.release_kv(handle)
        await until(lambda: is_idle(prefill), "they are free")
        with pytest.raises(KvTransferFailed, match="gone"):
            await read(decode.decode(ask(), handle))

        handle = await prefill.prefill(ask("pulled"))
        chunks = asyncio.create_task(read(decode.decode(ask("pulled"), handle)))
        await decode.release_kv(handle)
        assert tokens(await chunks)
        await until(lambda: is_idle(prefill), "they are free")


async def test_blocks_of_a_dead_prefill_engine_are_given_up_without_a_word() -> None:
    async with running(Role.DECODE) as decode:
        async with running(Role.PREFILL) as prefill:
            handle = await prefill.prefill(ask())
        await decode.release_kv(handle)


async def test_the_handle_of_a_dead_prefill_engine_fails() -> None:
    async with running(Role.DECODE) as decode:
        async with running(Role.PREFILL) as prefill:
            handle = await prefill.prefill(ask())

        with pytest.raises(KvTransferFailed, match="can't be reached"):
            await read(decode.decode(ask(), handle))
        assert is_idle(decode)


@pytest.mark.parametrize("params", [{}, {"host": "127.0.0.1"}, {"host": "127.0.0.1", "port": "x"}])
async def test_a_handle_of_another_kind_fails(engines: Engines, params: dict[str, Any]) -> None:
    handle = await engines.prefill.prefill(ask())

    with pytest.raises(KvTransferFailed):
        await read(engines.decode.decode(ask(), msgspec.structs.replace(handle, params=params)))


async def test_a_prefill_engine_that_dies_during_the_transfer_fails_the_decode() -> None:
    async with running(Role.DECODE, profile=SLOW_LINK) as decode:
        async with running(Role.PREFILL) as prefill:
            handle = await prefill.prefill(ask())
            stream = asyncio.create_task(read(decode.decode(ask(), handle)))
            await until(lambda: decode.stats().kv_cache_usage > 0, "the transfer has begun")

        with pytest.raises(KvTransferFailed, match="died"):
            await stream
        assert decode.stats().kv_transfer_failures_total == 1


async def test_blocks_of_a_decode_engine_that_died_serve_another_one() -> None:
    async with running(Role.PREFILL) as prefill, running(Role.DECODE) as decode:
        handle = await prefill.prefill(ask())
        async with running(Role.DECODE, profile=SLOW_LINK) as doomed:
            stream = asyncio.create_task(read(doomed.decode(ask(), handle)))
            await until(lambda: doomed.stats().kv_cache_usage > 0, "the transfer has begun")
            doomed.inject_fault(FaultKind.CRASH)
            with pytest.raises(EngineUnavailable):
                await stream

        assert len(tokens(await read(decode.decode(ask(), handle)))) == 40
        await until(lambda: is_idle(prefill), "they are freed when they were pulled")


async def test_a_first_token_of_the_prefills_waits_where_there_is_no_room_for_its_kv() -> None:
    kv = msgspec.structs.replace(PROFILE.kv, capacity_tokens=96)
    profile = msgspec.structs.replace(PROFILE, kv=kv, context_tokens=96)
    async with running(Role.PREFILL) as prefill, running(Role.DECODE, profile=profile, speed=0.1) as decode:
        whole = await read(prefill.generate(ask("whole", prompt=[7] * 42, max_tokens=8)))
        handle = await prefill.prefill(ask("b", prompt=[7] * 42, max_tokens=8))
        before = opened(decode.generate(ask("a", prompt=[9] * 60, max_tokens=30)))
        await anext(before)
        reading = asyncio.create_task(read(decode.decode(ask("b", prompt=[7] * 42, max_tokens=8), handle)))
        await until(lambda: decode.stats().num_requests_unfinished == 2, "the second one waits for room")
        await before.aclose()
        chunks = await reading

        assert handle.first is not None
        assert not chunks[0].is_from_prefill
        assert len(chunks[0].token_ids) >= 2, "it comes with one of the decode's own"
        assert (tokens(chunks), text(chunks)) == (tokens(whole), text(whole))


async def test_a_decode_that_is_closed_while_it_pulls_keeps_its_blocks_until_they_are_there() -> None:
    profile = msgspec.structs.replace(PROFILE, kv=msgspec.structs.replace(PROFILE.kv, transfer_overhead_s=60.0))
    async with running(Role.PREFILL) as prefill, running(Role.DECODE, profile=profile) as decode:
        handle = await prefill.prefill(ask())
        reader = asyncio.create_task(read(decode.decode(ask(), handle)))
        await until(lambda: decode.stats().kv_cache_usage > 0, "the transfer has begun")
        reader.cancel()
        await asyncio.wait([reader])
        await turns()

        assert decode.stats().num_requests_unfinished == 1
        assert prefill.stats().kv_cache_usage > 0
        await until(lambda: is_idle(decode) and is_idle(prefill), "the transfer is over")
        assert decode.stats().kv_tokens_received_total == 4 + 1


async def test_nothing_is_left_after_hundreds_of_requests_that_end_early() -> None:
    """Whether they are cancelled or aborted, before, during or after the handoff; the clock is driven by hand."""
    rng, clock = random.Random(3), HandDrivenClock()
    async with (
        running(now_s=clock) as unified,
        running(Role.PREFILL, now_s=clock, kv_lease_s=3600.0) as prefill,
        running(Role.DECODE, now_s=clock) as decode,
    ):
        trio = Engines(unified, prefill, decode)
        requests = asyncio.gather(*(_end_early(number, trio, rng) for number in range(200)))
        while not (requests.done() and all(map(_is_quiet, (unified, decode))) and not prefill._host.runs):
            clock.now_s += 0.0005
            for engine in (unified, prefill, decode):
                engine._host.catch_up()
            await asyncio.sleep(0)
        await requests
        await until(lambda: not prefill._host._kv_port.num_connections, "no connection is open")
        clock.now_s += 3600.0  # handles that never reached a decode: leases end what is held for them

        assert decode.stats().kv_tokens_received_total > 0, "some got as far as that"
        assert decode.stats().output_tokens_total > 0
        await until(lambda: is_idle(prefill), "the prefill engine is empty")


def _is_quiet(engine: EmulatedEngine) -> bool:
    return is_idle(engine) and not engine._host._kv_claims.num_open and not engine._readers


async def _end_early(number: int, engines: Engines, rng: random.Random) -> None:
    prompt = [5 + number % 50] * rng.randrange(1, 300)
    request = ask(str(number), prompt=prompt, max_tokens=rng.choice([1, 50, 5000]))
    is_split = rng.random() < 0.7
    task = asyncio.create_task(_hand_over(engines, request) if is_split else read(engines.unified.generate(request)))
    for _ in range(rng.randrange(400)):
        await asyncio.sleep(0)
    if rng.random() < 0.3:
        for engine in (engines.unified, engines.prefill, engines.decode):
            await engine.abort(request.request_id)
        await turns()
    task.cancel()
    await asyncio.wait([task])


async def _hand_over(engines: Engines, request: EngineRequest) -> list[Chunk]:
    handle = await engines.prefill.prefill(request)
    return await read(engines.decode.decode(request, handle))


# -- where the time goes ----------------------------------------------------------------------------------------------


@for_each("speed", [1.0, 8.0])
async def test_the_first_chunk_says_how_long_the_prompt_took(speed: float) -> None:
    clock, plan = HandDrivenClock(), planned_s(40)
    async with running(now_s=clock, speed=speed) as engine:
        chunks = []
        half_a_step_s = (plan[1] - plan[0]) / 2
        stream = opened(engine.generate(ask(max_tokens=40)))
        for token in (0, 39):
            reader = asyncio.create_task(read_one(stream))
            await turns()
            clock.now_s = 100.0 + (plan[token] + half_a_step_s) / speed
            engine._host.catch_up()
            chunks.append(await reader)

        first, last = chunks
        assert first.times is not None
        assert first.times.prefill_s == pytest.approx(plan[0] / speed), "and not when somebody came to read it"
        assert (first.times.kv_transfer_s, last.times) == (0.0, None)


async def test_each_side_of_a_handoff_says_what_it_took(engines: Engines) -> None:
    slow = msgspec.structs.replace(PROFILE, kv=msgspec.structs.replace(PROFILE.kv, transfer_overhead_s=2.0))
    async with running(Role.DECODE, profile=slow, speed=20.0) as decode:
        begun_s = asyncio.get_running_loop().time()
        handle = await engines.prefill.prefill(ask(prompt=[5] * 4000))
        prefilled_s = asyncio.get_running_loop().time()
        first, *later = await read(decode.decode(ask(prompt=[5] * 4000), handle))

    assert PROFILE.step.new_token_s * 4000 / 20.0 < handle.prefill_s < prefilled_s - begun_s
    assert first.times is not None
    assert first.times.prefill_s == 0.0
    assert first.times.kv_transfer_s > 2.0 / 20.0
    assert all(chunk.times is None for chunk in later)


# -- faults -----------------------------------------------------------------------------------------------------------


async def test_a_slow_engine_takes_a_factor_longer_until_it_is_well_again() -> None:
    clock, plan = HandDrivenClock(), planned_s(40)
    async with running(now_s=clock, speed=1.0) as engine:
        engine.inject_fault(FaultKind.SLOW, factor=10.0)
        stream = asyncio.create_task(read(engine.generate(ask(max_tokens=40))))
        await turns()
        clock.now_s += plan[-1]
        engine._host.catch_up()
        assert engine.stats().output_tokens_total in (3, 4)

        engine.clear_fault(FaultKind.SLOW)
        clock.now_s += plan[-1]
        engine._host.catch_up()
        await turns()
        assert stream.done()


async def test_a_stalled_engine_is_healthy_makes_no_step_and_is_found_out() -> None:
    detector = StallDetector(stall_after_s=5.0)
    async with running() as engine:
        engine.inject_fault(FaultKind.STALL)
        stream = asyncio.create_task(read(engine.generate(ask())))
        await turns()
        engine.check_health()
        stats = engine.stats()
        assert not detector.is_stalled(stats.num_steps, stats.num_requests_unfinished, 0.0)
        stats = engine.stats()
        assert detector.is_stalled(stats.num_steps, stats.num_requests_unfinished, 5.0)

        engine.clear_fault(FaultKind.STALL)

        assert len(tokens(await stream)) == 40


async def test_a_crash_ends_every_stream_and_stays() -> None:
    async with running(Role.PREFILL, speed=1.0) as engine:  # the prefill takes seconds, whatever else the machine does
        handle = await engine.prefill(ask("held"))
        streams = [asyncio.create_task(read(engine.generate(ask(str(n), max_tokens=9000)))) for n in range(3)]
        prefill = asyncio.create_task(engine.prefill(ask("prefill", prompt=[5] * 100_000)))
        await until(lambda: engine.stats().num_requests_running > 2, "they run")

        engine.inject_fault(FaultKind.CRASH, for_s=0.001)

        ends = await asyncio.gather(*streams, prefill, return_exceptions=True)
        assert [type(end) for end in ends] == [EngineDied] * 4
        engine.clear_fault(FaultKind.CRASH)
        with pytest.raises(EngineUnavailable):
            engine.check_health()
        with pytest.raises(EngineUnavailable):
            await read(engine.generate(ask("late")))
        async with running(Role.DECODE) as decode:
            with pytest.raises(KvTransferFailed):
                await read(decode.decode(ask("held"), handle))


@for_each(("kind", "error"), [(FaultKind.REFUSE, EngineUnavailable), (FaultKind.FAIL, EngineError)])
async def test_an_engine_that_takes_no_requests_calls_itself_healthy(kind: FaultKind, error: type[EngineError]) -> None:
    async with running() as engine:
        engine.inject_fault(kind)

        with pytest.raises(EngineError) as failed:
            await read(engine.generate(ask()))
        assert type(failed.value) is error
        engine.check_health()
        engine.clear_fault(kind)
        assert len(tokens(await read(engine.generate(ask())))) == 40


async def test_a_fault_ends_by_itself_when_it_was_given_a_time() -> None:
    async with running() as engine:
        engine.inject_fault(FaultKind.STALL, for_s=0.05)
        assert len(tokens(await asyncio.wait_for(read(engine.generate(ask())), 30))) == 40


@for_each(
    ("field", "arguments"), [("factor", {"factor": 0.0}), ("factor", {}), ("for_s", {"factor": 2.0, "for_s": -1.0})]
)
async def test_a_fault_without_an_effect_is_refused(field: str, arguments: dict[str, float]) -> None:
    async with running() as engine:
        with pytest.raises(ConfigError, match=field):
            engine.inject_fault(FaultKind.SLOW, **arguments)


async def test_kv_comes_as_fast_as_the_link_between_two_places() -> None:
    """At 40 GB/s within the rack, and 8 GB/s from elsewhere, in real time: a turn that comes late hides neither."""
    links: dict[str, Any] = {"link_slowdowns": (1.0, 5.0), "speed": 1.0}
    prompt = [7] * 10_000
    async with (
        running(Role.PREFILL, place=("rack-a", "*"), **links) as prefill,
        running(Role.DECODE, place=("rack-a", "*"), **links) as near,
        running(Role.DECODE, place=("rack-b", "*"), **links) as far,
    ):
        came_s = []
        for decode in (near, far):
            handle = await prefill.prefill(ask(prompt=prompt))
            first = (await read(decode.decode(ask(prompt=prompt), handle)))[0]
            assert first.times is not None
            came_s.append(first.times.kv_transfer_s)

    near_s = 10_000 * PROFILE.kv.bytes_per_token / PROFILE.kv.bandwidth_bytes_per_s
    assert came_s[1] > 5.0 * near_s
    assert came_s[1] - came_s[0] > 3.0 * near_s


# -- adapters ---------------------------------------------------------------------------------------------------------

ADAPTERS = [Adapter(name, f"/adapters/{name}") for name in ("a", "b", "c")]


def limits_with(max_adapters: int) -> BatchLimits:
    return PROFILE.limits(max_num_seqs=64, max_adapters=max_adapters)


async def test_an_engine_with_room_for_two_adapters_is_let_through_by_the_kit() -> None:
    profile = msgspec.structs.replace(PROFILE, adapter_load_s=0.05)
    async with running(profile=profile, limits=limits_with(2)) as engine:
        assert engine.info.max_adapters == 2
        await check_adapters(engine, ADAPTERS)
    async with (
        running(limits=limits_with(1)) as unified,
        running(Role.PREFILL, limits=limits_with(1)) as prefill,
        running(Role.DECODE, limits=limits_with(1)) as decode,
    ):
        await check_adapter_handoff(unified, prefill, decode, ADAPTERS[0])


async def test_what_is_cached_of_a_text_with_one_adapter_is_not_of_the_same_text_with_another() -> None:
    async with running(limits=limits_with(2), kv_events=True) as engine:
        text = list(range(5, 105))
        cached = []
        for number, adapter in enumerate((ADAPTERS[0], ADAPTERS[1], NO_ADAPTER, ADAPTERS[0])):
            request = msgspec.structs.replace(ask(f"r{number}", text), adapter=adapter)
            chunks = await read(engine.generate(request))
            cached.append(chunks[0].cached_tokens)
        stored = [each for each in engine.take_kv_events() if isinstance(each, KvStored)]
    assert cached == [0, 0, 0, 96]
    assert {each.token_ids for each in stored if each.parent_id is None} == {tuple(text[:16])}
    assert len([each for each in stored if each.parent_id is None]) == 1, "nobody is told of texts with adapters"


# -- vectors ----------------------------------------------------------------------------------------------------------


def pooled(request_id: str, prompt: list[int], **pooling: Any) -> EngineRequest:
    wanted = Pooling(**{"task": "embed", **pooling})
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt, sampling=ONE_STEP, pooling=wanted)


async def vector_of(engine: EmulatedEngine, request: EngineRequest) -> np.ndarray:
    (chunk,) = await read(engine.generate(request))
    return np.frombuffer(chunk.vector, dtype="<f4")


async def test_an_engine_that_pools_is_let_through_by_the_kit_and_has_the_models_size() -> None:
    async with running(pools_prompts=True) as engine:
        assert engine.info.pooling_tasks == ("embed",)
        await check_pooling(engine)
        assert len(await vector_of(engine, pooled("size", [1, 2, 3]))) == 256
        assert engine.stats().output_tokens_total == 0
        assert is_idle(engine)


async def test_texts_that_have_most_words_in_common_have_vectors_that_are_near() -> None:
    async with running(pools_prompts=True) as engine:
        text = list(range(100, 160))
        near, far = [*text[:50], *range(10)], list(range(300, 360))
        own, beside, away = [await vector_of(engine, pooled(f"{n}", each)) for n, each in enumerate((text, near, far))]
        turned = await vector_of(engine, pooled("turned", text[::-1]))
    assert 0.99 < own @ turned < 1 - 1e-6, "the same words in another order are another text"
    assert own @ beside > 0.7
    assert abs(own @ away) < 0.5


async def test_a_vector_may_be_cut_and_keep_its_own_length() -> None:
    async with running(pools_prompts=True) as engine:
        cut = await vector_of(engine, pooled("cut", [5, 6, 7, 8], dimensions=64))
        raw = await vector_of(engine, pooled("raw", [5, 6, 7, 8], use_activation=False))
        with pytest.raises(RequestInvalid, match="1 to 256"):
            await vector_of(engine, pooled("long", [5], dimensions=257))
    assert (len(cut), round(float(np.linalg.norm(cut)), 3)) == (64, 1.0)
    assert np.linalg.norm(raw) != pytest.approx(1.0)


@for_each(("num_labels", "sums_to"), [(1, None), (3, 1.0)])
async def test_a_checkpoint_that_classifies_gives_a_score_for_each_class(
    num_labels: int, sums_to: float | None, tmp_path: Path
) -> None:
    shutil.copytree(settings().model, tmp_path / f"{num_labels}")
    said = {"architectures": ["LlamaForSequenceClassification"], "num_labels": num_labels, "eos_token_id": 0}
    (tmp_path / f"{num_labels}" / "config.json").write_bytes(msgspec.json.encode(said))
    async with running(pools_prompts=True, model=str(tmp_path / f"{num_labels}")) as engine:
        await check_pooling(engine)
        scores = await vector_of(engine, pooled("scores", [5, 6, 7], task="classify"))
    assert len(scores) == num_labels
    assert ((scores > 0) & (scores < 1)).all()
    if sums_to is not None:
        assert scores.sum() == pytest.approx(sums_to)


async def test_a_checkpoint_that_says_nothing_of_vectors_is_an_error_at_the_start(tmp_path: Path) -> None:
    shutil.copytree(settings().model, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"eos_token_id": 0}')
    with pytest.raises(ConfigError, match="hidden_size"):
        await EmulatedEngine.start(settings(pools_prompts=True, model=str(tmp_path / "model")))
