from policies import Role
from policies.views import ReplicaView
from routing import ReplicaInfo
from routing.fleet.fleet import Fleet
from routing.request.request import Attempt
from tests.policy_doubles import replica_info
from tests.routing.dialogue import Dialogue


def an_info(replica_id: str, role: Role = Role.UNIFIED, slots: int = 2) -> ReplicaInfo:
    return replica_info(replica_id, role, slots=slots)


def an_attempt(replica_id: str, kv_tokens: int = 100, prefill_tokens: int = 0) -> Attempt:
    return Attempt(
        attempt_id="q.0",
        request_id="q",
        stage=Role.UNIFIED,
        replica_id=replica_id,
        prefill_tokens=prefill_tokens,
        kv_tokens=kv_tokens,
        sent_at_s=0.0,
    )


def a_fleet(*replica_ids: str) -> Fleet:
    fleet = Fleet()
    fleet.replace("unified", Role.UNIFIED, [an_info(each) for each in replica_ids])
    return fleet


def the_replica(fleet: Fleet) -> ReplicaView:
    (replica,) = fleet.live(Role.UNIFIED, 0.0)
    return replica


def test_replicas_are_in_order_of_id_however_they_were_named() -> None:
    fleet = a_fleet("c", "a", "b")

    assert [each.replica_id for each in fleet.live(Role.UNIFIED, 0.0)] == ["a", "b", "c"]
    assert [each.replica_id for each in fleet.with_room(("unified",), 0.0)] == ["a", "b", "c"]


def test_a_replica_shows_what_its_engine_said() -> None:
    replica = the_replica(a_fleet("a"))

    assert (replica.role, replica.max_ongoing_requests, replica.kv_capacity_tokens) == (Role.UNIFIED, 2, 10_000)
    assert (replica.num_ongoing_requests, replica.work_tokens, replica.kv_cache_usage) == (0, 0, 0.0)


def test_a_full_replica_is_live_but_has_no_room() -> None:
    fleet = a_fleet("a", "b")
    fleet.take(an_attempt("a"))
    fleet.take(an_attempt("a"))

    assert len(fleet.live(Role.UNIFIED, 0.0)) == 2
    assert [each.replica_id for each in fleet.with_room(("unified",), 0.0)] == ["b"]


def test_roles_have_pools_of_their_own() -> None:
    fleet = a_fleet("a")
    fleet.replace("prefill", Role.PREFILL, [an_info("p", Role.PREFILL)])

    fleet.replace("prefill", Role.PREFILL, [])

    assert [each.replica_id for each in fleet.live(Role.UNIFIED, 0.0)] == ["a"]
    assert fleet.live(Role.PREFILL, 0.0) == []


def test_a_replica_that_another_pool_names_has_changed_its_role_and_keeps_its_account() -> None:
    fleet = Fleet()
    fleet.replace("prefill", Role.PREFILL, [an_info("p", Role.PREFILL), an_info("q", Role.PREFILL)])
    fleet.replace("decode", Role.DECODE, [an_info("d", Role.DECODE)])
    fleet.take(an_attempt("q", kv_tokens=700))

    replaced = fleet.replace("decode", Role.DECODE, [an_info("d", Role.DECODE), an_info("q", Role.DECODE)])

    assert (replaced.fresh, replaced.gone) == ([], [])
    assert [each.replica_id for each in fleet.live(Role.PREFILL, 0.0)] == ["p"]
    assert [(each.replica_id, each.role, each.kv_tokens) for each in fleet.live(Role.DECODE, 0.0)] == [
        ("d", Role.DECODE, 0),
        ("q", Role.DECODE, 700),
    ]
    assert fleet.replace("prefill", Role.PREFILL, [an_info("p", Role.PREFILL)]).gone == []
    fleet.give_back(an_attempt("q", kv_tokens=700))
    assert [each.kv_tokens for each in fleet.live(Role.DECODE, 0.0)] == [0, 0]


def test_work_left_is_what_was_sent_and_not_finished_while_nothing_was_reported() -> None:
    fleet = a_fleet("a")
    first, second = an_attempt("a", 100), an_attempt("a", 30)
    fleet.take(first)
    fleet.take(second)
    assert the_replica(fleet).work_tokens == 130

    fleet.give_back(first)

    assert the_replica(fleet).work_tokens == 30


