"""What crosses process borders arrives as it was sent, whatever is in it."""

import inspect
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import contract
from engines.contract import (
    Adapter,
    ChosenLogprob,
    Chunk,
    EngineInfo,
    EngineRequest,
    EngineStats,
    EngineTimes,
    ImageFeatures,
    KvHandle,
    Pooling,
    Sampling,
    StructuredOutput,
    TiedRequest,
    TokenLogprob,
)
from policies.errors import RequestInvalid
from tests.tables import for_each

COUNTS = st.integers(min_value=0, max_value=(1 << 63) - 1)
TOKEN_IDS = st.integers(min_value=0, max_value=(1 << 31) - 1)
FLOATS = st.floats(allow_nan=False)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | FLOATS | st.text() | st.binary()
PARAMS = st.dictionaries(
    st.text(), st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=8)
)
TOKEN_LOGPROBS = st.builds(TokenLogprob, TOKEN_IDS, st.text(), FLOATS, COUNTS)
CHOSEN_LOGPROBS = st.builds(ChosenLogprob, TOKEN_LOGPROBS, st.lists(TOKEN_LOGPROBS, max_size=4).map(tuple))
PROMPT_LOGPROBS = st.none() | st.lists(st.none() | CHOSEN_LOGPROBS, max_size=3).map(tuple)
STRUCTURES = st.builds(
    StructuredOutput,
    st.sampled_from(("json", "json_object", "regex", "choice")),
    st.text(),
    st.none() | st.booleans(),
    st.none() | PARAMS,
)
SAMPLINGS = st.builds(
    Sampling,
    max_tokens=COUNTS,
    min_tokens=COUNTS,
    temperature=FLOATS,
    top_p=FLOATS,
    top_k=COUNTS,
    min_p=FLOATS,
    seed=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    stop=st.lists(st.text(), max_size=3).map(tuple),
    stop_token_ids=st.lists(TOKEN_IDS, max_size=3).map(tuple),
    include_stop_str_in_output=st.booleans(),
    ignore_eos=st.booleans(),
    presence_penalty=FLOATS,
    frequency_penalty=FLOATS,
    repetition_penalty=FLOATS,
    logit_bias=st.none() | st.dictionaries(TOKEN_IDS, FLOATS, max_size=3),
    allowed_token_ids=st.none() | st.lists(TOKEN_IDS, max_size=3).map(tuple),
    bad_words=st.lists(st.text(), max_size=3).map(tuple),
    structured_output=st.none() | STRUCTURES,
    logprobs=st.none() | COUNTS,
    prompt_logprobs=st.none() | COUNTS,
    skip_special_tokens=st.booleans(),
)
NAMES = st.lists(st.text()).map(tuple)
ADAPTERS = st.builds(Adapter, name=st.text(), path=st.text())
POOLINGS = st.builds(
    Pooling,
    task=st.sampled_from(("", "embed", "classify")),
    dimensions=st.none() | COUNTS,
    use_activation=st.none() | st.booleans(),
    second_at=st.none() | COUNTS,
)
TASKS = st.lists(st.sampled_from(("embed", "classify"))).map(tuple)
IMAGES = st.builds(ImageFeatures, identity=st.text(), offset=COUNTS, num_tokens=COUNTS, data=st.binary())
TIES = st.builds(TiedRequest, request_id=st.text(), address=st.text())
STRATEGIES: dict[type[msgspec.Struct], st.SearchStrategy[Any]] = {
    Sampling: SAMPLINGS,
    StructuredOutput: STRUCTURES,
    EngineRequest: st.builds(
        EngineRequest,
        request_id=st.text(),
        prompt_token_ids=st.lists(TOKEN_IDS),
        sampling=SAMPLINGS,
        priority=st.integers(-(1 << 63), (1 << 63) - 1),
        answered_tokens=COUNTS,
        answered_chars=COUNTS,
        tied_to=st.none() | TIES,
        adapter=ADAPTERS,
        pooling=POOLINGS,
        images=st.lists(IMAGES, max_size=2).map(tuple),
    ),
    Adapter: ADAPTERS,
    Pooling: POOLINGS,
    ImageFeatures: IMAGES,
    TiedRequest: TIES,
    TokenLogprob: TOKEN_LOGPROBS,
    ChosenLogprob: CHOSEN_LOGPROBS,
    Chunk: st.builds(
        Chunk,
        text=st.text(),
        token_ids=st.lists(TOKEN_IDS).map(tuple),
        finish_reason=st.sampled_from((None, "stop", "length", "abort")),
        stop_reason=st.none() | st.text() | TOKEN_IDS,
        cached_tokens=COUNTS,
        logprobs=st.none() | st.lists(CHOSEN_LOGPROBS, max_size=4).map(tuple),
        times=st.none() | st.builds(EngineTimes, prefill_s=FLOATS, kv_transfer_s=FLOATS),
        prompt_logprobs=PROMPT_LOGPROBS,
        vector=st.binary(),
    ),
    EngineTimes: st.builds(EngineTimes, prefill_s=FLOATS, kv_transfer_s=FLOATS),
    KvHandle: st.builds(
        KvHandle,
        params=PARAMS,
        num_tokens=COUNTS,
        prefill_s=FLOATS,
        cached_tokens=st.none() | COUNTS,
        prompt_logprobs=PROMPT_LOGPROBS,
    ),
    EngineInfo: st.builds(
        EngineInfo,
        **{
            name: {"claims_at": st.text(), "can_sleep": st.booleans(), "pooling_tasks": TASKS}.get(name, COUNTS)
            for name in EngineInfo.__struct_fields__
        },
    ),
    EngineStats: st.builds(
        EngineStats,
        **{
            name: FLOATS if name == "kv_cache_usage" else NAMES if name.startswith("adapters") else COUNTS
            for name in EngineStats.__struct_fields__
        },
    ),
}


