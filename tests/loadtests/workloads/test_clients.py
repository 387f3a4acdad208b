import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import Arrival, PlannedRequest, Seeds, Traffic
from loadtests.workloads.clients import AbandonedRequest, Clients, IdentifiedBy, Retries
from loadtests.workloads.turns import ConstantTurns
from loadtests.workloads.workload import TrafficClass, Workload
from policies import ConfigError, Reason
from routing import Outcome, OutcomeKind
from tests.loadtests.sample_workloads import CHAT, COMPLETED, dialogue, research
from tests.tables import for_each

REFUSED = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.ADMISSION_REJECTED, retry_after_s=4.0)
FAILED = Outcome(kind=OutcomeKind.FAILED, reason=Reason.REPLICA_LOST)
CANCELLED = Outcome(kind=OutcomeKind.CANCELLED, reason=Reason.CLIENT_GONE)
INVALID = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.INVALID_REQUEST)

STEADY = Retries(max_requests=4, backoff_s=1.0, factor=2.0, cap_s=100.0, jitter_fraction=0.0, honours_retry_after=False)
TALK = dialogue(ConstantTurns(num_turns=3), system_prompt_tokens=128)


def clients_of(
    *classes: TrafficClass, retries: Retries | None = None, duration_s: float = 300.0, seed: int = 7
) -> tuple[Clients, list[PlannedRequest]]:
    """Clients, and the requests of their plan, which they have sent."""
    clients = Clients(Workload(classes=classes, duration_s=duration_s), Seeds(seed), retries)
    return clients, [arrival.request for arrival in clients.arrivals()]


def retries_of(clients: Clients, request: PlannedRequest, outcome: Outcome) -> list[Arrival]:
    """All retries of a request that always ends like this, and each at the moment in which it is sent."""
    sent: list[Arrival] = []
    following: Sequence[Arrival] = clients.on_end(request, outcome, request.scheduled_s)
    while following:
        sent.extend(following)
        following = clients.on_end(sent[-1].request, outcome, sent[-1].at_s)
    return sent


def pauses_s(clients: Clients, request: PlannedRequest, outcome: Outcome = FAILED) -> list[float]:
    sent_s = [request.scheduled_s, *(each.at_s for each in retries_of(clients, request, outcome))]
    return [later - earlier for earlier, later in itertools.pairwise(sent_s)]


def test_clients_are_a_simulators_traffic() -> None:
    traffic: Traffic = clients_of(CHAT)[0]

    assert next(iter(traffic.arrivals())).request.logical_request == 0


def test_by_default_nobody_tries_again() -> None:
    clients, requests = clients_of(CHAT)

    assert clients.on_end(requests[0], REFUSED, 5.0) == ()


def test_a_retry_is_the_same_logical_request_with_another_id() -> None:
    clients, requests = clients_of(CHAT, retries=STEADY)

    (arrival,) = clients.on_end(requests[3], REFUSED, 50.0)

    assert arrival.at_s == 51.0
    assert arrival.request.request_id == "3-1"
    assert arrival.request.retry_index == 1
    assert [getattr(arrival.request, name) for name in UNCHANGED] == [getattr(requests[3], name) for name in UNCHANGED]


UNCHANGED = tuple(
    name for name in PlannedRequest.__struct_fields__ if name not in {"request_id", "retry_index", "retry_count"}
)


@for_each(
    ("identified_by", "keys", "counts"),
    [
        (IdentifiedBy.COUNT, ["", ""], [0, 1]),
        (IdentifiedBy.KEY, ["logical-3", "logical-3"], [0, 0]),
        (IdentifiedBy.NOTHING, ["", ""], [0, 0]),
    ],
)
def test_a_retry_says_what_it_is_as_its_clients_library_does(
    identified_by: IdentifiedBy, keys: list[str], counts: list[int]
) -> None:
    clients, requests = clients_of(CHAT, retries=replace(STEADY, identified_by=identified_by))
    (arrival,) = clients.on_end(requests[3], REFUSED, 50.0)

    sent = [requests[3], arrival.request]
    assert [each.idempotency_key for each in sent] == keys
    assert [each.retry_count for each in sent] == counts
    assert len({each.body for each in sent}) == 1


