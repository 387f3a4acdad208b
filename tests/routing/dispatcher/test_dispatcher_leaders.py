"""Requests with one prompt that replicas may die of: how many does it take, and who waits for whom?"""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from policies import Reason, Role
from policies.views import Priority
from routing import DispatcherParams, Outcome, Send
from routing.attempts.prompt_leaders import REMEMBERED_S
from routing.config.parts import reconfigured
from routing.config.spec import LeaderFirst
from routing.request.events import ReplicaStalled
from tests.routing.dialogue import Dialogue, hedge_after, refused

REPLICAS = tuple("abcdefghijkl")
ALWAYS = DispatcherParams(leader_first=LeaderFirst.ALWAYS)
NEVER = DispatcherParams(leader_first=LeaderFirst.NEVER)


def fan_out(talk: Dialogue, *names: str, prompt_id: int = 7) -> list[str]:
    """Requests with one prompt come, one after the other; what was sent for them."""
    sends: list[str] = []
    for name in names:
        talk.arrives(name, prompt_id=prompt_id)
        sends += talk.sends
    return sends


def given_up(*names: str) -> dict[str, Outcome]:
    return {name: refused(Reason.REPLICA_LOST, to=name, may_retry=False) for name in names}


def unified(params: DispatcherParams | None = None, num_replicas: int = 12) -> Dialogue:
    return Dialogue(params=params).replicas(Role.UNIFIED, *REPLICAS[:num_replicas], slots=1)


def test_requests_with_one_prompt_go_as_they_come_as_long_as_nothing_is_lost() -> None:
    talk = unified()
    assert fan_out(talk, "q", "r", "s") == ["q.0 unified to a", "r.0 unified to b", "s.0 unified to c"]


def test_after_a_loss_one_request_goes_on_and_those_with_its_prompt_wait_for_it() -> None:
    talk = unified()
    fan_out(talk, "q", "r")

    talk.at(0.5).fails("q.0", Reason.REPLICA_LOST)
    assert talk.sends == ["q.1 unified to c"]
    talk.fails("r.0", Reason.REPLICA_LOST)
    assert (talk.sends, talk.responses) == ([], {})
    assert fan_out(talk, "s") == []
    assert talk.dispatcher.num_waiting_requests == 2
    assert talk.dispatcher.gauges(0.5)["followers"] == 2.0
    assert fan_out(talk, "t", prompt_id=8) == ["t.0 unified to d"]


def test_those_that_follow_go_on_when_the_leader_s_answer_is_complete_and_not_before() -> None:
    talk = unified()
    fan_out(talk, "q", "r")
    talk.fails("q.0", Reason.REPLICA_LOST)
    fan_out(talk, "s")
    talk.first_token("q.1")
    assert talk.sends == []

    talk.finishes("q.1")
    assert talk.sends == ["s.0 unified to c"]
    assert fan_out(talk, "t") == ["t.0 unified to d"]


def test_an_answer_that_another_replica_was_giving_clears_the_prompt_as_well() -> None:
    talk = unified()
    fan_out(talk, "q", "r")
    talk.fails("q.0", Reason.REPLICA_LOST)
    fan_out(talk, "s")

    talk.finishes("r.0")

    assert talk.sends == ["s.0 unified to b"]


def test_a_prompt_that_two_replicas_were_lost_with_one_after_the_other_is_given_up_whoever_has_it() -> None:
    talk = unified()
    fan_out(talk, "q", "r")
    talk.at(0.5).fails("q.0", Reason.REPLICA_LOST)
    talk.fails("r.0", Reason.REPLICA_LOST)
    fan_out(talk, "s")

    talk.at(1.0).fails("q.1", Reason.REPLICA_LOST)

    assert talk.responses == given_up("q", "r", "s")
    talk.arrives("t", prompt_id=7)
    assert (talk.sends, talk.responses) == ([], given_up("t"))


