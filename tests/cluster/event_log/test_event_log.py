"""What was written down comes back; what was cut off or damaged is told apart."""

import dataclasses
import io
import json
import math
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import GatewayStreams, LogHeader, Seeds
from cluster.event_log.frames import (
    CLOSED,
    MAGIC,
    VERSION,
    EventLogUnreadable,
    LogReader,
    encode_answer,
    encode_end,
    encode_header,
    encode_record,
    frame,
)
from policies import PolicyChoice, PolicySpec, Quota, Role, TenantTerms
from routing import Arrived, Cancel, DispatcherParams, DispatcherSpec, Effect, Event, FirstTokenReceived, SetTimer
from tests.cluster.logged import A_SPEC, LogInMemory, a_header, read_all
from tests.hash_seeds import printed_by
from tests.policy_doubles import a_request
from tests.routing.request.test_encoding import an_example_of
from tests.tables import for_each

ROOT = Path(__file__).parents[3]
EVENTS: list[Event] = [an_example_of(each) for each in get_args(Event)]
EFFECTS: list[Effect] = [an_example_of(each) for each in get_args(Effect)]
PARAMS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def a_log() -> LogInMemory:
    """Each kind of event, with each kind of effect."""
    log = LogInMemory(a_header())
    for number, event in enumerate(EVENTS):
        log.on_event(number / 3, event, EFFECTS[number:])
    return log


def test_a_log_comes_back_as_it_was_told() -> None:
    reader = LogReader(a_log().file())

    records = list(reader)

    assert reader.header == a_header()
    assert [each.now_s for each in records] == [number / 3 for number in range(len(EVENTS))]
    assert [each.event for each in records] == EVENTS
    assert [bytes(each.answer) for each in records] == [encode_answer(EFFECTS[n:]) for n in range(len(EVENTS))]
    assert (reader.num_records, reader.end_reason, reader.cut_off_bytes) == (len(EVENTS), CLOSED, 0)


def test_times_without_end_come_back() -> None:
    """A simulated client may wait for ever."""
    endless = dataclasses.replace(a_request(), deadline_s=math.inf)
    log = LogInMemory(a_header())
    log.on_event(0.0, Arrived(request=endless), [SetTimer(token="q:deadline", at_s=math.inf)])

    (record,) = LogReader(log.file())

    assert record.event == Arrived(request=endless)


@given(seed=st.integers(), prefix=st.text(), name=st.text(), params=st.dictionaries(st.text(), PARAMS))
def test_a_header_comes_back_whatever_the_seed_and_the_parameters(
    seed: int, prefix: str, name: str, params: dict[str, object]
) -> None:
    header = LogHeader(
        gateway=name,
        streams=GatewayStreams(seed=seed, prefix=prefix, suffix=name),
        dispatcher=DispatcherSpec(
            planner=PolicyChoice(name=name, params=params),
            pools={role.value: role for role in Role},
            policies=PolicySpec(balancing=PolicyChoice(name=name, params=params)),
            params=DispatcherParams(max_attempts=3, quarantine_s=1 / 3),
            tenants={name: TenantTerms(weight=1 / 3, quota=Quota(work_per_s=0.1, burst_s=2.0)), "else": TenantTerms()},
            num_gateways=3,
        ),
    )

    back = read_all(encode_header(header)).header

    assert back == header
    assert list(back.dispatcher.policies.balancing.params) == list(params), "a policy may go by their order"


def test_a_header_does_not_depend_on_how_strings_are_hashed() -> None:
    program = (
        "from tests.cluster.event_log.test_event_log import *\n"
        "spec = DispatcherSpec(planner=PolicyChoice(name='always_unified'), pools={r.value: r for r in Role})\n"
        "print(encode_header(a_header(spec)).hex())"
    )

    assert len({printed_by(seed, program) for seed in ("1", "2")}) == 1


