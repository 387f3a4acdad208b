"""A second attempt beside a slow one: the first token wins, the loser is stopped."""

from collections.abc import Callable

import pytest

from policies import PolicyChoice, Reason, Role
from policies.errors import PolicyMisbehaved
from routing import DispatcherParams, Race, Record
from tests.routing.dialogue import Dialogue, completed, hedge_after, refused
from tests.tables import for_each


def hedging(*, slots: int = 8, max_attempts: int = 4) -> Dialogue:
    talk = Dialogue(hedging=hedge_after(0.5), params=DispatcherParams(max_attempts=max_attempts))
    return talk.replicas(Role.UNIFIED, "a", "b", slots=slots)


def test_a_slow_attempt_gets_a_rival_on_another_replica() -> None:
    talk = hedging()
    talk.at(1.0).arrives("q")
    assert talk.timers["q.0:hedge"] == 1.5

    talk.fires("q.0:hedge")

    assert talk.sends == ["q.1 unified to b"]
    assert [each.is_hedge for each in talk.placements] == [True]


def test_the_first_token_wins_and_the_loser_is_stopped() -> None:
    talk = hedging()
    talk.arrives("q")
    talk.fires("q.0:hedge")

    talk.first_token("q.1")
    assert talk.cancels == ["q.0"]
    assert talk.commits == ["q.1"]
    talk.first_token("q.0")
    assert talk.answer == [], "the loser's token came too late"
    talk.stops("q.0")
    talk.finishes("q.1")
    assert talk.responses == {"q": completed()}
    assert talk.is_over
    assert talk.signal_names == [
        "Dispatched q.0",
        "Dispatched q.1",
        "FirstToken q.1",
        "Superseded q.0",
        "Completed q.1",
    ]


def test_the_race_is_recorded_with_what_was_done_twice() -> None:
    talk = hedging()
    talk.arrives("q", prompt_tokens=700)
    talk.fires("q.0:hedge")

    talk.first_token("q.1")

    assert [each.decision for each in talk.answer if isinstance(each, Record)] == [
        Race(request_id="q", attempt_id="q.1", is_hedge=True, superseded_tokens=700)
    ]


def test_a_loser_that_ends_after_the_answer_is_superseded_all_the_same() -> None:
    talk = hedging()
    talk.arrives("q")
    talk.fires("q.0:hedge")
    talk.first_token("q.0")
    talk.finishes("q.0")
    assert talk.dispatcher.num_open_requests == 1, "the loser still holds its slot"

    talk.stops("q.1")

    assert talk.signal_names[-1] == "Superseded q.1"
    assert talk.is_over


def test_a_loser_that_finishes_before_it_can_be_stopped_changes_nothing() -> None:
    talk = hedging()
    talk.arrives("q")
    talk.fires("q.0:hedge")
    talk.first_token("q.0")

    talk.finishes("q.1")

    assert talk.answer == []
    assert talk.signal_names[-1] == "Completed q.1"


def test_both_attempts_are_cancelled_when_the_client_goes() -> None:
    talk = hedging()
    talk.arrives("q")
    talk.fires("q.0:hedge")

    talk.client_goes("q")
    assert talk.cancels == ["q.0", "q.1"]
    talk.stops("q.0")
    talk.stops("q.1")
    assert talk.signal_names[-2:] == ["Cancelled q.0", "Cancelled q.1"]
    assert talk.is_over


def test_a_prefill_that_loses_is_superseded_while_the_winner_still_runs() -> None:
    talk = Dialogue(planner="always_disaggregated", hedging=hedge_after(0.5))
    talk.replicas(Role.PREFILL, "p", "q").replicas(Role.DECODE, "d")
    talk.arrives("r")
    talk.fires("r.0:hedge")
    talk.first_token("r.0")
    assert talk.cancels == ["r.1"]

    talk.stops("r.1")

    assert talk.signal_names[-1] == "Superseded r.1"


def test_a_prefill_that_lost_is_superseded_although_the_request_has_started_over() -> None:
    talk = Dialogue(planner="always_disaggregated", hedging=hedge_after(0.5))
    talk.replicas(Role.PREFILL, "p", "q").replicas(Role.DECODE, "d")
    talk.arrives("r")
    talk.fires("r.0:hedge")
    talk.finishes("r.0", output_tokens=1)
    assert talk.sends == ["r.2 decode to d from r.0"]
    talk.fails("r.2", Reason.KV_TRANSFER_FAILED)
    assert talk.sends == ["r.3 prefill to q"]

    talk.stops("r.1")

    assert talk.signal_names[-1] == "Superseded r.1"


def test_a_decode_is_never_hedged() -> None:
    talk = Dialogue(planner="always_disaggregated", hedging=hedge_after(0.5))
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", "e")
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)

    assert "r.0:hedge" in talk.timers
    assert "r.1:hedge" not in talk.timers