def test_a_later_turn_of_a_session_is_no_retry() -> None:
    clients, requests = clients_of(TALK, retries=replace(STEADY, identified_by=IdentifiedBy.KEY))
    (turn,) = clients.on_end(requests[0], COMPLETED, 5.0)

    assert (turn.request.retry_count, turn.request.idempotency_key) == (0, f"logical-{turn.request.logical_request}")


def test_requests_end_with_their_budget_and_each_pause_is_longer() -> None:
    clients, requests = clients_of(CHAT, retries=STEADY)

    assert pauses_s(clients, requests[0]) == pytest.approx([1, 2, 4])


def test_a_pause_grows_no_further_than_its_cap() -> None:
    clients, requests = clients_of(CHAT, retries=replace(STEADY, max_requests=2_000, cap_s=3.0))

    pauses = pauses_s(clients, requests[0])

    assert pauses[:4] == pytest.approx([1, 2, 3, 3])
    assert len(pauses) == 1_999
    assert max(pauses) == pytest.approx(3)


@for_each(
    ("outcome", "retry_on", "is_retried"),
    [
        (REFUSED, (OutcomeKind.REFUSED, OutcomeKind.FAILED), True),
        (FAILED, (OutcomeKind.REFUSED, OutcomeKind.FAILED), True),
        (CANCELLED, (OutcomeKind.REFUSED, OutcomeKind.FAILED), False),
        (FAILED, (OutcomeKind.REFUSED,), False),
        (CANCELLED, (OutcomeKind.CANCELLED,), True),
        (INVALID, (OutcomeKind.REFUSED,), False),
        (COMPLETED, tuple(OutcomeKind)[1:], False),
    ],
)
def test_only_the_declared_outcomes_are_tried_again(
    outcome: Outcome, retry_on: tuple[OutcomeKind, ...], is_retried: bool
) -> None:
    clients, requests = clients_of(CHAT, retries=replace(STEADY, retry_on=retry_on))

    assert bool(clients.on_end(requests[0], outcome, 1.0)) is is_retried


@for_each(("honours", "pause_s"), [(True, 4.0), (False, 1.0)])
def test_retry_after_is_waited_for_by_clients_that_honour_it(honours: bool, pause_s: float) -> None:
    clients, requests = clients_of(CHAT, retries=replace(STEADY, honours_retry_after=honours))

    assert pauses_s(clients, requests[0], REFUSED)[0] == pytest.approx(pause_s)


def test_a_short_retry_after_shortens_no_pause() -> None:
    clients, requests = clients_of(CHAT, retries=replace(STEADY, honours_retry_after=True))

    assert pauses_s(clients, requests[0], msgspec.structs.replace(REFUSED, retry_after_s=0.1)) == pytest.approx(
        [1, 2, 4]
    )


@given(
    jitter=st.floats(0, 1),
    factor=st.floats(1, 10),
    backoff_s=st.floats(0, 10),
    cap_s=st.floats(0, 20),
    seed=st.integers(0),
)
def test_jitter_keeps_each_pause_within_its_bounds(
    jitter: float, factor: float, backoff_s: float, cap_s: float, seed: int
) -> None:
    retries = replace(STEADY, jitter_fraction=jitter, factor=factor, backoff_s=backoff_s, cap_s=cap_s)
    clients, requests = clients_of(CHAT, retries=retries, duration_s=1, seed=seed)

    for request in requests[:5]:
        for index, pause_s in enumerate(pauses_s(clients, request)):
            middle_s = min(cap_s, backoff_s * factor**index)
            assert middle_s * (1 - jitter) - 1e-9 <= pause_s <= middle_s * (1 + jitter) + 1e-9


def test_jitter_spreads_over_its_whole_width() -> None:
    clients, requests = clients_of(CHAT, retries=replace(STEADY, jitter_fraction=0.5))

    first_pauses_s = sorted(pauses_s(clients, request)[0] for request in requests[:1_000])

    assert first_pauses_s[0] == pytest.approx(0.5, abs=0.01)
    assert first_pauses_s[500] == pytest.approx(1.0, abs=0.07)
    assert first_pauses_s[-1] == pytest.approx(1.5, abs=0.01)


