"""The public conformance kit: what every engine must do, as a list of checks that any engine can be put through.

::

    await check_engine(engine)                          # an engine that runs whole requests
    await check_handoff(unified, prefill, decode)       # three engines of one model
    await check_kv_events(engine)                       # one that says what is in its prefix cache
    await check_adapters(engine, adapters)              # one that takes adapters
    await check_pooling(engine)                         # one that makes vectors in the place of answers

All raise ``AssertionError`` with the first rule that is broken, and return the names of the checks that passed.
"""

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast, get_args

import msgspec
import numpy as np

from engines.contract import (
    NO_ADAPTER,
    ONE_STEP,
    Adapter,
    ChosenLogprob,
    Chunk,
    Engine,
    EngineRequest,
    ImageFeatures,
    KvDropped,
    KvHandle,
    KvStored,
    Pooling,
    PoolingTask,
    PromptLogprobs,
    Sampling,
    StructuredOutput,
)
from engines.handoff import comes_from_prefill
from policies.errors import EngineError, EngineUnavailable, RequestInvalid

Check = Callable[[Engine], Awaitable[None]]
Run = Callable[[EngineRequest], AsyncIterator[Chunk]]
Known = TypeVar("Known")

_PATIENCE_S = 30.0
_LOOK_EVERY_S = 0.05
_RELEASE_LOOKS = 100
_TIE_NATS = 0.1
"""Two tokens this close may change places when a prompt is computed in other steps, in bfloat16 at least."""
_VECTOR_TOLERANCE = 0.02
"""Between the numbers of one prompt's vectors when it is computed in other batches, in bfloat16 at least."""
_CUTS = (1, 6, 11)
"""Tokens of an answer of 12 after which it is interrupted."""
_STRUCTURES: tuple[tuple[StructuredOutput, Callable[[str], object]], ...] = (
    (StructuredOutput("choice", '["left", "right"]'), lambda text: text in ("left", "right")),
    (StructuredOutput("regex", "(yes|no)-[0-9]{3}"), re.compile("(yes|no)-[0-9]{3}").fullmatch),
    (StructuredOutput("grammar", 'root ::= "<" [a-c] [a-c] [a-c] ">"'), re.compile("<[a-c]{3}>").fullmatch),
    (StructuredOutput("json", '{"enum": [1200, 3400]}'), lambda text: json.loads(text) in (1200, 3400)),
    (
        StructuredOutput(
            "structural_tag", '{"type": "structural_tag", "format": {"type": "const_string", "value": "tagged"}}'
        ),
        lambda text: text == "tagged",
    ),
    (StructuredOutput("json_object"), lambda text: text.startswith("{")),
)
"""What an answer may have to match, and whether it does; of any object only the beginning, since it may never end."""
_ids = itertools.count()


async def check_engine(engine: Engine) -> list[str]:
    """Puts an engine that runs whole requests through every check.

    Args:
        engine: A warm engine that nobody else uses meanwhile.

    Raises:
        AssertionError: The first rule that is broken.
    """
    for check in _CHECKS:
        await check(engine)
    return [check.__name__.removeprefix("_") for check in _CHECKS]


async def check_handoff(
    unified: Engine, prefill: Engine, decode: Engine, prompt_lengths: Sequence[int] = (5, 50, 700)
) -> list[str]:
    """Checks that prefill and decode on two engines give what one engine gives, and so does either of them alone.

    Args:
        unified: The reference.
        prefill: Holds KV blocks.
        decode: Pulls them.
        prompt_lengths: Prompts to try, in tokens.

    Raises:
        AssertionError: The first rule that is broken.
    """
    for prompt_tokens in prompt_lengths:
        await _same_tokens(unified, prefill, decode, prompt_tokens)
    await _a_decode_closed_before_its_first_token_frees_everything(unified, prefill, decode)
    await _a_first_token_that_the_prefill_drew_is_out_before_the_kv_has_come(unified, prefill, decode)
    await _a_stop_string_is_found_across_a_first_token_of_the_prefills(unified, prefill, decode)
    await _an_answer_ends_with_the_first_token_where_that_ends_it(unified, prefill, decode)
    for engine in (prefill, decode):
        await _a_whole_request_gives_the_same_tokens(unified, engine)
    await _an_interrupted_answer_goes_on_over_a_handoff(unified, prefill, decode)
    await _a_structured_output_goes_on_over_a_handoff(unified, prefill, decode)
    await _a_prompts_logprobs_come_over_a_handoff(unified, prefill, decode)
    await _kv_that_is_given_up_is_freed(prefill, decode)
    return [
        "handoff_gives_the_same_tokens",
        "a_decode_closed_before_its_first_token_frees_everything",
        "a_first_token_that_the_prefill_drew_is_out_before_the_kv_has_come",
        "a_stop_string_is_found_across_a_first_token_of_the_prefills",
        "an_answer_ends_with_the_first_token_where_that_ends_it",
        "a_whole_request_gives_the_same_tokens",
        "an_interrupted_answer_goes_on_over_a_handoff",
        "a_structured_output_goes_on_over_a_handoff",
        "a_prompts_logprobs_come_over_a_handoff",
        "kv_that_is_given_up_is_freed",
    ]


async def check_kv_events(engine: Engine) -> list[str]:
    """Checks that what an engine says of its prefix cache is what requests find there, before and after it has been
    full.

    Args:
        engine: A warm engine that says it, which nobody else uses meanwhile; its cache is filled twice over.

    Raises:
        AssertionError: The first rule that is broken.
    """
    cache = _SaidOfCache(engine)
    first = _request(5 * engine.info.kv_block_tokens + 3)
    await _is_found_as_it_was_said(cache, first)
    last = await _fill_twice(engine)
    await _until(lambda: not cache.num_tokens_of(first), "what was pushed out of the prefix cache is said to be gone")
    assert await _cached_tokens(engine, first) == 0, "what was said to be gone was found"
    await _is_found_as_it_was_said(cache, last)
    return ["what_is_said_to_be_cached_is_found", "what_is_said_to_be_gone_is_not_found"]