def test_those_that_wait_in_a_queue_when_their_prompt_becomes_a_suspect_follow_or_are_given_up() -> None:
    """All replicas are busy; whenever one has room the next request would go there and take it along."""
    talk = unified(num_replicas=4)
    fan_out(talk, "w", "x", "y", "z", prompt_id=1)
    assert fan_out(talk, "q", "r", "s", "t") == []
    talk.at(1.0).finishes("w.0")
    assert talk.sends == ["q.0 unified to a"]

    talk.at(2.0).fails("q.0", Reason.REPLICA_LOST)
    talk.at(3.0).finishes("x.0")
    talk.at(4.0).finishes("y.0")
    assert talk.sends == []
    talk.at(5.0).fails("q.1", Reason.REPLICA_LOST)

    assert talk.responses == given_up("q", "r", "s", "t")
    assert talk.dispatcher.num_waiting_requests == 0


def test_a_leader_that_is_under_way_for_minutes_is_not_forgotten() -> None:
    talk = unified()
    talk.arrives("q", prompt_id=7, budget_s=900.0)
    talk.fails("q.0", Reason.REPLICA_LOST)

    talk.at(2 * REMEMBERED_S)

    assert fan_out(talk, "r") == []
    talk.at(2 * REMEMBERED_S + 1.0).fails("q.1", Reason.REPLICA_LOST)
    assert talk.responses == given_up("q", "r")


def test_replicas_that_are_lost_together_count_as_one() -> None:
    """A rack fails: each of its replicas had a request with a prompt that is popular."""
    talk = unified()
    fan_out(talk, "q", "r", "s")
    for name in ("q", "r", "s"):
        talk.at(talk.now_s + 0.1).fails(f"{name}.0", Reason.REPLICA_LOST)
        assert talk.responses == {}

    talk.finishes("q.1")

    assert [each.partition(" ")[0] for each in talk.sends] == ["r.1", "s.1"]


def test_a_replica_that_stands_still_with_a_prompt_counts() -> None:
    talk = unified()
    fan_out(talk, "q", "r")
    talk.tell(ReplicaStalled(replica_id="a"))
    talk.stops("q.0")
    fan_out(talk, "s")

    talk.at(1.0).fails("q.1", Reason.REPLICA_LOST)

    assert talk.responses == given_up("q", "s")


def test_a_suspect_is_not_hedged() -> None:
    talk = Dialogue(hedging=hedge_after(1.0)).replicas(Role.UNIFIED, *REPLICAS, slots=1)
    fan_out(talk, "q")
    talk.fails("q.0", Reason.REPLICA_LOST)

    talk.fires("q.1:hedge")

    assert talk.sends == []