def test_one_requests_retries_never_shift_anothers() -> None:
    retries = replace(STEADY, jitter_fraction=0.5)
    quiet, requests = clients_of(CHAT, retries=retries)
    busy, _ = clients_of(CHAT, retries=retries)
    for request in requests[:50]:
        retries_of(busy, request, FAILED)

    assert pauses_s(busy, requests[60]) == pauses_s(quiet, requests[60])
    assert pauses_s(quiet, requests[60]) != pauses_s(quiet, requests[61])


def test_another_seed_jitters_otherwise() -> None:
    retries = replace(STEADY, jitter_fraction=0.5)
    one, requests = clients_of(CHAT, retries=retries)
    other, _ = clients_of(CHAT, retries=retries, seed=8)

    assert pauses_s(one, requests[0]) != pauses_s(other, requests[0])


def test_the_next_turn_comes_a_think_time_after_the_answer() -> None:
    clients, requests = clients_of(TALK)

    (second,) = clients.on_end(requests[0], COMPLETED, 20.0)
    (third,) = clients.on_end(second.request, COMPLETED, 45.0)

    assert (second.at_s, third.at_s) == (30.0, 55.0)
    assert [each.request.scheduled_s for each in (second, third)] == [30.0, 55.0]
    assert [each.request.logical_request for each in (second, third)] == [1, 2]
    assert [each.request.request_id for each in (second, third)] == ["1-0", "2-0"]
    assert clients.on_end(third.request, COMPLETED, 60.0) == ()


def test_the_next_turn_repeats_all_that_was_said() -> None:
    clients, requests = clients_of(TALK)
    first = requests[0]

    second = clients.on_end(first, COMPLETED, 20.0)[0].request

    assert second.prompt_tokens >= first.prompt_tokens + first.output_tokens + 20
    assert len(first.content) == (first.prompt_tokens + first.output_tokens) // 64
    assert second.content[: len(first.content)] == first.content
    assert len(second.content) == (second.prompt_tokens + second.output_tokens) // 64
    assert second.content_unit_tokens == first.content_unit_tokens == 64
    assert (second.timeout_s, second.traffic_class) == (first.timeout_s, first.traffic_class)


def test_a_turn_that_was_tried_again_is_followed_by_the_next_turn() -> None:
    clients, requests = clients_of(TALK, retries=STEADY)

    (retry,) = clients.on_end(requests[0], REFUSED, 20.0)
    (second,) = clients.on_end(retry.request, COMPLETED, 25.0)

    assert retry.request.request_id == "0-1"
    assert retry.request.content == requests[0].content
    assert (second.request.request_id, second.request.retry_index, second.at_s) == ("1-0", 0, 35.0)
    assert clients.abandoned == []


def test_what_is_said_does_not_depend_on_when_it_was_answered() -> None:
    def conversation(delay_s: float) -> list[tuple[int, int, tuple[int, ...]]]:
        clients, requests = clients_of(TALK)
        said = []
        for opening in reversed(requests) if delay_s > 1 else requests:
            following: Sequence[Arrival] = clients.on_end(opening, COMPLETED, opening.scheduled_s + delay_s)
            said += [
                (each.request.logical_request, each.request.prompt_tokens, each.request.content) for each in following
            ]
        return sorted(said)

    early, late = conversation(0.1), conversation(5.0)
    assert late == early[: len(late)]
    assert len(late) > 50


def test_the_turns_after_a_failed_one_are_abandoned_and_counted() -> None:
    clients, requests = clients_of(TALK)
    (second,) = clients.on_end(requests[0], COMPLETED, 20.0)

    assert clients.on_end(second.request, FAILED, 40.0) == ()
    (third,) = clients.abandoned

    assert third.prompt_tokens > second.request.prompt_tokens
    assert third == AbandonedRequest(
        logical_request=2,
        session=0,
        traffic_class=0,
        scheduled_s=50.0,
        abandoned_s=40.0,
        prompt_tokens=third.prompt_tokens,
    )