async def check_adapters(engine: Engine, adapters: Sequence[Adapter]) -> list[str]:
    """Checks that each request is computed with its own adapter, or with none, whatever runs beside it and however
    often adapters have come and gone.

    Args:
        engine: A warm engine that takes adapters, which nobody else uses meanwhile.
        adapters: At least one more than it keeps loaded; with each an answer is another one.

    Raises:
        AssertionError: The first rule that is broken.
    """
    own = {each: await _answer_with(engine, each) for each in (NO_ADAPTER, *adapters)}
    assert len({tuple(each.token_ids) for each in own.values()}) == len(own), "adapters made no difference"
    await _each_gives_its_own_answer_beside_others(engine, own)
    await _one_that_went_from_under_an_answer_comes_back(engine, adapters, own[adapters[0]])
    await _what_is_loaded_is_told(engine, adapters)
    await _an_interrupted_answer_goes_on_with_its_adapter(engine, adapters[0], own[adapters[0]])
    return [
        "each_gives_its_own_answer_beside_others",
        "one_that_went_from_under_an_answer_comes_back",
        "what_is_loaded_is_told",
        "an_interrupted_answer_goes_on_with_its_adapter",
    ]


async def check_adapter_handoff(unified: Engine, prefill: Engine, decode: Engine, adapter: Adapter) -> list[str]:
    """Checks that a prompt that one engine has computed with an adapter is gone on with by another one with the same.

    Args:
        unified: The reference.
        prefill: Holds KV blocks.
        decode: Pulls them.
        adapter: All of them take it, and an answer with it is another one.

    Raises:
        AssertionError: The rule is broken.
    """
    whole = await _answer_with(unified, adapter)
    request = _with_adapter(adapter)
    handle = await prefill.prefill(request)
    decoded = msgspec.structs.replace(request, request_id=f"{request.request_id}-decode")
    handed = await _answer(decode.decode(decoded, handle))
    assert _is_the_same(whole, handed), f"over the handoff {handed.token_ids}, on one engine {whole.token_ids}"
    return ["an_answer_over_the_handoff_is_its_adapters"]


async def check_pooling(engine: Engine) -> list[str]:
    """Checks that an engine makes one vector of each prompt, the same whatever runs beside it, and nothing else.

    Args:
        engine: A warm engine with ``pooling_tasks``, which nobody else uses meanwhile.

    Raises:
        AssertionError: The first rule that is broken.
    """
    for check in _POOLING_CHECKS:
        await check(engine)
    return [check.__name__.removeprefix("_") for check in _POOLING_CHECKS]


async def _a_prompt_becomes_one_vector(engine: Engine) -> None:
    for task in engine.info.pooling_tasks:
        (chunk,) = await _chunks(engine.generate(_to_pool(engine, 20, Pooling(task))))
        assert (chunk.finish_reason, chunk.token_ids, chunk.text) == ("stop", (), ""), f"{task} gave {chunk}"
        assert chunk.vector, f"{task} gave no vector"
        assert np.isfinite(_values(chunk)).all(), f"{task} gave {_values(chunk)}"
        if task == "embed":
            length = np.linalg.norm(_values(chunk))
            assert abs(length - 1) < _VECTOR_TOLERANCE, f"an embedding has length {length} and not 1"


async def _other_prompts_have_other_vectors_of_one_length(engine: Engine) -> None:
    vectors = [await _vector(engine, prompt_tokens) for prompt_tokens in (7, 19, 333)]
    assert len({len(each) for each in vectors}) == 1, f"vectors have {[len(each) for each in vectors]} values"
    for one, other in itertools.combinations(vectors, 2):
        assert not np.array_equal(one, other), "two prompts have the same vector"


async def _vectors_are_the_same_beside_others(engine: Engine) -> None:
    alone = [await _vector(engine, 10 + number) for number in range(4)]
    together = await asyncio.gather(*(_vector(engine, 10 + number % 4) for number in range(16)))
    for number, beside in enumerate(together):
        difference = np.abs(beside - alone[number % 4]).max()
        assert difference < _VECTOR_TOLERANCE, f"beside others a vector is {difference} off"


async def _a_prompt_may_fill_the_context_and_not_more(engine: Engine) -> None:
    longest = engine.info.context_tokens
    assert len(await _vector(engine, longest)) == len(await _vector(engine, 5))
    for prompt_tokens in (longest + 1, 0):
        await _assert_refused(engine, _to_pool(engine, prompt_tokens), f"a prompt of {prompt_tokens} tokens")


async def _what_it_is_not_there_for_is_refused(engine: Engine) -> None:
    await _assert_refused(engine, _request(9), "a request for an answer")
    for task in get_args(PoolingTask):
        if task not in engine.info.pooling_tasks:
            await _assert_refused(engine, _to_pool(engine, 9, Pooling(task)), f"a request to {task}")
    await _vector(engine, 9)


async def _assert_refused(engine: Engine, request: EngineRequest, what: str) -> None:
    try:
        await _chunks(engine.generate(request))
    except RequestInvalid:
        return
    raise AssertionError(f"{what} was taken")


async def _an_abandoned_vector_leaves_nothing(engine: Engine) -> None:
    await _until_idle(engine)
    usage = engine.stats().kv_cache_usage
    readers = [asyncio.create_task(_vector(engine, 900 + number)) for number in range(4)]
    await asyncio.sleep(0)
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    await _until_idle(engine)
    await _until(lambda: engine.stats().kv_cache_usage <= usage, "the blocks of abandoned vectors are free")