def test_a_hedge_is_not_hedged() -> None:
    talk = Dialogue(hedging=hedge_after(0.5)).replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q")

    talk.fires("q.0:hedge")

    assert talk.sends == ["q.1 unified to b"]
    assert "q.1:hedge" not in talk.timers


@for_each(
    ("domains", "target"), [({"a": "node1", "b": "node1", "c": "node2"}, "c"), ({"a": "node1", "b": "node1"}, "b")]
)
def test_a_hedge_goes_to_another_failure_domain_if_there_is_one(domains: dict[str, str], target: str) -> None:
    talk = Dialogue(hedging=hedge_after(0.5)).replicas(Role.UNIFIED, *domains, failure_domains=domains)
    talk.arrives("q")

    talk.fires("q.0:hedge")

    assert talk.sends == [f"q.1 unified to {target}"]


def hedging_to(what: str) -> Dialogue:
    choice = PolicyChoice(name="tests.policy_doubles:HedgeAnywhere", params={"delay_s": 0.5, "what": what})
    return Dialogue(hedging=choice).replicas(Role.UNIFIED, "a", "b")


def test_a_policy_may_think_better_of_it() -> None:
    talk = hedging_to("nothing")
    talk.arrives("q")

    talk.fires("q.0:hedge")

    assert talk.sends == []
    assert talk.timers["q.0:hedge"] == 1.0, "it may think otherwise then"


@for_each("what", ["its own", "id"])
def test_a_policy_that_names_no_candidate_is_named_in_the_error(what: str) -> None:
    talk = hedging_to(what)
    talk.arrives("q")

    with pytest.raises(PolicyMisbehaved, match="hedging"):
        talk.fires("q.0:hedge")
    assert talk.dispatcher.num_open_attempts == 1


@for_each(
    "what_came_before",
    [
        lambda talk: talk.first_token("q.0"),
        lambda talk: talk.finishes("q.0"),
        lambda talk: talk.client_goes("q"),
    ],
    ids=["the first token", "the end", "the client went"],
)
def test_a_hedge_timer_that_comes_too_late_is_ignored(what_came_before: Callable[[Dialogue], None]) -> None:
    talk = hedging()
    talk.arrives("q")
    what_came_before(talk)

    talk.fires("q.0:hedge")

    assert talk.answer == []


def test_a_hedge_that_finds_no_room_is_thought_of_again_after_as_long_again() -> None:
    talk = hedging(slots=1)
    talk.arrives("q1")
    talk.arrives("q2")

    talk.fires("q1.0:hedge")
    assert talk.sends == []
    assert talk.timers["q1.0:hedge"] == 1.0
    talk.finishes("q2.0")
    assert talk.sends == [], "its time has not come"
    talk.fires("q1.0:hedge")
    assert talk.sends == ["q1.1 unified to b"]


def test_a_hedge_goes_to_no_replica_that_lost_the_request() -> None:
    talk = hedging()
    talk.arrives("q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    assert talk.sends == ["q.1 unified to b"]

    talk.at(9.0).fires("q.1:hedge")

    assert talk.sends == [], "a is not in quarantine any more, and has lost it once"


def test_hedges_do_not_use_up_the_attempts_for_failover() -> None:
    params = DispatcherParams(max_attempts=2, max_fruitless_losses=9)
    talk = Dialogue(hedging=hedge_after(0.5), params=params).replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q")
    talk.fires("q.0:hedge")
    assert talk.sends == ["q.1 unified to b"]

    talk.fails("q.0", Reason.REPLICA_LOST)
    assert (talk.sends, talk.responses) == ([], {}), "the other one may still make it"
    talk.fails("q.1", Reason.REPLICA_LOST)
    assert talk.sends == ["q.2 unified to c"]
    talk.fails("q.2", Reason.REPLICA_LOST)
    assert talk.responses == {"q": refused(Reason.REPLICA_LOST, may_retry=False)}


def test_the_survivor_of_two_attempts_carries_the_request() -> None:
    talk = hedging()
    talk.arrives("q")
    talk.fires("q.0:hedge")

    talk.fails("q.0", Reason.REPLICA_LOST)
    assert talk.sends == []
    assert talk.responses == {}
    talk.first_token("q.1")
    assert talk.commits == ["q.1"]
    talk.finishes("q.1")
    assert talk.responses == {"q": completed()}
    assert talk.is_over


def test_a_policy_that_never_hedges_sets_no_timer() -> None:
    talk = Dialogue(hedging=PolicyChoice(name="no_hedge")).replicas(Role.UNIFIED, "a", "b")

    talk.arrives("q")

    assert talk.timers == {"q:deadline": 60.0}
