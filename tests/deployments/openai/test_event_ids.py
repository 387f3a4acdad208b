import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.errors import ApiError
from deployments.openai.event_ids import EventId, EventIds, NoEventIds
from engines.contract import Chunk
from tests.tables import for_each

chunks = st.lists(st.builds(Chunk, st.text(max_size=4), st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple)))


@given(chunks)
def test_the_id_of_an_event_says_what_its_client_has_however_the_tokens_were_cut_into_events(
    given: list[Chunk],
) -> None:
    ids, last = EventIds(EventId("cmpl-1")), b""
    for chunk in given:
        last = ids.line(chunk)
    token_ids = [token for chunk in given for token in chunk.token_ids]
    at_once = EventId("cmpl-1").after(token_ids, sum(len(chunk.text) for chunk in given))
    assert not given or last == f"id: {at_once}\n".encode()
    assert not token_ids or EventId.parse(str(at_once)) == at_once


def test_other_tokens_have_another_id() -> None:
    assert EventId("a").after((1, 2), 3) != EventId("a").after((2, 1), 3)


def test_who_goes_on_counts_on() -> None:
    last = EventId("cmpl-1").after((1, 2), 7)
    assert EventIds(last).line(Chunk("x", (3,))) == f"id: {EventId('cmpl-1').after((1, 2, 3), 8)}\n".encode()


def test_an_answer_that_nobody_comes_back_for_has_none() -> None:
    assert NoEventIds().line(Chunk("x", (3,))) == b""


@for_each(
    "said",
    ["7", "a.1.1", "a.0.0.00000000", "a.1.1.0000000g", "a b.1.1.00000000", "a.-1.1.00000000", "a.1.1.00000000\n"],
)
def test_what_is_no_id_is_refused(said: str) -> None:
    with pytest.raises(ApiError) as refused:
        EventId.parse(said)
    assert (refused.value.status, refused.value.param) == (400, "last-event-id")