async def _one_that_is_aborted_has_a_verdict(engine: Engine) -> None:
    request = _to_pool(engine, engine.info.context_tokens - 3)
    reader = asyncio.create_task(_chunks(engine.generate(request)))
    await _until(lambda: engine.stats().num_requests_unfinished > 0 or reader.done(), "a request has come in")
    await engine.abort(request.request_id)
    (chunk,) = await reader
    verdict = "stop" if chunk.vector else "abort"  # it may have been done
    assert chunk.finish_reason == verdict, f"{len(chunk.vector)} bytes came with {chunk.finish_reason}"
    await _until_idle(engine)


_POOLING_CHECKS: tuple[Check, ...] = (
    _a_prompt_becomes_one_vector,
    _other_prompts_have_other_vectors_of_one_length,
    _vectors_are_the_same_beside_others,
    _a_prompt_may_fill_the_context_and_not_more,
    _what_it_is_not_there_for_is_refused,
    _an_abandoned_vector_leaves_nothing,
    _one_that_is_aborted_has_a_verdict,
)


def _to_pool(engine: Engine, prompt_tokens: int, pooling: Pooling | None = None) -> EngineRequest:
    wanted = Pooling(engine.info.pooling_tasks[0]) if pooling is None else pooling
    return msgspec.structs.replace(_request(prompt_tokens, sampling=ONE_STEP), pooling=wanted)


async def _vector(engine: Engine, prompt_tokens: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    (chunk,) = await _chunks(engine.generate(_to_pool(engine, prompt_tokens)))
    return _values(chunk)


def _values(chunk: Chunk) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.frombuffer(chunk.vector, dtype="<f4")


async def _each_gives_its_own_answer_beside_others(engine: Engine, own: "Mapping[Adapter, _Answer]") -> None:
    adapters = [each for each in own if each]
    for together in (adapters, [*own], adapters[::-1], [*own]):
        beside = await asyncio.gather(*(_answer_with(engine, each) for each in together))
        for adapter, answer in zip(together, beside, strict=True):
            alone = own[adapter]
            assert _is_the_same(alone, answer), (
                f"{adapter.name or 'no adapter'}: beside others {answer.token_ids}, alone {alone.token_ids}"
            )


async def _one_that_went_from_under_an_answer_comes_back(
    engine: Engine, adapters: Sequence[Adapter], alone: "_Answer"
) -> None:
    """Every place is taken by an answer when one more is loaded; the one that went is asked for again beside them."""
    held, more = adapters[: engine.info.max_adapters], adapters[engine.info.max_adapters]
    streams = [_open(engine.generate(_with_adapter(each, max_tokens=200))) for each in held]
    first = [await anext(each) for each in streams]
    await engine.load_adapter(more)
    again = await _answer_with(engine, adapters[0])
    assert _is_the_same(alone, again), f"beside one from before {again.token_ids}, alone {alone.token_ids}"
    for begun, stream in zip(first, streams, strict=True):
        whole = _joined([begun, *await _chunks(stream)])
        assert len(whole.token_ids) == 200, f"an answer whose adapter went has {len(whole.token_ids)} of 200 tokens"


async def _what_is_loaded_is_told(engine: Engine, adapters: Sequence[Adapter]) -> None:
    most = engine.info.max_adapters
    assert most < len(adapters), f"it keeps {most} adapters; the check needs more than {len(adapters)}"
    for each in adapters:
        await engine.load_adapter(each)
        assert engine.stats().adapters[0] == each.name, "the last one used is not told first"
    told, num_loads = engine.stats().adapters, engine.stats().adapter_loads_total
    assert told == tuple(each.name for each in reversed(adapters))[:most]
    await engine.load_adapter(adapters[-1])
    assert engine.stats().adapter_loads_total == num_loads, "one that was there was loaded again"
    await engine.unload_adapter(adapters[-1].name)
    assert adapters[-1].name not in engine.stats().adapters
    await engine.unload_adapter("one that it never had")
    await _answer_with(engine, adapters[-1])
    assert engine.stats().adapters[0] == adapters[-1].name
    assert engine.stats().adapter_loads_total == num_loads + 1


async def _an_interrupted_answer_goes_on_with_its_adapter(engine: Engine, adapter: Adapter, whole: "_Answer") -> None:
    request = _with_adapter(adapter)
    rest = await _answer(engine.generate(request.after(whole.token_ids[:5], 0)))
    resumed = rest._replace(token_ids=[*whole.token_ids[:5], *rest.token_ids])
    assert _is_the_same(whole, resumed), f"resumed {resumed.token_ids}, undisturbed {whole.token_ids}"


async def _load(engine: Engine, adapter: Adapter) -> None:
    await engine.load_adapter(adapter)


async def _answer_with(engine: Engine, adapter: Adapter) -> "_Answer":
    return await _answer(engine.generate(_with_adapter(adapter)))


def _with_adapter(adapter: Adapter, max_tokens: int = 12) -> EngineRequest:
    """The same prompt with any adapter; its answers have log probabilities, so that ties can be told."""
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logprobs=5)
    return msgspec.structs.replace(_request(40, sampling=sampling), adapter=adapter)


def _is_the_same(whole: "_Answer", other: "_Answer") -> bool:
    return other.token_ids == whole.token_ids or _parts_at_a_tie(whole, other.token_ids)