def test_a_session_is_abandoned_only_when_its_requests_are_used_up() -> None:
    clients, requests = clients_of(TALK, retries=STEADY)

    assert len(retries_of(clients, requests[0], FAILED)) == 3
    assert [each.logical_request for each in clients.abandoned] == [1, 2]


def test_a_request_without_a_session_abandons_nothing() -> None:
    clients, requests = clients_of(CHAT)
    clients.on_end(requests[0], FAILED, 5.0)

    assert clients.abandoned == []


def test_turns_after_the_end_are_not_offered_whether_or_not_the_session_failed() -> None:
    clients, requests = clients_of(TALK, duration_s=60.0)

    assert clients.on_end(requests[0], COMPLETED, 50.0) == ()
    assert clients.turns_after_end == 2
    clients.on_end(requests[1], FAILED, 45.0)

    assert [each.scheduled_s for each in clients.abandoned] == [55.0]
    assert clients.turns_after_end == 3


def test_an_agents_next_step_waits_for_the_last_answer_or_refusal_of_the_step_before() -> None:
    clients, requests = clients_of(research(num_steps=3, num_calls=2))

    left, right = clients.on_end(requests[0], COMPLETED, 20.0)
    assert (left.at_s, right.at_s) == (30.0, 30.0)
    assert (left.request.request_id, right.request.request_id) == ("1-0", "2-0")

    assert clients.on_end(right.request, REFUSED, 31.0) == ()
    third = clients.on_end(left.request, COMPLETED, 35.0)
    assert [(each.at_s, each.request.logical_request, each.request.session) for each in third] == [
        (45.0, 3, 0),
        (45.0, 4, 0),
    ]
    assert clients.abandoned == []


def test_a_task_of_which_no_call_of_a_step_was_answered_is_abandoned() -> None:
    clients, requests = clients_of(research(num_steps=3, num_calls=2))
    step = clients.on_end(requests[0], COMPLETED, 20.0)

    for arrival, at_s in zip(step, (31.0, 33.0), strict=True):
        assert clients.on_end(arrival.request, FAILED, at_s) == ()

    assert [(each.logical_request, each.scheduled_s) for each in clients.abandoned] == [(3, 43.0), (4, 43.0)]


@given(
    st.lists(st.sampled_from([COMPLETED, REFUSED, FAILED, CANCELLED]), min_size=1),
    st.integers(1, 3),
    st.sampled_from([TALK, research(num_steps=2, num_calls=2)]),
)
def test_every_turn_is_sent_or_abandoned_or_after_the_end_and_nothing_is_remembered(
    outcomes: list[Outcome], max_requests: int, conversations: TrafficClass
) -> None:
    retries = replace(STEADY, max_requests=max_requests)
    clients, openings = clients_of(conversations, CHAT, retries=retries, duration_s=60.0)
    logical_requests = set()
    pending = list(openings)
    for number in range(len(pending) * 20):
        if not pending:
            break
        request = pending.pop()
        logical_requests.add(request.logical_request)
        outcome = outcomes[number % len(outcomes)]
        pending += [each.request for each in clients.on_end(request, outcome, request.scheduled_s + 1.0)]

    abandoned = {each.logical_request for each in clients.abandoned}
    num_sessions = sum(each.traffic_class == 0 for each in openings)
    assert not pending
    assert not logical_requests & abandoned
    assert (
        len(logical_requests) + len(abandoned) + clients.turns_after_end
        == 3 * num_sessions + len(openings) - num_sessions
    )
    assert clients.num_sessions == 0


@for_each(
    ("make", "field"),
    [
        (lambda: Retries(max_requests=0), "max_requests"),
        (lambda: Retries(backoff_s=-1), "backoff_s"),
        (lambda: Retries(factor=0.5), "factor"),
        (lambda: Retries(cap_s=float("inf")), "cap_s"),
        (lambda: Retries(jitter_fraction=1.5), "jitter_fraction"),
        (lambda: Retries(retry_on=(OutcomeKind.COMPLETED,)), "retry_on"),
    ],
)
def test_a_wrong_value_is_named(make: Callable[[], Retries], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()

    assert caught.value.field == field