def test_work_left_is_the_last_report_corrected_by_what_was_sent_and_finished_since() -> None:
    fleet = a_fleet("a")
    old, new = an_attempt("a", 100), an_attempt("a", 30)
    fleet.take(old)

    fleet.report("a", prefill_tokens=0, kv_tokens=700, kv_cache_usage=0.5)
    assert the_replica(fleet).work_tokens == 700, "600 of it came through other gateways"
    assert the_replica(fleet).kv_cache_usage == 0.5
    fleet.take(new)
    assert the_replica(fleet).work_tokens == 730
    fleet.give_back(old)
    assert the_replica(fleet).work_tokens == 630


def test_work_left_is_never_less_than_what_this_gateway_has_there() -> None:
    """A report can be older than the attempts: it does not see them yet."""
    fleet = a_fleet("a")
    fleet.take(an_attempt("a", 100))

    fleet.report("a", prefill_tokens=0, kv_tokens=0, kv_cache_usage=0.0)

    assert the_replica(fleet).work_tokens == 100


def test_a_report_from_a_replica_that_nobody_knows_is_ignored() -> None:
    fleet = a_fleet("a")

    fleet.report("z", prefill_tokens=0, kv_tokens=9, kv_cache_usage=0.9)

    assert the_replica(fleet).work_tokens == 0


def test_a_replica_that_left_keeps_its_record_until_its_last_attempt_has_ended() -> None:
    fleet = a_fleet("a")
    attempt = an_attempt("a")
    fleet.take(attempt)

    fleet.replace("unified", Role.UNIFIED, [])
    assert fleet.live(Role.UNIFIED, 0.0) == []
    assert fleet.num_ongoing_requests == 1
    fleet.give_back(attempt)
    assert fleet.num_ongoing_requests == 0
    fleet.report("a", prefill_tokens=0, kv_tokens=9, kv_cache_usage=0.0)
    fleet.replace("unified", Role.UNIFIED, [an_info("a")])
    assert the_replica(fleet).work_tokens == 0, "the record was forgotten with the attempt"


def test_a_replica_that_left_keeps_its_record_while_another_attempt_is_open() -> None:
    fleet = a_fleet("a")
    attempt, other = an_attempt("a", 100), an_attempt("a", 30)
    fleet.take(attempt)
    fleet.take(other)
    fleet.replace("unified", Role.UNIFIED, [])

    fleet.give_back(attempt)

    assert fleet.num_ongoing_requests == 1


def test_a_replica_that_left_and_came_back_still_has_its_attempts() -> None:
    fleet = a_fleet("a")
    fleet.take(an_attempt("a"))

    fleet.replace("unified", Role.UNIFIED, [])
    fleet.replace("unified", Role.UNIFIED, [an_info("a")])

    assert the_replica(fleet).num_ongoing_requests == 1


def test_an_attempt_that_another_replica_accepted_moves_its_slot() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    assert talk.load == {"a": (1, 250), "b": (0, 0)}

    talk.accepts("q.0", "b")
    assert talk.load == {"a": (0, 0), "b": (1, 250)}
    talk.finishes("q.0")
    assert talk.is_over


def test_an_attempt_that_an_unknown_replica_accepted_stays_where_it_is() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")

    talk.accepts("q.0", "z")

    assert talk.load == {"a": (1, 250)}


def test_an_attempt_moves_away_from_a_replica_that_has_left() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.replicas(Role.UNIFIED, "b")

    talk.accepts("q.0", "b")

    assert talk.load == {"b": (1, 250)}
    assert talk.dispatcher.fleet.num_ongoing_requests == 1


def test_a_prefill_counts_its_prompt_and_a_decode_all_the_tokens_it_may_hold() -> None:
    talk = Dialogue(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")

    talk.arrives("q", prompt_tokens=100, max_output_tokens=50)
    assert talk.load == {"p": (1, 100), "d": (0, 0)}
    talk.finishes("q.0", output_tokens=1)
    assert talk.load == {"p": (0, 0), "d": (1, 150)}


def test_a_report_through_the_dispatcher_changes_where_the_next_request_goes() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")

    talk.reports("a", 5000, kv_cache_usage=0.8)
    assert talk.answer == []
    talk.arrives("q")

    assert talk.sends == ["q.0 unified to b"]