class _SaidOfCache:
    """What an engine's prefix cache holds, as it has said."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._texts: dict[Hashable, tuple[int, ...]] = {}
        self._num_copies = Counter[Hashable]()

    def num_tokens_of(self, request: EngineRequest) -> int:
        """Tokens at the beginning of a prompt that are cached."""
        for event in self.engine.take_kv_events():
            if isinstance(event, KvStored):
                self._store(event)
            elif isinstance(event, KvDropped):
                self._num_copies -= Counter(event.block_ids)
            else:
                self._num_copies.clear()
        prompt = tuple(request.prompt_token_ids)
        texts = [self._texts[block_id] for block_id in self._num_copies]
        return max((len(text) for text in texts if text == prompt[: len(text)]), default=0)

    def _store(self, event: KvStored) -> None:
        text = () if event.parent_id is None else self._texts[event.parent_id]
        block_tokens = len(event.token_ids) // len(event.block_ids)
        for number, block_id in enumerate(event.block_ids):
            text += event.token_ids[number * block_tokens : (number + 1) * block_tokens]
            self._texts[block_id] = text
            self._num_copies[block_id] += 1


async def _is_found_as_it_was_said(cache: _SaidOfCache, request: EngineRequest) -> None:
    engine = cache.engine
    await _cached_tokens(engine, request)
    block_tokens = engine.info.kv_block_tokens
    full_tokens = (len(request.prompt_token_ids) - 1) // block_tokens * block_tokens
    await _until(lambda: cache.num_tokens_of(request) == full_tokens, "a prompt's full blocks are said to be cached")
    found_tokens = await _cached_tokens(engine, request)
    assert found_tokens == full_tokens, f"{full_tokens} tokens were said to be cached, {found_tokens} were found"


async def _fill_twice(engine: Engine) -> EngineRequest:
    """Texts that have nothing in common, of twice the cache's size; returns the last one."""
    half_tokens = engine.info.context_tokens // 2
    num_prompts = 2 * engine.info.kv_capacity_tokens // half_tokens + 1
    requests = [_request(half_tokens - number, max_tokens=1) for number in range(num_prompts)]
    for request in requests:
        await _cached_tokens(engine, request)
    return requests[-1]


async def _cached_tokens(engine: Engine, request: EngineRequest) -> int:
    again = msgspec.structs.replace(request, request_id=f"conformance-{next(_ids)}")
    return (await _chunks(engine.generate(again)))[0].cached_tokens


async def _same_tokens(unified: Engine, prefill: Engine, decode: Engine, prompt_tokens: int) -> None:
    wanted = await _token_ids(unified.generate(_request(prompt_tokens, max_tokens=12)))
    received_before = decode.stats().kv_tokens_received_total
    handle = await prefill.prefill(_request(prompt_tokens, max_tokens=12))
    assert handle.num_tokens == prompt_tokens, f"{handle.num_tokens} tokens held for a prompt of {prompt_tokens}"
    got = await _token_ids(decode.decode(_request(prompt_tokens, max_tokens=12), handle))
    assert got == wanted, f"prompt of {prompt_tokens} tokens: handoff gave {got}, one engine gave {wanted}"
    await _until(lambda: decode.stats().kv_tokens_received_total > received_before, "KV blocks were pulled")


async def _a_first_token_that_the_prefill_drew_is_out_before_the_kv_has_come(
    unified: Engine, prefill: Engine, decode: Engine
) -> None:
    """It is so of each prompt that :func:`engines.handoff.comes_from_prefill` names, and of no other."""
    block_tokens = prefill.info.kv_block_tokens
    for more_tokens in (-2, -1, 0, 1):
        request = _request(2 * block_tokens + more_tokens, sampling=_greedy_with_rivals(12))
        whole = await _answer(unified.generate(_again(request)))
        handle = await prefill.prefill(request)
        can_come = comes_from_prefill(len(request.prompt_token_ids), block_tokens, is_resumable=True)
        assert handle.first is None or can_come, f"the prefill drew {handle.first} for {2 * block_tokens + more_tokens}"
        chunks = await _chunks(decode.decode(_again(request), handle))
        from_prefill = [each.is_from_prefill for each in chunks]  # all that follows may come at once
        assert from_prefill == [handle.first is not None, *(False for _ in chunks[1:])], from_prefill
        _assert_goes_on(whole, _joined([Chunk("", ())]), _joined(chunks))
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=7, ignore_eos=True)
    handle = await prefill.prefill(_request(2 * block_tokens + 1, sampling=sampling))
    assert handle.first is None, "a seed's first token was drawn by another engine than the rest"
    await _chunks(decode.decode(_request(2 * block_tokens + 1, sampling=sampling), handle))


async def _a_stop_string_is_found_across_a_first_token_of_the_prefills(
    unified: Engine, prefill: Engine, decode: Engine
) -> None:
    request = _request(prefill.info.kv_block_tokens + 5, sampling=_greedy_with_rivals(12))
    free = await _answer(unified.generate(_again(request)))
    first = await _answer(unified.generate(_again(request, max_tokens=1)))
    start, stop = _around(free.text, len(first.text))
    for is_included in (False, True):
        stopped = _again(request, stop=(stop,), include_stop_str_in_output=is_included)
        whole = await _answer(unified.generate(stopped))
        assert (whole.end, whole.text) == (("stop", stop), free.text[:start] + stop * is_included)
        handle = await prefill.prefill(_again(stopped))
        _assert_goes_on(whole, _joined([Chunk("", ())]), await _answer(decode.decode(_again(stopped), handle)))


async def _an_answer_ends_with_the_first_token_where_that_ends_it(
    unified: Engine, prefill: Engine, decode: Engine
) -> None:
    prompt_tokens = prefill.info.kv_block_tokens + 3
    request = _request(prompt_tokens, sampling=_greedy_with_rivals(12))
    free = await _answer(unified.generate(request))
    stops = {"stop_token_ids": (free.token_ids[0],)}, {"max_tokens": 1}
    for changed in stops:
        ends = _again(request, **changed)
        whole = await _answer(unified.generate(ends))
        assert len(whole.token_ids) == 1
        handle = await prefill.prefill(_again(ends))
        _assert_goes_on(whole, _joined([Chunk("", ())]), await _answer(decode.decode(_again(ends), handle)))
    await _until_idle(prefill)
    await _until_idle(decode)