def test_the_next_one_leads_when_the_leader_leaves() -> None:
    talk = unified()
    fan_out(talk, "q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    fan_out(talk, "r", "s")

    talk.client_goes("q")
    assert talk.sends == ["r.0 unified to c"]
    talk.client_goes("s")
    assert talk.sends == []
    talk.stops("q.1")
    talk.fires("r:deadline")
    assert talk.dispatcher.num_waiting_requests == 0


def test_a_follower_s_deadline_holds() -> None:
    talk = unified()
    fan_out(talk, "q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    talk.arrives("r", prompt_id=7, budget_s=1.0)

    talk.fires("r:deadline")

    assert talk.responses == {"r": refused(Reason.DEADLINE_EXCEEDED, to="r")}
    assert talk.dispatcher.num_open_requests == 1


def test_any_number_of_followers_is_refused_where_no_replica_is_left() -> None:
    """None of them leads to another within the other's turn: a thousand of those would be too deep."""
    talk = Dialogue(params=DispatcherParams(waiting_room_s=0.0)).replicas(Role.UNIFIED, "a", "b")
    fan_out(talk, "q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    names = [f"r{number}" for number in range(1500)]
    fan_out(talk, *names)
    talk.replicas(Role.UNIFIED)

    talk.client_goes("q")

    assert set(talk.responses) == {"q", *names}


def test_a_request_waits_for_none_that_matters_less() -> None:
    talk = unified()
    talk.arrives("q", prompt_id=7, priority=Priority.SHEDDABLE)
    talk.fails("q.0", Reason.REPLICA_LOST)

    talk.arrives("r", prompt_id=7, priority=Priority.CRITICAL)

    assert talk.sends == ["r.0 unified to c"]


def test_a_condemned_prompt_is_tried_again_after_two_minutes() -> None:
    talk = unified()
    fan_out(talk, "q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    talk.fails("q.1", Reason.REPLICA_LOST)

    talk.at(REMEMBERED_S)
    assert fan_out(talk, "r") == []
    talk.at(REMEMBERED_S + 0.1)
    assert fan_out(talk, "s") == ["s.0 unified to a"]


def test_nobody_leads_where_that_is_turned_off() -> None:
    talk = unified(NEVER)
    fan_out(talk, "q", "r")
    talk.fails("q.0", Reason.REPLICA_LOST)
    assert talk.sends == ["q.1 unified to c"]
    talk.fails("r.0", Reason.REPLICA_LOST)
    assert talk.sends == ["r.1 unified to d"]


def test_followers_go_when_it_is_turned_off_while_they_wait() -> None:
    talk = unified()
    fan_out(talk, "q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    fan_out(talk, "r")

    talk.tell(reconfigured(replace(talk.spec, params=NEVER)))

    assert talk.sends == ["r.0 unified to c"]


def test_with_always_the_first_one_leads_until_its_prompt_is_computed() -> None:
    talk = unified(ALWAYS)
    assert fan_out(talk, "q", "r", "s") == ["q.0 unified to a"]
    assert fan_out(talk, "t", prompt_id=8) == ["t.0 unified to b"]

    talk.first_token("q.0")

    assert talk.sends == ["r.0 unified to c", "s.0 unified to d"]
    assert fan_out(talk, "u") == ["u.0 unified to e"]


def test_with_always_and_a_handoff_the_others_go_when_the_prefill_is_done() -> None:
    talk = Dialogue(planner="always_disaggregated", params=ALWAYS)
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    fan_out(talk, "q", "r")

    talk.finishes("q.0", output_tokens=1)

    assert talk.sends == ["q.1 decode to d from q.0", "r.0 prefill to p"]


def test_with_always_a_prompt_takes_two_replicas_however_many_have_it() -> None:
    talk = unified(ALWAYS)
    fan_out(talk, "q", "r", "s")
    talk.fails("q.0", Reason.REPLICA_LOST)
    assert talk.sends == ["q.1 unified to b"]
    talk.fails("q.1", Reason.REPLICA_LOST)
    assert talk.responses == given_up("q", "r", "s")


PROMPTS = st.lists(st.integers(min_value=0, max_value=4), min_size=1, max_size=40)


@given(prompts=PROMPTS, poisonous=st.sets(st.integers(min_value=1, max_value=4)), data=st.data())
def test_with_always_no_prompt_takes_more_than_two_replicas_and_each_request_has_one_answer(
    prompts: list[int], poisonous: set[int], data: st.DataObject
) -> None:
    talk = Dialogue(params=ALWAYS).replicas(Role.UNIFIED, *(f"r{number}" for number in range(200)), slots=1)
    open_attempts: dict[str, int] = {}
    lost, answers = Counter[int](), Counter[str]()

    def take_in(prompt_of: dict[str, int]) -> None:
        open_attempts.update(
            (each.attempt_id, prompt_of[each.request_id]) for each in talk.answer if type(each) is Send
        )
        answers.update(talk.responses.keys())

    prompt_of = {f"q{number}": prompt for number, prompt in enumerate(prompts)}
    waiting = list(prompt_of)
    while waiting or open_attempts:
        attempt_id = data.draw(st.sampled_from([*open_attempts, ""])) if waiting else next(iter(open_attempts))
        talk.at(talk.now_s + 0.01)
        if not attempt_id:
            name = waiting.pop()
            talk.arrives(name, prompt_id=prompt_of[name])
        elif (prompt := open_attempts.pop(attempt_id)) in poisonous:
            lost[prompt] += 1
            talk.fails(attempt_id, Reason.REPLICA_LOST)
        else:
            talk.finishes(attempt_id)
        take_in(prompt_of)

    assert all(number <= 2 for prompt, number in lost.items() if prompt)
    assert answers == Counter(prompt_of.keys())
    assert talk.dispatcher.num_open_requests == talk.dispatcher.num_waiting_requests == 0