def test_every_struct_of_the_contract_is_tried() -> None:
    structs = {each for _, each in inspect.getmembers(contract, inspect.isclass) if issubclass(each, msgspec.Struct)}

    assert structs - {msgspec.Struct} == set(STRATEGIES)


@for_each("struct", STRATEGIES)
@given(data=st.data())
def test_what_is_sent_is_what_arrives(struct: type[msgspec.Struct], data: st.DataObject) -> None:
    value = data.draw(STRATEGIES[struct])

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=struct) == value


@for_each("struct", STRATEGIES)
def test_nobody_changes_what_somebody_else_may_hold(struct: type[msgspec.Struct]) -> None:
    assert struct.__struct_config__.frozen


def test_the_defaults_of_sampling_are_vllms() -> None:
    sampling = Sampling(max_tokens=16)

    assert msgspec.structs.asdict(sampling) == {
        "max_tokens": 16,
        "min_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "stop": (),
        "stop_token_ids": (),
        "include_stop_str_in_output": False,
        "ignore_eos": False,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": None,
        "allowed_token_ids": None,
        "bad_words": (),
        "structured_output": None,
        "logprobs": None,
        "prompt_logprobs": None,
        "skip_special_tokens": True,
    }


def test_a_plain_chunk_is_a_few_bytes() -> None:
    assert len(msgspec.msgpack.encode(Chunk(" the", (262,)))) <= 19


def asked(num_tokens: int, answered_tokens: int, answered_chars: int) -> EngineRequest:
    return EngineRequest(
        request_id="request",
        prompt_token_ids=list(range(num_tokens)),
        sampling=Sampling(max_tokens=1),
        answered_tokens=answered_tokens,
        answered_chars=answered_chars,
    )


@given(num_tokens=st.integers(1, 9), answered_tokens=st.integers(0, 8), answered_chars=st.integers(0, 9))
def test_prompt_and_answer_so_far_are_all_tokens_that_are_sent(
    num_tokens: int, answered_tokens: int, answered_chars: int
) -> None:
    request = asked(num_tokens + answered_tokens, answered_tokens, answered_chars if answered_tokens else 0)

    request.check()

    assert len(request.original_token_ids) == num_tokens
    assert request.original_token_ids + request.answered_token_ids == request.prompt_token_ids


@for_each(
    ("numbers", "param"),
    [
        ((3, 3, 0), "answered_tokens"),
        ((3, 4, 0), "answered_tokens"),
        ((3, -1, 0), "answered_tokens"),
        ((3, 0, 1), "answered_chars"),
        ((3, 1, -1), "answered_chars"),
        ((3, 0, -1), "answered_chars"),
    ],
)
def test_an_answer_that_can_not_have_been_is_refused_by_name(numbers: tuple[int, int, int], param: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        asked(*numbers).check()

    assert caught.value.param == param


@for_each(
    ("fields", "param"),
    [
        ({"logit_bias": dict.fromkeys(range(1_025), 1.0)}, "logit_bias"),
        ({"allowed_token_ids": (7,) * 1_025}, "allowed_token_ids"),
        ({"stop_token_ids": (7,) * 101}, "stop_token_ids"),
        ({"bad_words": ("no",) * 65}, "bad_words"),
        ({"seed": 1 << 63}, "seed"),
        ({"seed": -(1 << 63) - 1}, "seed"),
    ],
)
def test_what_an_engine_has_no_room_for_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    request = EngineRequest(request_id="q", prompt_token_ids=[1], sampling=Sampling(max_tokens=1, **fields))
    with pytest.raises(RequestInvalid) as caught:
        request.check()
    assert caught.value.param == param


def test_as_much_as_an_engine_has_room_for_is_taken() -> None:
    full = Sampling(max_tokens=1, logit_bias=dict.fromkeys(range(1_024), 1.0), bad_words=("no",) * 64, seed=-(1 << 63))
    EngineRequest(request_id="q", prompt_token_ids=[1], sampling=full).check()