async def _a_whole_request_gives_the_same_tokens(unified: Engine, engine: Engine) -> None:
    """Replicas on either side of the handoff may be given requests that need none."""
    wanted, got = [await _token_ids(each.generate(_request(60, max_tokens=12))) for each in (unified, engine)]
    assert got == wanted, f"a whole request gave {got}, a unified engine gave {wanted}"


async def _info_is_sane(engine: Engine) -> None:
    info = engine.info
    assert info.context_tokens > 0
    assert info.max_num_seqs > 0
    assert info.kv_block_tokens > 0
    assert info.kv_capacity_tokens >= info.context_tokens, "one request of full length must fit into the KV cache"


async def _a_stream_ends_with_one_finish_reason(engine: Engine) -> None:
    chunks = await _chunks(engine.generate(_request(20, max_tokens=7)))
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "length"
    assert sum(len(chunk.token_ids) for chunk in chunks) == 7


async def _greedy_output_is_repeatable(engine: Engine) -> None:
    first = await _token_ids(engine.generate(_request(33, max_tokens=9)))
    second = await _token_ids(engine.generate(_request(33, max_tokens=9)))
    assert first == second, f"temperature 0 gave {first}, then {second}"


async def _a_seed_makes_sampling_repeatable(engine: Engine) -> None:
    def sample(seed: int) -> Awaitable[list[int]]:
        sampling = Sampling(max_tokens=12, temperature=1.0, seed=seed, ignore_eos=True)
        return _token_ids(engine.generate(_request(16, sampling=sampling)))

    assert await sample(7) == await sample(7)


async def _a_stop_token_ends_the_output(engine: Engine) -> None:
    free = await _token_ids(engine.generate(_request(20, max_tokens=8)))
    sampling = Sampling(max_tokens=8, temperature=0.0, ignore_eos=True, stop_token_ids=(free[3],))
    chunks = await _chunks(engine.generate(_request(20, sampling=sampling)))
    stopped = [token for chunk in chunks for token in chunk.token_ids]
    assert chunks[-1].finish_reason == "stop"
    assert stopped[: free.index(free[3])] == free[: free.index(free[3])]


async def _logprobs_come_with_every_token(engine: Engine) -> None:
    sampling = Sampling(max_tokens=5, temperature=0.0, ignore_eos=True, logprobs=3)
    chunks = await _chunks(engine.generate(_request(12, sampling=sampling)))
    for chunk in chunks:
        assert chunk.logprobs is not None
        assert len(chunk.logprobs) == len(chunk.token_ids)
        for token_id, entry in zip(chunk.token_ids, chunk.logprobs, strict=True):
            assert entry.chosen.token_id == token_id
            assert entry.chosen.logprob <= 0.0
            assert len(entry.top) >= 3


async def _unless_refused(param: str, running: Awaitable[Known]) -> Known | None:
    """What an engine makes of a field of ``Sampling`` that it need not know, as long as it says so by name."""
    try:
        return await running
    except RequestInvalid as refusal:
        named = refusal.param
    assert named == param, f"{param} was refused as {named}"
    return None


async def _only_allowed_tokens_come(engine: Engine) -> None:
    free = await _token_ids(engine.generate(_request(21, max_tokens=12)))
    allowed = tuple(token for token in (50, 60, 70, 80) if token not in free)
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=3, allowed_token_ids=allowed, ignore_eos=True)
    running = _token_ids(engine.generate(_request(21, sampling=sampling)))
    token_ids = await _unless_refused("allowed_token_ids", running)
    assert token_ids is None or (len(token_ids) == 12 and set(token_ids) <= set(allowed)), f"{token_ids} of {allowed}"


async def _a_bad_word_does_not_come(engine: Engine) -> None:
    request = _request(22, sampling=_greedy_with_rivals(12))
    free = await _answer(engine.generate(request))
    place, word = next(
        (place, entry.chosen.token) for place, entry in enumerate(free.logprobs) if entry.chosen.token.isprintable()
    )
    running = _token_ids(engine.generate(_again(request, bad_words=(word,))))
    token_ids = await _unless_refused("bad_words", running)
    if token_ids is not None and token_ids[:place] == free.token_ids[:place]:
        assert token_ids[place] != free.token_ids[place], f"{word!r} came all the same"


async def _a_prompts_logprobs_come_with_the_first_chunk(engine: Engine) -> None:
    request = _request(40, sampling=Sampling(max_tokens=3, temperature=0.0, ignore_eos=True, prompt_logprobs=2))
    for asked in (request, _again(request)):  # the second time the prompt is cached
        chunks = await _unless_refused("prompt_logprobs", _chunks(engine.generate(asked)))
        if chunks is not None:
            _assert_of_prompt(chunks, asked)


def _assert_of_prompt(chunks: list[Chunk], request: EngineRequest) -> None:
    said: PromptLogprobs = chunks[0].prompt_logprobs or ()
    assert all(chunk.prompt_logprobs is None for chunk in chunks[1:]), "a prompt's log probabilities came twice"
    token_ids = [None if entry is None else entry.chosen.token_id for entry in said]
    assert token_ids == [None, *request.prompt_token_ids[1:]], f"log probabilities of {token_ids}"
    assert all(len(entry.top) >= 2 for entry in said if entry is not None)


async def _a_structured_output_is_matched_and_goes_on(engine: Engine) -> None:
    await _matches_and_goes_on(engine, engine.generate, prompt_tokens=27)


async def _a_structured_output_goes_on_over_a_handoff(unified: Engine, prefill: Engine, decode: Engine) -> None:
    await _matches_and_goes_on(unified, _over_a_handoff(prefill, decode), prompt_tokens=53)


