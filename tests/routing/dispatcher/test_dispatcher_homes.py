"""A queue per replica: requests wait for the one that has their prefix, as long as that is worth it."""

from policies import PolicyChoice, Reason, Role
from policies.views import Priority
from routing import DispatcherParams
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import FCFS, NEVER_PREEMPT, Dialogue

LONG, SHORT = 2000, 100
CHAT = tuple(range(20))
"""The blocks of a prompt of ``LONG`` tokens."""


def dialogue(queueing: PolicyChoice = FCFS, preemption: PolicyChoice = NEVER_PREEMPT) -> Dialogue:
    """Two replicas that are given one prompt at a time, 1,000 tokens a second; \"a\" has the chat's prefix."""
    talk = Dialogue(
        balancing=PolicyChoice(name="least_delay"),
        queueing=queueing,
        preemption=preemption,
        prefixes=PolicyChoice(name="block_hash"),
        rates=ServiceRates(new_token_s=1e-3),
        params=DispatcherParams(prefill_window_tokens=1),
    ).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("first", prompt_tokens=LONG, prefix_blocks=CHAT)
    assert talk.sends == ["first.0 unified to a"]
    talk.first_token("first.0")
    talk.finishes("first.0")
    return talk


def chat(talk: Dialogue, request_id: str) -> None:
    talk.arrives(request_id, prompt_tokens=LONG + SHORT, prefix_blocks=(*CHAT, 99))


def test_a_request_waits_for_the_replica_that_has_its_prefix_while_another_is_idle() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=SHORT)
    talk.arrives("q2", prompt_tokens=SHORT)
    chat(talk, "turn")
    assert talk.sends == []

    talk.first_token("q2.0")
    assert talk.sends == []
    talk.first_token("q1.0")
    assert talk.sends == ["turn.0 unified to a"]


def test_a_request_does_not_wait_for_its_prefix_longer_than_it_would_be_computed_elsewhere() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=4 * LONG)
    chat(talk, "turn")
    assert talk.sends == ["turn.0 unified to b"]


def test_requests_that_wait_for_one_replica_keep_nobody_from_another() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=SHORT)
    talk.arrives("q2", prompt_tokens=SHORT)
    chat(talk, "turn")
    talk.arrives("q3", prompt_tokens=SHORT)

    talk.first_token("q2.0")
    assert talk.sends == ["q3.0 unified to b"]


def test_a_request_is_asked_again_where_it_waits_when_there_is_room_that_nobody_uses() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=LONG)
    talk.arrives("q2", prompt_tokens=2 * LONG)
    chat(talk, "turn")
    talk.at(1.0).reports("a", kv_tokens=0, prefill_tokens=9 * LONG)  # others have sent prompts there

    talk.first_token("q2.0")
    assert talk.sends == ["turn.0 unified to b"]


def test_those_whose_replica_is_lost_wait_for_another() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=SHORT)
    talk.arrives("q2", prompt_tokens=SHORT)
    chat(talk, "turn")

    talk.fails("q1.0", Reason.REPLICA_LOST)
    talk.first_token("q2.0")
    assert [each.split()[-1] for each in talk.sends] == ["b"]
    talk.first_token(talk.sends[0].split()[0])
    assert [each.split()[-1] for each in talk.sends] == ["b"]
    assert talk.dispatcher.num_waiting_requests == 0


def test_a_client_that_goes_leaves_its_place_at_the_replica_that_it_waited_for() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=SHORT)
    talk.arrives("q2", prompt_tokens=SHORT)
    chat(talk, "turn")
    waits_at = talk.dispatcher.fleet.get("a")
    assert waits_at is not None
    assert waits_at.waiting_tokens == SHORT

    talk.client_goes("turn")
    assert waits_at.waiting_tokens == 0
    assert talk.dispatcher.num_waiting_requests == 0


def test_a_queue_that_learns_from_signals_has_no_other_beside_it() -> None:
    talk = dialogue(queueing=PolicyChoice(name="vtc"))
    talk.arrives("q1", prompt_tokens=SHORT)
    talk.arrives("q2", prompt_tokens=SHORT)
    chat(talk, "turn")

    talk.first_token("q2.0")
    assert talk.sends == ["turn.0 unified to b"]


def test_a_sheddable_attempt_makes_room_for_one_that_waits_for_a_replica() -> None:
    talk = dialogue(preemption=PolicyChoice(name="newest_sheddable"))
    talk.arrives("q1", prompt_tokens=SHORT, priority=Priority.SHEDDABLE)
    talk.arrives("q2", prompt_tokens=SHORT, priority=Priority.SHEDDABLE)
    chat(talk, "turn")
    assert talk.cancels
