"""Framing: whatever the network cuts, and whatever a stranger sends, frames come whole and in order or not at all."""

from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.data_plane.frames import LENGTH_BYTES, MAX_FRAME_BYTES, FrameError, FrameReader, frame
from deployments.data_plane.messages import (
    Cancel,
    FromGateway,
    Given,
    Grant,
    Open,
    frame_of,
    read_gateway,
    read_replica,
)
from deployments.wire.attempt_call import AttemptOrder
from deployments.wire.inner_hop import Failure, Item, Withdrawn
from engines.contract import Chunk, EngineTimes, KvHandle
from policies import Reason, Role

STREAMS = st.integers(0, 2**40)
TOKENS = st.lists(st.integers(0, 2**20), max_size=6).map(tuple)
ORDERS = st.builds(
    AttemptOrder,
    attempt_id=st.text(max_size=20),
    stage=st.sampled_from(Role),
    request=st.binary(max_size=200),
    handle=st.binary(max_size=50),
    work=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    priority=st.integers(-(2**31), 2**31),
    tied_to=st.none() | st.tuples(st.text(max_size=9), st.text(max_size=9)),
)
FROM_GATEWAY: st.SearchStrategy[FromGateway] = st.one_of(
    st.builds(Open, STREAMS, ORDERS, st.integers(1, 99)),
    st.builds(Grant, STREAMS, st.integers(1, 99)),
    st.builds(Cancel, STREAMS),
)
ITEMS: st.SearchStrategy[Item] = st.one_of(
    st.builds(Chunk, st.text(), TOKENS, times=st.none() | st.just(EngineTimes(0.5))),
    st.builds(Chunk, st.text(), TOKENS, st.sampled_from(("stop", "length", "abort"))),
    st.builds(KvHandle, st.dictionaries(st.text(max_size=5), st.integers(0, 9)), st.integers(0, 99)),
    st.builds(Failure, st.sampled_from(Reason), st.text()),
    st.just(Withdrawn()),
)
GIVEN = st.builds(Given, STREAMS, ITEMS)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data in pieces, cut at these places."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


@given(said=st.lists(st.lists(FROM_GATEWAY, max_size=5), max_size=5), cuts=st.lists(st.integers(0, 10**6), max_size=20))
def test_what_a_gateway_says_arrives_however_the_network_cuts_it(
    said: list[list[FromGateway]], cuts: list[int]
) -> None:
    reader = FrameReader()
    pieces = cut(b"".join(map(frame_of, said)), cuts)
    assert [read_gateway(body) for piece in pieces for body in reader.feed(piece)] == said


@given(said=st.lists(st.lists(GIVEN, max_size=5), max_size=5), cuts=st.lists(st.integers(0, 10**6), max_size=20))
def test_what_a_replica_says_arrives_however_the_network_cuts_it(said: list[list[Given]], cuts: list[int]) -> None:
    reader = FrameReader()
    pieces = cut(b"".join(map(frame_of, said)), cuts)
    assert [read_replica(body) for piece in pieces for body in reader.feed(piece)] == said


@given(st.binary(max_size=300))
def test_a_strangers_bytes_are_a_frame_error_or_nothing_yet(data: bytes) -> None:
    for read in (read_gateway, read_replica):
        reader = FrameReader(max_bytes=100)
        try:
            for body in reader.feed(data):
                read(body)
        except FrameError:
            continue
        assert len(reader._rest) <= LENGTH_BYTES + 100, "it is not made to keep more"


@given(said=st.lists(FROM_GATEWAY, min_size=1, max_size=3), place=st.integers(0, 10**6), to=st.integers(0, 255))
def test_a_changed_byte_is_a_frame_error_or_another_message_and_never_another_exception(
    said: list[FromGateway], place: int, to: int
) -> None:
    body = bytearray(msgspec.msgpack.encode(said))
    body[place % len(body)] = to
    with suppress(FrameError):
        read_gateway(bytes(body))


def test_a_frame_that_is_too_long_is_refused_before_it_is_there() -> None:
    reader = FrameReader(max_bytes=10)
    assert list(reader.feed(frame(b"0123456789"))) == [b"0123456789"]
    with pytest.raises(FrameError, match="11 bytes, where 10"):
        list(reader.feed((11).to_bytes(LENGTH_BYTES)))


def test_nobody_sends_a_frame_that_is_too_long() -> None:
    with pytest.raises(FrameError, match="at most"):
        frame(bytes(MAX_FRAME_BYTES + 1))