async def _matches_and_goes_on(engine: Engine, run: Run, prompt_tokens: int) -> None:
    for structured, is_matched_by in _STRUCTURES:
        sampling = Sampling(max_tokens=16, temperature=0.0, logprobs=2, structured_output=structured)
        request = _request(prompt_tokens, sampling=sampling)
        whole = await _unless_refused("structured_output", _answer(engine.generate(request)))
        if whole is None:
            continue
        assert is_matched_by(whole.text), f"{structured} let {whole.text!r} through"
        assert whole.end[0] == "stop" or structured.kind == "json_object", f"{structured} has no end"
        _assert_goes_on(whole, _joined([Chunk("", ())]), await _answer(run(_again(request))))
        await _goes_on_after(range(1, len(whole.token_ids)), request, whole, engine, run)


async def _an_answer_that_a_structure_would_not_have_let_through_is_an_error(engine: Engine) -> None:
    for structured, _ in _STRUCTURES:
        request = _request(28, sampling=Sampling(max_tokens=16, temperature=0.0, structured_output=structured))
        if await _unless_refused("structured_output", _chunks(engine.generate(request))) is None:
            continue
        try:
            await _chunks(engine.generate(_rest_of(request, [request.prompt_token_ids[0]] * 2, 0)))
        except EngineError:
            continue
        raise AssertionError(f"{structured} went on after tokens that it does not begin with")


async def _a_prompts_logprobs_come_over_a_handoff(unified: Engine, prefill: Engine, decode: Engine) -> None:
    request = _request(54, sampling=Sampling(max_tokens=3, temperature=0.0, ignore_eos=True, prompt_logprobs=2))
    wanted = await _unless_refused("prompt_logprobs", _chunks(unified.generate(request)))
    if wanted is not None:
        asked = _again(request)
        chunks = await _chunks(_over_a_handoff(prefill, decode)(asked))
        _assert_of_prompt(chunks, asked)
        assert _joined(chunks).token_ids == _joined(wanted).token_ids


async def _a_prompt_over_the_context_is_refused_and_the_engine_has_room(engine: Engine) -> None:
    try:
        await _chunks(engine.generate(_request(engine.info.context_tokens + 1, max_tokens=1)))
    except RequestInvalid:
        await _a_stream_ends_with_one_finish_reason(engine)
        return
    raise AssertionError("a prompt longer than the context was served")


async def _a_salt_keeps_prompts_apart(engine: Engine) -> None:
    prompt = _request(5 * engine.info.kv_block_tokens + 3, max_tokens=1)
    await _cached_tokens(engine, prompt)
    salts = [f"{name}-{next(_ids)}" for name in ("one", "other")]
    salted = [msgspec.structs.replace(prompt, cache_salt=salt) for salt in salts]
    for each in salted:
        found = await _cached_tokens(engine, each)
        assert found == 0, f"{found} tokens were found of what was sent with another salt"
    own = {await _cached_tokens(engine, each) for each in (prompt, *salted)}
    assert len(own) == 1, f"of the same prompt, each with its own salt, {sorted(own)} tokens are found"


async def _many_streams_run_side_by_side(engine: Engine) -> None:
    alone = [await _token_ids(engine.generate(_request(10 + n, max_tokens=6))) for n in range(3)]
    streams = [_token_ids(engine.generate(_request(10 + n % 3, max_tokens=6))) for n in range(12)]
    together = await asyncio.gather(*streams)
    assert [len(each) for each in together] == [len(alone[n % 3]) for n in range(12)]


async def _a_slow_reader_gets_bigger_chunks(engine: Engine) -> None:
    stream = _open(engine.generate(_request(16, max_tokens=40)))
    chunks = [await anext(stream)]
    before = engine.stats().num_steps
    await _until(lambda: engine.stats().num_steps >= before + 5, "the engine goes on while nobody reads")
    chunks.append(await anext(stream))
    assert len(chunks[1].token_ids) > 1, "tokens queue up one by one instead of being merged"
    chunks += [chunk async for chunk in stream]
    assert sum(len(chunk.token_ids) for chunk in chunks) == 40


async def _closing_a_stream_frees_its_blocks(engine: Engine) -> None:
    await _until_idle(engine)
    usage = engine.stats().kv_cache_usage
    streams = [_open(engine.generate(_request(200, max_tokens=1000))) for _ in range(5)]
    for stream in streams:
        await anext(stream)
    assert engine.stats().num_requests_running > 0
    for stream in streams:
        await stream.aclose()
    await _until_idle(engine)
    assert engine.stats().kv_cache_usage <= usage, "closed streams still hold KV blocks"


async def _abort_ends_the_stream_with_a_verdict(engine: Engine) -> None:
    request = _request(20, max_tokens=2000)
    stream = _open(engine.generate(request))
    await anext(stream)
    await engine.abort(request.request_id)
    rest = [chunk async for chunk in stream]
    assert rest, "an aborted stream ended without a last chunk"
    assert rest[-1].finish_reason == "abort"
    await engine.abort("nobody knows this request")
    await _until_idle(engine)


async def _health_and_totals_are_kept(engine: Engine) -> None:
    engine.check_health()
    before = engine.stats()
    await _chunks(engine.generate(_request(30, max_tokens=5)))
    await _until(lambda: engine.stats().output_tokens_total >= before.output_tokens_total + 5, "output is counted")
    assert engine.stats().prompt_tokens_total >= before.prompt_tokens_total + 30
    assert engine.stats().num_steps > before.num_steps


async def _an_interrupted_answer_goes_on(engine: Engine) -> None:
    await _goes_on(engine, engine.generate, prompt_tokens=24)
    request = _request(25, sampling=_greedy_with_rivals(40))
    whole = await _answer(engine.generate(request))
    stream, read = _open(engine.generate(_again(request))), [Chunk("", ())]
    while not read[-1].token_ids:
        read.append(await anext(stream))
    await stream.aclose()
    before = _joined(read)
    rest = await _answer(engine.generate(_rest_of(request, before.token_ids, len(before.text))))
    _assert_goes_on(whole, before, rest)


