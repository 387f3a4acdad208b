"""A balancer's answer is held against the candidates before anything is sent."""

import pytest

from policies import PolicyChoice, Role
from policies.errors import PolicyMisbehaved
from tests.routing.dialogue import Dialogue
from tests.tables import for_each


def picking(what: str) -> Dialogue:
    balancing = PolicyChoice(name="tests.policy_doubles:PickAnything", params={"what": what})
    return Dialogue(balancing=balancing).replicas(Role.UNIFIED, "a", "b", slots=1)


@for_each("what", ["nothing", "id", "copy"])
def test_what_is_no_candidate_is_refused_by_name(what: str) -> None:
    with pytest.raises(
        PolicyMisbehaved, match=r"balancing: PickAnything answered .*; allowed: one of the 2 candidates"
    ):
        picking(what).arrives("q")


def test_a_replica_that_has_no_room_any_more_is_no_candidate() -> None:
    talk = picking("first")
    talk.arrives("q1")

    with pytest.raises(PolicyMisbehaved, match="answered 'a'; allowed: one of the 1 candidates"):
        talk.arrives("q2")

    assert talk.dispatcher.num_open_attempts == 1
    assert talk.dispatcher.fleet.num_ongoing_requests == 1
