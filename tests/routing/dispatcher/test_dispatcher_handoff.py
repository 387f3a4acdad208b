"""KV that waits for its decode: how long it is pulled, who tries when one can't, and who frees what nobody wants."""

import pytest

from policies import PolicyChoice, Reason, Role
from routing import DispatcherParams, Record, ReleaseKv, Replan, ReplicaStalled
from routing.request.stages import DISAGGREGATED
from tests.routing.dialogue import Dialogue, completed

LEASE_S = 24.0
DECODE = (Role.DECODE,)


def prefilled(decodes: str = "de", *, slots: int = 8, params: DispatcherParams | None = None) -> Dialogue:
    """``q`` has been computed at ``p``; its decode is sent if there is room."""
    talk = Dialogue(planner="always_disaggregated", params=params, kv_lease_s=LEASE_S)
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, *decodes, slots=slots)
    talk.arrives("q", budget_s=120.0)
    talk.finishes("q.0", output_tokens=1)
    return talk


def waiting_for_room(budget_s: float = 120.0) -> Dialogue:
    """The only decode slot is another request's."""
    talk = Dialogue(planner="always_disaggregated", kv_lease_s=LEASE_S)
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", slots=1)
    for name in ("other", "q"):
        talk.arrives(name, budget_s=budget_s)
        talk.finishes(f"{name}.0", output_tokens=1)
    assert talk.sends == []
    return talk


def released(talk: Dialogue) -> list[str]:
    """KV that is given up, in words."""
    return [f"{each.kv_from} by {each.replica_id}" for each in talk.answer if isinstance(each, ReleaseKv)]


def test_a_decode_is_sent_while_its_blocks_are_held_for_long_enough() -> None:
    talk = waiting_for_room()

    talk.at(LEASE_S * 2 / 3 - 0.1).finishes("other.1")

    assert talk.sends == ["q.1 decode to d from q.0"]


def test_blocks_that_have_waited_too_long_are_not_pulled_but_computed_again() -> None:
    talk = waiting_for_room()

    talk.at(LEASE_S * 2 / 3 + 0.1).finishes("other.1")

    assert talk.sends == ["q.1 prefill to p"]
    replans = [each.decision for each in talk.answer if isinstance(each, Record) and isinstance(each.decision, Replan)]
    assert replans == [Replan(request_id="q", plan=DISAGGREGATED, instead_of=DECODE)]
    talk.finishes("q.1", output_tokens=1)
    assert talk.sends == ["q.2 decode to d from q.1"]
    talk.first_token("q.2")
    talk.finishes("q.2")
    assert talk.responses == {"q": completed()}
    assert talk.is_over


def test_a_decode_that_comes_back_late_pulls_nothing_old() -> None:
    talk = prefilled("de")
    talk.at(LEASE_S).fails("q.1", Reason.REPLICA_LOST, was_taken=False)
    assert talk.sends == ["q.2 prefill to p"]


def test_a_pull_that_fails_is_tried_by_another_decode_with_the_blocks_where_they_are() -> None:
    talk = prefilled("de")

    talk.fails("q.1", Reason.KV_TRANSFER_FAILED)

    assert talk.sends == ["q.2 decode to e from q.0"]
    assert [each.reason for each in talk.retries] == [Reason.KV_TRANSFER_FAILED]
    assert released(talk) == []


def test_blocks_that_two_decodes_could_not_pull_are_given_up_and_computed_again() -> None:
    talk = prefilled("def")
    talk.fails("q.1", Reason.KV_TRANSFER_FAILED)

    talk.fails("q.2", Reason.KV_TRANSFER_FAILED)

    assert talk.sends == ["q.3 prefill to p"]
    assert released(talk) == ["q.0 by f"]  # not by those who could not


def test_blocks_of_a_replica_that_is_out_are_not_tried_elsewhere() -> None:
    talk = prefilled("de").replicas(Role.PREFILL, "other")

    talk.fails("q.1", Reason.KV_TRANSFER_FAILED)

    assert talk.sends == ["q.2 prefill to other"]


def test_with_one_decode_replica_a_failed_pull_begins_anew() -> None:
    talk = prefilled("d")
    talk.fails("q.1", Reason.KV_TRANSFER_FAILED)
    assert talk.sends == ["q.2 prefill to p"]


def test_a_retry_that_waits_pulls_the_same_blocks_unless_they_are_too_old_by_then() -> None:
    later = PolicyChoice(name="backoff", params={"first_s": 1.0, "longest_s": 1.0})
    talk = Dialogue(planner="always_disaggregated", retrying=later, kv_lease_s=LEASE_S)
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, *"de")
    talk.arrives("q", budget_s=120.0)
    talk.finishes("q.0", output_tokens=1)
    talk.fails("q.1", Reason.KV_TRANSFER_FAILED)
    assert talk.sends == []

    talk.fires("q:retry")

    assert talk.sends == ["q.2 decode to e from q.0"]


def test_a_client_that_goes_while_its_decode_waits_frees_the_blocks() -> None:
    talk = waiting_for_room()

    talk.client_goes("q")

    assert released(talk) == ["q.0 by d"]


def test_a_deadline_that_passes_while_a_decode_waits_frees_the_blocks() -> None:
    talk = waiting_for_room(budget_s=10.0)
    talk.fires("q:deadline")
    assert released(talk) == ["q.0 by d"]


def test_blocks_that_are_not_held_any_more_are_not_given_up() -> None:
    talk = waiting_for_room()
    talk.at(LEASE_S).client_goes("q")
    assert released(talk) == []


@pytest.mark.parametrize("reason", [Reason.REPLICA_LOST, Reason.ENGINE_ERROR])
def test_blocks_that_a_decode_may_still_be_pulling_are_left_to_their_lease(reason: Reason) -> None:
    """A replica that is lost to its gateway may live, and pull."""
    talk = prefilled("d", params=DispatcherParams(max_attempts=1))

    talk.fails("q.1", reason)

    assert list(talk.responses) == ["q"]
    assert released(talk) == []


def test_blocks_of_a_client_that_goes_while_they_are_pulled_are_the_engines_affair() -> None:
    talk = prefilled("d")
    talk.client_goes("q")
    assert talk.cancels == ["q.1"]
    talk.stops("q.1")
    assert released(talk) == []
    assert talk.is_over


def test_blocks_that_a_stalled_decode_was_to_pull_are_left_to_it_and_to_their_lease() -> None:
    """It may go on and pull them, and have them freed under whoever else does."""
    talk = prefilled("de")
    talk.tell(ReplicaStalled(replica_id="d"))
    assert talk.cancels == ["q.1"]
    talk.stops("q.1")
    assert talk.sends == ["q.2 prefill to p"]
    assert released(talk) == []


def test_blocks_that_no_replica_has_taken_the_decode_of_are_freed_with_the_request() -> None:
    talk = prefilled("de", params=DispatcherParams(max_attempts=1))

    talk.fails("q.1", Reason.REPLICA_LOST, was_taken=False)

    assert list(talk.responses) == ["q"]
    assert released(talk) == ["q.0 by e"]


def test_with_no_decode_replica_alive_the_lease_frees_the_blocks() -> None:
    talk = waiting_for_room()
    talk.replicas(Role.DECODE)
    talk.client_goes("q")
    assert released(talk) == []