async def _an_interrupted_answer_goes_on_over_a_handoff(unified: Engine, prefill: Engine, decode: Engine) -> None:
    await _goes_on(unified, _over_a_handoff(prefill, decode), prompt_tokens=70)


def _over_a_handoff(prefill: Engine, decode: Engine) -> Run:
    async def hand_over(request: EngineRequest) -> AsyncIterator[Chunk]:
        handle = await prefill.prefill(request)
        assert handle.num_tokens == len(request.prompt_token_ids), "the answer so far belongs to what is held"
        async for chunk in decode.decode(request, handle):
            yield chunk

    return hand_over


async def _goes_on(engine: Engine, run: Run, prompt_tokens: int) -> None:
    """Cuts an answer of the engine in several places and has the rest run."""
    request = _request(prompt_tokens, sampling=_greedy_with_rivals(12))
    await _goes_on_after(_CUTS, request, await _answer(engine.generate(request)), engine, run)


async def _goes_on_after(
    cuts: Sequence[int], request: EngineRequest, whole: "_Answer", engine: Engine, run: Run
) -> None:
    for cut in cuts:
        before = await _answer(engine.generate(_again(request, max_tokens=cut)))
        _assert_goes_on(whole, before, await _answer(run(_rest_of(request, before.token_ids, len(before.text)))))


async def _a_stop_string_is_found_across_an_interruption(engine: Engine) -> None:
    request = _request(26, sampling=_greedy_with_rivals(12))
    free = await _answer(engine.generate(request))
    for cut, is_included in itertools.product(_CUTS, (False, True)):
        before = await _answer(engine.generate(_again(request, max_tokens=cut)))
        if len(before.text) == len(free.text):
            continue  # no text comes after this
        start, stop = _around(free.text, len(before.text))
        stopped = _again(request, stop=(stop,), include_stop_str_in_output=is_included)
        whole = await _answer(engine.generate(stopped))
        assert (whole.end, whole.text) == (("stop", stop), free.text[:start] + stop * is_included)
        given = before._replace(text=free.text[: max(0, start - 3)])
        rest = await _answer(engine.generate(_rest_of(stopped, given.token_ids, len(given.text))))
        _assert_goes_on(whole, given, rest)


async def _a_wrong_account_of_an_answer_is_refused(engine: Engine) -> None:
    for tokens, chars in ((20, 0), (21, 0), (-1, 0), (0, 1), (3, -1), (3, 10_000)):
        request = msgspec.structs.replace(_request(20), answered_tokens=tokens, answered_chars=chars)
        try:
            await _chunks(engine.generate(request))
        except RequestInvalid:
            continue
        raise AssertionError(
            f"an answer of {tokens} tokens and {chars} characters was believed at the end of 20 tokens"
        )


async def _it_takes_nothing_while_it_sleeps_and_goes_on_when_it_is_awake(engine: Engine) -> None:
    request = _request(90, sampling=_greedy_with_rivals(12))
    before = await _answer(engine.generate(_again(request)))
    await engine.wake()
    await engine.sleep()
    await engine.sleep()
    engine.check_health()
    if engine.info.can_sleep:
        try:
            await _chunks(engine.generate(_again(request)))
        except EngineUnavailable:
            pass
        else:
            raise AssertionError("an engine that slept took a request")
    await engine.wake()
    _assert_goes_on(before, _joined([Chunk("", ())]), await _answer(engine.generate(_again(request))))


async def _an_image_is_refused_by_its_name(engine: Engine) -> None:
    request = msgspec.structs.replace(_request(9), images=(ImageFeatures("an image", 2, 3, b""),))
    answer = await _unless_refused("images", _answer(engine.generate(request)))
    assert answer is None, "an image was answered as if it were its tokens"


async def _a_vector_is_refused_by_an_engine_that_makes_none(engine: Engine) -> None:
    assert not engine.info.pooling_tasks, "an engine that makes vectors gives no answers: check_pooling is for it"
    pooled = msgspec.structs.replace(_request(9, sampling=ONE_STEP), pooling=Pooling("embed"))
    await _assert_refused(engine, pooled, "a request to embed")
    await _answer(engine.generate(_request(5)))


async def _an_adapter_that_it_does_not_take_is_refused(engine: Engine) -> None:
    if engine.info.max_adapters:
        return
    adapter = Adapter("nobody's", "/nowhere")
    for asked in (_answer_with, _load):
        try:
            await asked(engine, adapter)
        except RequestInvalid:
            continue
        raise AssertionError("an adapter was taken by an engine that takes none")
    await _answer(engine.generate(_request(5)))


_CHECKS: tuple[Check, ...] = (
    _info_is_sane,
    _a_stream_ends_with_one_finish_reason,
    _greedy_output_is_repeatable,
    _a_seed_makes_sampling_repeatable,
    _a_stop_token_ends_the_output,
    _logprobs_come_with_every_token,
    _only_allowed_tokens_come,
    _a_bad_word_does_not_come,
    _a_prompts_logprobs_come_with_the_first_chunk,
    _a_prompt_over_the_context_is_refused_and_the_engine_has_room,
    _many_streams_run_side_by_side,
    _a_slow_reader_gets_bigger_chunks,
    _closing_a_stream_frees_its_blocks,
    _abort_ends_the_stream_with_a_verdict,
    _health_and_totals_are_kept,
    _an_interrupted_answer_goes_on,
    _a_structured_output_is_matched_and_goes_on,
    _a_stop_string_is_found_across_an_interruption,
    _a_wrong_account_of_an_answer_is_refused,
    _an_answer_that_a_structure_would_not_have_let_through_is_an_error,
    _an_adapter_that_it_does_not_take_is_refused,
    _a_vector_is_refused_by_an_engine_that_makes_none,
    _an_image_is_refused_by_its_name,
    _it_takes_nothing_while_it_sleeps_and_goes_on_when_it_is_awake,
    _a_salt_keeps_prompts_apart,
)


