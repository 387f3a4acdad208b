"""Two attempts that share an execution claim: one of them is withdrawn before anything was computed for it."""

from policies import Priority, Reason, Role
from policies.catalog import PolicyChoice
from routing import DispatcherParams, Race, Record, Retry, Send
from tests.routing.dialogue import Dialogue, completed, refused
from tests.tables import for_each

TIE_AT_ONCE = PolicyChoice(name="tests.policy_doubles:TieAfter", params={"delay_s": 0.0})


def tied(*, max_attempts: int = 4, replica_ids: str = "ab") -> Dialogue:
    """A sheddable request ``q`` with two attempts, on ``a`` and on ``b``."""
    talk = Dialogue(
        hedging=TIE_AT_ONCE,
        queueing=PolicyChoice(name="priority"),
        preemption=PolicyChoice(name="newest_sheddable"),
        params=DispatcherParams(max_attempts=max_attempts),
    )
    talk.replicas(Role.UNIFIED, *replica_ids)
    talk.arrives("q", prompt_tokens=700, priority=Priority.SHEDDABLE)
    talk.fires("q.0:hedge")
    assert talk.sends == ["q.1 unified to b"]
    return talk


def races(talk: Dialogue) -> list[Race]:
    return [each.decision for each in talk.answer if isinstance(each, Record) and isinstance(each.decision, Race)]


def test_the_second_attempt_says_what_it_is_tied_to() -> None:
    talk = tied()

    sends = [each for each in talk.answer if isinstance(each, Send)]

    assert [each.tied_to for each in sends] == ["q.0"]


def test_a_policy_that_asks_for_no_claims_ties_nothing() -> None:
    talk = Dialogue(hedging=PolicyChoice(name="tests.policy_doubles:HedgeAfter", params={"delay_s": 0.0}))
    talk.replicas(Role.UNIFIED, "a", "b").arrives("q")

    talk.fires("q.0:hedge")

    assert [each.tied_to for each in talk.answer if isinstance(each, Send)] == [None]


@for_each(("loser", "winner", "is_hedge"), [("q.0", "q.1", True), ("q.1", "q.0", False)])
def test_the_one_that_gives_way_is_superseded_and_nothing_was_done_twice(
    loser: str, winner: str, is_hedge: bool
) -> None:
    talk = tied()

    talk.withdraws(loser)

    assert races(talk) == [Race(request_id="q", attempt_id=winner, is_hedge=is_hedge, superseded_tokens=0)]
    assert talk.signal_names[-1] == f"Superseded {loser}"
    assert sorted(num for num, _ in talk.load.values()) == [0, 1], "its slot is free at once"
    talk.first_token(winner)
    assert (talk.commits, talk.cancels, races(talk)) == ([winner], [], [])
    talk.finishes(winner)
    assert talk.responses == {"q": completed()}
    assert talk.is_over


def test_both_count_as_work_until_one_gives_way() -> None:
    talk = tied()
    assert talk.load == {"a": (1, 1450), "b": (1, 1450)}

    talk.withdraws("q.1")

    assert talk.load == {"a": (1, 1450), "b": (0, 0)}


def test_a_first_token_that_is_quicker_than_the_news_stops_the_other_one_which_did_nothing() -> None:
    talk = tied()

    talk.first_token("q.1")
    assert talk.cancels == ["q.0"]
    assert [each.superseded_tokens for each in races(talk)] == [0]
    talk.withdraws("q.0")

    assert races(talk) == [], "it is recorded once"
    assert talk.signal_names[-1] == "Superseded q.0"


def test_a_pair_is_one_try() -> None:
    talk = tied(max_attempts=2, replica_ids="abc")
    talk.withdraws("q.0")

    talk.fails("q.1", Reason.REPLICA_LOST)
    assert talk.sends == ["q.2 unified to a"]
    talk.fails("q.2", Reason.REPLICA_LOST)
    assert talk.responses == {"q": refused(Reason.REPLICA_LOST, may_retry=False)}
    assert talk.is_over


def test_a_request_whose_winner_was_lost_before_the_loser_gave_way_is_tried_again() -> None:
    talk = tied()
    talk.fails("q.1", Reason.REPLICA_LOST)
    assert talk.sends == [], "the other one may still make it"

    talk.withdraws("q.0")

    assert races(talk) == []
    assert talk.retries == [Retry(request_id="q", attempt_id="q.1", reason=Reason.REPLICA_LOST, after_s=0.0)]
    assert talk.sends == ["q.2 unified to a"], "where there was nothing wrong"


def test_a_winner_that_was_lost_before_the_loser_gave_way_is_a_try() -> None:
    talk = tied(max_attempts=1)
    talk.fails("q.1", Reason.REPLICA_LOST)

    talk.withdraws("q.0")

    assert talk.responses == {"q": refused(Reason.REPLICA_LOST)}
    assert talk.is_over


def test_a_client_that_has_gone_is_not_served_by_the_one_that_is_left() -> None:
    talk = tied()
    talk.client_goes("q")
    assert talk.cancels == ["q.0", "q.1"]

    talk.withdraws("q.0")
    talk.stops("q.1")

    assert talk.signal_names[-2:] == ["Cancelled q.0", "Cancelled q.1"]
    assert talk.is_over


def test_an_attempt_gives_way_once() -> None:
    talk = tied()
    talk.withdraws("q.0")

    talk.withdraws("q.0")

    assert talk.answer == []


def test_a_preempted_attempt_that_gives_way_with_nobody_left_lets_its_request_wait() -> None:
    talk = tied()
    talk.fails("q.1", Reason.REPLICA_LOST)
    for number in range(8):
        talk.arrives(f"c{number}", priority=Priority.CRITICAL)
    assert talk.cancels == ["q.0"]

    talk.withdraws("q.0")

    assert [each.request_id for each in talk.preemptions] == ["q"]
    assert talk.dispatcher.num_waiting_requests == 1


def test_a_pair_is_prompts_alone() -> None:
    talk = Dialogue(planner="always_disaggregated", hedging=TIE_AT_ONCE)
    talk.replicas(Role.PREFILL, "p", "q").replicas(Role.DECODE, "d", "e")
    talk.arrives("r")
    talk.fires("r.0:hedge")
    assert talk.sends == ["r.1 prefill to q"]
    talk.withdraws("r.0")

    talk.finishes("r.1", output_tokens=1)

    assert talk.sends == ["r.2 decode to d from r.1"]
    assert "r.2:hedge" not in talk.timers
