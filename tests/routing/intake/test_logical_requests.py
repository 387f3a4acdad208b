"""A client's retry has what is left of its logical request's time, and is not repeated when nothing is."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies import PolicyChoice, Reason, RequestView, Role
from routing import (
    DispatcherParams,
    Link,
    NewsReceived,
    Outcome,
    OutcomeKind,
    ToldBy,
    reconfigured,
)
from routing.intake.logical_requests import MOST_REMEMBERED, LogicalRequests
from routing.intake.slos import Slo, Slos
from routing.request.news import FirstArrival, GatewayNews
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import Dialogue
from tests.tables import for_each

SLOS = Slos(default=Slo(ttft_s=5.0))
RATES = ServiceRates(new_token_s=1e-3)
FULL = PolicyChoice(name="bounded_queue", params={"max_wait_s": 0.2})
PROMPT_TOKENS = 1000
"""A second of work."""


def overloaded(**terms: Any) -> Dialogue:
    """One replica with one slot, taken, and as many wait as may."""
    usual = {"admission": FULL, "slos": SLOS, "rates": RATES, **terms}
    talk = Dialogue(**usual).replicas(Role.UNIFIED, "a", slots=1)
    for number in range(9):
        talk.arrives(f"before-{number}", prompt_tokens=PROMPT_TOKENS)
    return talk


def refuses(talk: Dialogue, request_id: str = "first", **terms: Any) -> Outcome:
    """What a request is told that finds no room."""
    talk.arrives(request_id, **{"prompt_tokens": PROMPT_TOKENS, "sent_as": "body", **terms})
    outcome = talk.responses[request_id]
    assert outcome.kind is OutcomeKind.REFUSED
    return outcome


def its_view(talk: Dialogue, request_id: str) -> RequestView:
    return talk.dispatcher._requests[request_id].view


def served_after_a_refusal(at_s: float, first: dict[str, Any], again: dict[str, Any]) -> Dialogue:
    """A request is refused; all that was before it ends; it is sent again and let in."""
    talk = overloaded()
    refuses(talk, **first)
    for number in range(9):
        talk.client_goes(f"before-{number}")
    talk.stops("before-0.0")
    talk.at(at_s).arrives("again", prompt_tokens=PROMPT_TOKENS, **{"sent_as": "body", **again})
    return talk


def overloaded_refuses(ttft_s: float, **terms: Any) -> Outcome:
    return refuses(overloaded(slos=Slos(default=Slo(ttft_s=ttft_s))), **terms)


KEY: dict[str, Any] = {"sent_as": "k", "is_keyed": True}


@for_each(
    ("first", "again", "link"),
    [
        ({}, {"retry_count": 1}, Link.BODY),
        (KEY, KEY, Link.KEY),
        (KEY, {**KEY, "retry_count": 2}, Link.KEY),
    ],
)
def test_a_retry_has_its_first_arrivals_slo_and_deadline(
    first: dict[str, Any], again: dict[str, Any], link: Link
) -> None:
    talk = served_after_a_refusal(3.0, first, again)

    view = its_view(talk, "again")
    assert (view.first_token_by_s, view.deadline_s, view.arrival_s) == (5.0, 60.0, 3.0)
    [record] = talk.client_retries
    assert (record.link, record.first_request_id) == (link, "first")
    assert record.told_by is (ToldBy.HEADER if "retry_count" in again else ToldBy.KEY)


@for_each(
    ("first", "again", "is_known_as_a_retry"),
    [
        ({}, {}, False),
        ({}, {"retry_count": 1, "sent_as": "another body"}, True),
        ({}, {"retry_count": 1, "tenant": "another"}, True),
        (KEY, {"sent_as": "k", "retry_count": 1}, True),
        (KEY, {**KEY, "tenant": "another"}, False),
    ],
)
def test_what_no_key_and_no_counted_body_links_has_its_own_time(
    first: dict[str, Any], again: dict[str, Any], is_known_as_a_retry: bool
) -> None:
    """Equal prompts of two users are two logical requests, as long as nobody counts."""
    talk = served_after_a_refusal(3.0, first, again)

    assert its_view(talk, "again").first_token_by_s == 8.0
    assert [each.link for each in talk.client_retries] == [Link.NONE] * is_known_as_a_retry


def test_a_retry_that_can_not_be_in_time_is_refused_at_once_and_for_good() -> None:
    """Its prompt takes a second, so half a second before its time is over it is too late."""
    talk = overloaded(admission=PolicyChoice(name="always_admit"))
    talk.arrives("first", prompt_tokens=PROMPT_TOKENS, sent_as="body")
    talk.client_goes("first")

    outcome = refuses(talk.at(4.5), "again", retry_count=1)
    assert (outcome.reason, outcome.may_retry) == (Reason.DEADLINE_UNREACHABLE, False)
    assert outcome.retry_after_s >= 8.0  # who comes nevertheless comes behind the queue: eight that wait


def test_who_would_be_too_late_when_it_may_come_back_is_told_not_to() -> None:
    """In a second or so, and then its prompt takes another."""
    assert overloaded_refuses(ttft_s=5.0).may_retry
    assert not overloaded_refuses(ttft_s=2.0).may_retry
    assert overloaded_refuses(ttft_s=2.0, sent_as="").may_retry  # nobody would know it again


def test_a_fault_of_the_fleet_costs_a_retry_its_deadline_and_not_its_slo() -> None:
    talk = Dialogue(slos=SLOS, rates=RATES, params=DispatcherParams(max_attempts=1)).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("first", sent_as="body")
    talk.fails("first.0", Reason.REPLICA_LOST)
    assert talk.responses["first"].kind is OutcomeKind.REFUSED

    talk.at(30.0).arrives("again", sent_as="body", retry_count=1)
    view = its_view(talk, "again")
    assert (view.first_token_by_s, view.deadline_s) == (35.0, 60.0)


def lost_with_two() -> Dialogue:
    """Two replicas were lost with a request, and its client was told not to come back."""
    talk = Dialogue(slos=SLOS, rates=RATES, num_gateways=2).replicas(Role.UNIFIED, *"abcd")
    talk.arrives("first", sent_as="body")
    for attempt_id in ("first.0", "first.1"):
        talk.fails(attempt_id, Reason.REPLICA_LOST)
    assert not talk.responses["first"].may_retry
    return talk


def test_what_two_replicas_were_lost_with_is_not_tried_again_when_its_client_sends_it_again() -> None:
    outcome = refuses(lost_with_two().at(1.0), "again", retry_count=1)
    assert (outcome.reason, outcome.may_retry) == (Reason.REPLICA_LOST, False)


def test_other_gateways_do_not_try_it_again_either() -> None:
    here, there = lost_with_two(), Dialogue(slos=SLOS, rates=RATES, num_gateways=2).replicas(Role.UNIFIED, *"cd")
    there.tell(NewsReceived(news=GatewayNews(arrivals=here.shared, at_s=there.now_s)))

    assert refuses(there.at(1.0), "again", retry_count=1).reason is Reason.REPLICA_LOST


def test_that_replicas_are_lost_with_it_may_turn_out_with_a_retry() -> None:
    """Its first arrival found no room."""
    talk = overloaded(params=DispatcherParams(ramp_stage_s=0))
    refuses(talk)
    talk.replicas(Role.UNIFIED, *"abc", slots=99).at(1.0).arrives("again", sent_as="body", retry_count=1)
    for attempt_id in ("again.0", "again.1"):
        talk.fails(attempt_id, Reason.REPLICA_LOST)

    assert refuses(talk.at(2.0), "third", retry_count=2).reason is Reason.REPLICA_LOST


def test_after_an_answer_a_key_is_free_again() -> None:
    talk = served_after_a_refusal(3.0, KEY, KEY)
    talk.finishes("again.0")
    talk.at(50.0).arrives("another", prompt_tokens=PROMPT_TOKENS, **KEY)

    assert talk.client_retries == []
    assert its_view(talk, "another").first_token_by_s == 55.0


@for_each("window_s", [0.0, 2.0])
def test_nothing_is_linked_outside_of_the_window(window_s: float) -> None:
    talk = overloaded(params=DispatcherParams(client_retry_window_s=window_s))
    refuses(talk, **KEY)
    talk.at(6.0).arrives("again", prompt_tokens=PROMPT_TOKENS, **KEY)

    assert talk.client_retries == []


def test_a_retry_is_known_at_another_gateway_that_was_told() -> None:
    here, there = overloaded(num_gateways=2), overloaded(num_gateways=2)
    refuses(here)
    there.tell(NewsReceived(news=GatewayNews(arrivals=here.shared, at_s=there.now_s)))

    refuses(there.at(6.0), "again", retry_count=1)
    assert [(each.link, each.first_request_id) for each in there.client_retries] == [(Link.BODY, "first")]
    assert there.shared == ()  # they know it already


def test_a_gateway_by_itself_tells_nobody() -> None:
    talk = overloaded()
    refuses(talk)
    assert (talk.shared, talk.dispatcher.shares_news) == ((), False)


def test_what_was_not_answered_outlives_a_change_of_the_policies() -> None:
    talk = overloaded()
    refuses(talk)
    talk.tell(reconfigured(replace(talk.spec, slos=Slos(default=Slo(ttft_s=7.0)))))

    talk.at(20.0).arrives("again", prompt_tokens=PROMPT_TOKENS, sent_as="body", retry_count=1)
    assert [each.link for each in talk.client_retries] == [Link.BODY]


def arrival(key: int, arrival_s: float = 0.0) -> FirstArrival:
    return FirstArrival(key=key, request_id=str(key), arrival_s=arrival_s, deadline_s=arrival_s + 60.0)


def test_the_oldest_of_too_many_are_forgotten() -> None:
    known = LogicalRequests(120.0)
    known.take_in([arrival(key) for key in range(MOST_REMEMBERED + 3)], 0.0)
    assert len(known) == MOST_REMEMBERED
    known.take_in([arrival(-1)], 121.0)
    assert len(known) == 1


@given(st.lists(st.floats(0, 50), min_size=1, max_size=8), st.floats(50, 55))
def test_of_equal_bodies_a_retry_is_linked_to_the_latest(arrivals_s: list[float], now_s: float) -> None:
    """So that a link that is wrong takes no time from anybody, in whatever order gateways hear of them."""
    known = LogicalRequests(120.0)
    view = RequestView(
        request_id="q", prompt_tokens=1, max_output_tokens=1, arrival_s=now_s, deadline_s=200.0, logical_request_id="b"
    )
    refused = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.QUEUE_FULL, retry_after_s=1.0)
    for at_s in arrivals_s:
        elsewhere = LogicalRequests(120.0, is_shared=True)
        _, [shared] = elsewhere.end(replace(view, arrival_s=at_s), refused, now_s)
        known.take_in([shared.arrival], now_s)
    linked = known.link(replace(view, retry_count=1), now_s).request

    assert linked.first_arrival_s == max(arrivals_s)
