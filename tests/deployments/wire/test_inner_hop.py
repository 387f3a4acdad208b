import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.wire import inner_hop
from deployments.wire.inner_hop import Failure, Withdrawn, failure_of
from engines.contract import Chunk, EngineRequest, KvHandle, Sampling
from policies import Reason
from policies.errors import (
    EngineAborted,
    EngineDied,
    EngineError,
    EngineUnavailable,
    KvTransferFailed,
    PromptWithdrawn,
    RequestInvalid,
)
from tests.tables import for_each

ITEMS: st.SearchStrategy[inner_hop.Item] = st.one_of(
    st.builds(
        Chunk,
        text=st.text(),
        token_ids=st.lists(st.integers(0, 1 << 20)).map(tuple),
        finish_reason=st.sampled_from((None, "stop", "length", "abort")),
    ),
    st.builds(
        KvHandle, params=st.dictionaries(st.text(), st.integers(0, 9) | st.text()), num_tokens=st.integers(0, 99)
    ),
    st.builds(Failure, st.sampled_from(Reason), st.text(), st.none() | st.text()),
    st.just(Withdrawn()),
)


@given(item=ITEMS)
def test_an_item_arrives_as_what_it_was(item: inner_hop.Item) -> None:
    arrived = inner_hop.decode_item(inner_hop.encode(item))
    assert arrived == item
    assert type(arrived) is type(item)


def test_a_request_arrives_as_it_was_sent() -> None:
    request = EngineRequest(
        request_id="q", prompt_token_ids=[1, 2, 3], sampling=Sampling(max_tokens=5, stop=("\n",), logit_bias={7: -1.5})
    )
    assert inner_hop.decode_request(inner_hop.encode(request)) == request


def test_the_handle_that_a_prefill_answers_is_what_a_decode_takes() -> None:
    handle = KvHandle({"remote_block_ids": [1, 2], "remote_host": "10.0.0.1"}, 40)
    encoded = inner_hop.encode(handle)
    assert inner_hop.decode_item(encoded) == inner_hop.decode_handle(encoded) == handle


@for_each("raw", [b"", b"\xc1", b"\x91\x63", b"\x93\x00\xa1a"], ids=["nothing", "junk", "tag", "short"])
def test_what_is_no_item_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        inner_hop.decode_item(raw)


@for_each(
    ("error", "failure"),
    [
        (RequestInvalid("too long", "prompt"), Failure(Reason.INVALID_REQUEST, "too long", "prompt")),
        (RequestInvalid("odd"), Failure(Reason.INVALID_REQUEST, "odd")),
        (KvTransferFailed("lost"), Failure(Reason.KV_TRANSFER_FAILED, "lost")),
        (EngineUnavailable("dead"), Failure(Reason.REPLICA_LOST, "dead", was_taken=False)),
        (EngineDied("it died"), Failure(Reason.REPLICA_LOST, "it died")),
        (PromptWithdrawn("elsewhere"), Withdrawn()),
        (EngineAborted("given up"), Failure(Reason.ENGINE_ERROR, "EngineAborted: given up")),
        (EngineError("odd"), Failure(Reason.ENGINE_ERROR, "EngineError: odd")),
        (ZeroDivisionError("a bug"), Failure(Reason.ENGINE_ERROR, "ZeroDivisionError: a bug")),
    ],
)
def test_every_exception_of_an_engine_has_its_failure(error: Exception, failure: Failure | Withdrawn) -> None:
    assert failure_of(error) == failure