class _Answer(NamedTuple):
    """All chunks of a stream as one; ``end`` is the reason and what stopped it."""

    token_ids: list[int]
    text: str
    end: tuple[str | None, str | int | None]
    logprobs: list[ChosenLogprob]


def _joined(chunks: list[Chunk]) -> _Answer:
    return _Answer(
        [token for chunk in chunks for token in chunk.token_ids],
        "".join(chunk.text for chunk in chunks),
        (chunks[-1].finish_reason, chunks[-1].stop_reason),
        [entry for chunk in chunks for entry in chunk.logprobs or ()],
    )


async def _answer(stream: AsyncIterator[Chunk]) -> _Answer:
    return _joined(await _chunks(stream))


def _assert_goes_on(whole: _Answer, before: _Answer, rest: _Answer) -> None:
    token_ids = [*before.token_ids, *rest.token_ids]
    assert len(rest.logprobs) == len(rest.token_ids)
    if _parts_at_a_tie(whole, token_ids):
        return
    assert token_ids == whole.token_ids, f"after {before.token_ids} come {rest.token_ids} and not {whole.token_ids}"
    assert before.text + rest.text == whole.text, f"after {before.text!r} comes {rest.text!r} and not {whole.text!r}"
    assert rest.end == whole.end


def _parts_at_a_tie(whole: _Answer, token_ids: list[int]) -> bool:
    """Whether the tokens leave the whole answer where another one was as good as equally likely."""
    for entry, token in zip(whole.logprobs, token_ids, strict=False):
        if token != entry.chosen.token_id:
            rivals = [each.logprob for each in entry.top if each.token_id == token]
            return bool(rivals) and entry.chosen.logprob - rivals[0] < _TIE_NATS
    return False


def _around(text: str, at: int) -> tuple[int, str]:
    """The shortest string on both sides of a place that the text does not have before, and where it begins."""
    bounds = ((max(0, at - width), at + width) for width in range(1, len(text) + 1))
    return next((start, text[start:end]) for start, end in bounds if text.find(text[start:end]) == start)


def _greedy_with_rivals(max_tokens: int) -> Sampling:
    """With the likeliest two of each place, to tell a tie."""
    return Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logprobs=2)


def _again(request: EngineRequest, **sampling: object) -> EngineRequest:
    """The request under another name, with other sampling."""
    changed = msgspec.structs.replace(request.sampling, **sampling)
    return msgspec.structs.replace(request, request_id=f"conformance-{next(_ids)}", sampling=changed)


def _rest_of(request: EngineRequest, token_ids: list[int], num_chars: int) -> EngineRequest:
    """What is left of a request when so much of its answer is out."""
    return _again(request.after(token_ids, num_chars))


async def _a_decode_closed_before_its_first_token_frees_everything(
    unified: Engine, prefill: Engine, decode: Engine
) -> None:
    await _until_idle(decode)
    usage = decode.stats().kv_cache_usage
    request = _request(900, max_tokens=50)
    handle: KvHandle = await prefill.prefill(request)
    reader = asyncio.create_task(_chunks(decode.decode(request, handle)))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    assert reader.cancelled(), "the reader of a cancelled decode was not cancelled"
    await _same_tokens(unified, prefill, decode, prompt_tokens=901)
    await _until_idle(decode)
    assert decode.stats().kv_cache_usage <= usage, "a cancelled decode still holds KV blocks"


async def _kv_that_is_given_up_is_freed(prefill: Engine, decode: Engine) -> None:
    """Long before its lease ends; and once more does no harm."""
    await _until_idle(prefill)
    usage = await _usage_now(prefill)
    handle = await prefill.prefill(_request(902))
    await decode.release_kv(handle)
    await decode.release_kv(handle)
    for _ in range(_RELEASE_LOOKS):
        if await _usage_now(prefill) <= usage:
            return
        await asyncio.sleep(_LOOK_EVERY_S)
    raise AssertionError("the prefill engine still holds KV blocks that were given up")


async def _usage_now(engine: Engine) -> float:
    """After a step, as it may say nothing of what happens between steps."""
    await _chunks(engine.generate(_request(8, max_tokens=1)))
    return engine.stats().kv_cache_usage


def _request(prompt_tokens: int, max_tokens: int = 8, sampling: Sampling | None = None) -> EngineRequest:
    """A prompt that no earlier request shares a prefix with, greedy unless told otherwise."""
    greedy = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    prompt = [5 + (prompt_tokens * 7 + position * (1 + prompt_tokens % 13)) % 200 for position in range(prompt_tokens)]
    return EngineRequest(request_id=f"conformance-{next(_ids)}", prompt_token_ids=prompt, sampling=sampling or greedy)


def _open(stream: object) -> AsyncGenerator[Chunk, None]:
    return cast(AsyncGenerator[Chunk, None], stream)


async def _chunks(stream: object) -> list[Chunk]:
    return [chunk async for chunk in _open(stream)]


async def _token_ids(stream: object) -> list[int]:
    return [token for chunk in await _chunks(stream) for token in chunk.token_ids]


async def _until_idle(engine: Engine) -> None:
    await _until(
        lambda: engine.stats().num_requests_running == 0 and engine.stats().num_requests_waiting == 0,
        "the engine has no requests left",
    )


async def _until(condition: Callable[[], bool], what: str) -> None:
    """Looks again and again, for half a minute at most."""
    loop = asyncio.get_running_loop()
    give_up_at_s = loop.time() + _PATIENCE_S
    while not condition():
        assert loop.time() < give_up_at_s, f"waited {_PATIENCE_S:.0f} s for this in vain: {what}"
        await asyncio.sleep(0.01)
