"""Server-sent events, however the network cuts them."""

import itertools
import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.drivers.answer_stream import AnswerStream
from loadtests.drivers.endings import Ending, broken_off, ending_of
from routing.request.effects import OutcomeKind
from tests.tables import for_each

ROLE = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
TEXT = b'data: {"choices": [{"text": "a\\n"}]}\n\n'
CHAT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
HELD_BACK = b'data: {"choices": [{"text": "", "token_ids": [200]}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}}}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = TEXT + HELD_BACK + TEXT + USAGE + DONE


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=8))
def test_it_does_not_matter_where_the_network_cuts(cuts: list[int]) -> None:
    """Each byte is read once, and an event counts when its end is there."""
    stream = AnswerStream()
    edges = [0, *sorted(cuts), len(WHOLE)]
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        stream.feed(WHOLE[begin:end], float(number))

    assert (stream.events, stream.output_tokens, stream.cached_tokens, stream.is_done) == (3, 9, 64, True)
    assert 0 <= stream.first_s <= stream.last_s < len(edges)


@for_each("event", [TEXT, CHAT, HELD_BACK])
def test_the_first_token_is_the_first_text_or_token_id(event: bytes) -> None:
    """A role that is flushed early would make a slow service look quick."""
    stream = AnswerStream()
    stream.feed(ROLE, 1.0)
    assert math.isnan(stream.first_s)

    stream.feed(event, 2.0)
    stream.feed(event, 3.0)
    stream.feed(USAGE + DONE, 4.0)
    assert (stream.first_s, stream.last_s, stream.events) == (2.0, 3.0, 2)


def test_an_error_event_is_kept_and_ends_nothing() -> None:
    """Whoever reads decides what it means."""
    stream = AnswerStream()
    stream.feed(TEXT + b'data: {"error": {"code": "replica_lost", "message": "gone"}}\n\n', 1.0)

    assert stream.error == {"code": "replica_lost", "message": "gone"}
    assert not stream.is_done


def test_done_after_an_error_event_completes_nothing() -> None:
    stream = AnswerStream()
    stream.feed(TEXT + b'data: {"error": {"code": "engine_error", "message": "gone"}}\n\n' + DONE, 1.0)

    ending = ending_of(stream)
    assert (ending.outcome.kind, ending.error) == (OutcomeKind.FAILED, "error event: gone")


def test_done_without_any_token_completes_nothing() -> None:
    stream = AnswerStream()
    stream.feed(ROLE + DONE, 1.0)

    ending = ending_of(stream)
    assert (ending.outcome.kind, ending.outcome.reason) == (OutcomeKind.FAILED, None)
    assert ending.error == "a stream ended without any token"


def test_tokens_that_only_the_usage_knows_of_are_an_answer() -> None:
    """One token may be a special one, which has no text."""
    stream = AnswerStream()
    stream.feed(ROLE + USAGE + DONE, 1.0)

    assert ending_of(stream).outcome.kind is OutcomeKind.COMPLETED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("choices", "usage", "error", "spillway", "text", "delta", "token_ids", "completion_tokens", "cached_tokens")
EVENTS = st.recursive(
    JSON,
    lambda inner: (
        st.dictionaries(st.sampled_from((*FIELDS, "prompt_tokens_details", "latency_budget_s")), inner)
        | st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


def ending_after(stream: AnswerStream, data: bytes) -> Ending:
    """As drivers do it."""
    try:
        stream.feed(data, 1.0)
    except ValueError as error:
        return broken_off(error)
    return ending_of(stream)


@given(events=st.lists(EVENTS, max_size=3), is_done=st.booleans())
def test_whatever_a_server_sends_has_an_ending(events: list[object], is_done: bool) -> None:
    """One strange answer must not end a run of thousands; and what is not completed says why."""
    data = b"".join(b"data: " + msgspec.json.encode(each) + b"\n\n" for each in events)
    stream = AnswerStream()
    ending = ending_after(stream, data + (DONE if is_done else b""))

    assert (ending.outcome.kind is OutcomeKind.COMPLETED) == (not ending.error)
    assert is_done or ending.error


@for_each(
    ("event", "where"),
    [
        ({"choices": [], "usage": {"completion_tokens": 1, "prompt_tokens_details": 7}}, "usage.prompt_tokens_details"),
        ({"choices": [{"text": 7}]}, "choices[0].text"),
        ({"choices": [], "spillway": {"latency_budget_s": {"queue": "long"}}}, "latency_budget_s[...]"),
        ({"choices": [], "spillway": {"latency_budget_s": {"queue": 1e300}}}, "latency_budget_s[...]"),
        (5, "object"),
        ({"choices": [], "usage": {"completion_tokens": 3_000_000_000}}, "usage.completion_tokens"),
    ],
)
def test_what_is_no_completion_says_where(event: object, where: str) -> None:
    with pytest.raises(ValueError, match=re.escape(where)):
        AnswerStream().feed(b"data: " + msgspec.json.encode(event) + b"\n\n", 1.0)


def test_json_that_is_nested_without_end_is_no_completion_either() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        AnswerStream().feed(b'data: {"error": ' + b"[" * 100_000 + b"\n", 1.0)


def test_what_follows_the_end_is_not_read() -> None:
    """A driver that reads line by line never sees it, and one that reads what has come does."""
    stream = AnswerStream()
    stream.feed(TEXT + DONE + b"data: {junk\n", 1.0)

    assert ending_of(stream).outcome.kind is OutcomeKind.COMPLETED


def test_comments_and_carriage_returns_are_no_events() -> None:
    """Proxies send comments to keep a connection open."""
    stream = AnswerStream()
    stream.feed(b': still here\r\n\r\ndata: {"choices": [{"text": "a"}]}\r\n\r\ndata: [DONE]\r\n\r\n', 1.0)

    assert (stream.events, stream.is_done) == (1, True)


@for_each(
    ("events", "whole"),
    [
        (TEXT * 9, True),
        (HELD_BACK * 9, True),
        (HELD_BACK * 8, False),
        (HELD_BACK * 10, False),
    ],
    ids=["no ids", "all", "one lost", "one too many"],
)
def test_an_answer_has_its_length_when_usage_and_streamed_ids_say_so(events: bytes, whole: bool) -> None:
    """Two attempts' tokens in one stream would show as too many, whatever the usage says."""
    stream = AnswerStream()
    stream.feed(events + USAGE + DONE, 1.0)

    assert stream.has_length(9) is whole
    assert not stream.has_length(8)


def test_without_a_usage_what_came_is_the_length() -> None:
    stream = AnswerStream()
    stream.feed(HELD_BACK * 9 + DONE, 1.0)

    assert stream.has_length(9)
    assert not stream.has_length(8)


@given(cut=st.integers(0, 400))
def test_whoever_goes_on_after_the_last_event_id_has_each_token_once_wherever_the_connection_broke(cut: int) -> None:
    events = [b"id: a.%d\n" % number + HELD_BACK for number in range(5)]
    stream = AnswerStream()
    stream.feed(b"".join(events)[:cut], 1.0)
    stream.break_off()
    has = int(stream.last_event_id.partition(".")[2]) + 1 if stream.last_event_id else 0
    stream.feed(b"".join(events[has:]) + USAGE + DONE, 2.0)
    assert (stream.token_ids, stream.events, stream.is_done) == (5, 5, True)
