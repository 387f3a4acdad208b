"""Server-sent events, however the network cuts them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.answer_stream import AnswerStream
from loadtests.completions import ending_of
from routing.effects import OutcomeKind

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


@pytest.mark.parametrize("event", [TEXT, CHAT, HELD_BACK])
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


def test_comments_and_carriage_returns_are_no_events() -> None:
    """Proxies send comments to keep a connection open."""
    stream = AnswerStream()
    stream.feed(b': still here\r\n\r\ndata: {"choices": [{"text": "a"}]}\r\n\r\ndata: [DONE]\r\n\r\n', 1.0)

    assert (stream.events, stream.is_done) == (1, True)


@pytest.mark.parametrize(
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