def test_streams_of_a_gateway_are_those_of_the_seed_under_longer_names() -> None:
    streams = GatewayStreams(seed=7, prefix="gateway.3.", suffix="-x")

    assert streams.stream("admission").random() == Seeds(7).stream("gateway.3.admission-x").random()


def test_a_log_without_an_end_is_read_to_where_it_goes() -> None:
    reader = read_all(a_log().whole(end=None))

    assert (reader.num_records, reader.end_reason, reader.cut_off_bytes) == (len(EVENTS), None, 0)


@given(data=st.data())
def test_a_log_that_was_cut_off_is_valid_up_to_its_last_whole_record(data: st.DataObject) -> None:
    log = a_log()
    whole = log.whole()
    beginning = len(encode_header(log.header))
    cut = data.draw(st.integers(beginning, len(whole) - 1))
    boundaries = [beginning]
    for each in log.frames:
        boundaries.append(boundaries[-1] + len(each))

    reader = read_all(whole[:cut])

    assert reader.num_records == sum(each <= cut for each in boundaries[1:])
    assert reader.cut_off_bytes == cut - max(each for each in boundaries if each <= cut)
    assert reader.end_reason is None


@given(data=st.data())
def test_no_byte_can_change_unseen(data: st.DataObject) -> None:
    damaged = bytearray(a_log().whole())
    position = data.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= data.draw(st.integers(1, 255))

    with pytest.raises(EventLogUnreadable):
        read_all(bytes(damaged))


@given(data=st.data())
def test_bytes_that_are_missing_in_the_middle_are_no_cut_off_record(data: st.DataObject) -> None:
    log = a_log()
    whole, first = log.whole(), len(encode_header(log.header))
    start = data.draw(st.integers(first, len(whole) - 30))
    length = data.draw(st.integers(1, 11))  # shorter than any frame, so no whole record is taken out

    with pytest.raises(EventLogUnreadable, match="after record"):
        read_all(whole[:start] + whole[start + length :])


@for_each(
    ("data", "said"),
    [
        (b"", "not an event log"),
        (b"PK\x03\x04 something else", "not an event log"),
        (MAGIC, "ends before its header"),
        (encode_header(a_header())[:-1], "ends before its header"),
        (MAGIC + frame(b"[]"), "header is none"),
        (MAGIC + frame(b"{"), "header is none"),
        (MAGIC + frame(json.dumps({"version": VERSION, "gateway": "gw"}).encode()), "header is none"),
        (
            MAGIC + frame(json.dumps({"version": 3}).encode()),
            "version 3; readable: 6; the release that wrote the log reads it",
        ),
        (MAGIC + frame(json.dumps({"version": 1}).encode()), "version 1; readable: 6"),
        (encode_header(a_header()) + frame(b"\x07"), "after record 0: not a record"),
        (encode_header(a_header()) + encode_end(CLOSED) + encode_end(CLOSED), "something follows the end"),
    ],
    ids=["empty", "other", "bare", "short", "list", "json", "fields", "older", "version", "record", "after"],
)
def test_what_is_no_log_is_refused_in_words(data: bytes, said: str) -> None:
    with pytest.raises(EventLogUnreadable, match=said):
        read_all(data)


def test_a_record_is_small_and_self_describing() -> None:
    """The names of events and effects are in it, so that any msgpack tool can show it."""
    payload = encode_record(1.5, an_example_of(FirstTokenReceived), [an_example_of(Cancel)])

    assert msgspec.msgpack.decode(payload) == [
        1.5,
        {"type": "FirstTokenReceived", "attempt_id": "q"},
        [{"type": "Cancel", "attempt_id": "q"}],
    ]
    assert len(payload) < 100


def test_reading_takes_one_record_at_a_time() -> None:
    log = a_log()
    file = io.BytesIO(log.whole())
    reader = LogReader(file)

    next(iter(reader))

    assert file.tell() == len(encode_header(log.header)) + len(log.frames[0])
    assert reader.header.dispatcher == A_SPEC
