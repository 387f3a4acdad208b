"""A lost attempt is repeated elsewhere, and after its first token the answer goes on there."""

from policies import Reason, Role
from policies.signals import Admitted, Answering, Ended, Started
from routing import DispatcherParams, ReplicaStalled, Resumption, Send
from routing.request.request import PROGRESS_TOKENS
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import Dialogue, completed, failed, hedge_after, refused
from tests.tables import for_each

NO_WAITING_ROOM = DispatcherParams(waiting_room_s=0)


def disaggregated(prefills: str = "pq", decodes: str = "de", params: DispatcherParams | None = None) -> Dialogue:
    talk = Dialogue(planner="always_disaggregated", params=params)
    return talk.replicas(Role.PREFILL, *prefills).replicas(Role.DECODE, *decodes)


def test_a_request_goes_to_another_replica_when_its_own_is_lost_before_the_first_token() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")

    talk.fails("q.0", Reason.REPLICA_LOST)
    assert talk.sends == ["q.1 unified to b"]
    talk.first_token("q.1")
    talk.finishes("q.1")
    assert talk.responses == {"q": completed()}
    assert talk.is_over


def test_a_lost_prefill_is_repeated_on_another_prefill_replica() -> None:
    talk = disaggregated()
    talk.arrives("r")

    talk.fails("r.0", Reason.REPLICA_LOST)
    assert talk.sends == ["r.1 prefill to q"]
    talk.finishes("r.1", output_tokens=1)
    assert talk.sends == ["r.2 decode to d from r.1"]


def test_a_lost_prefill_is_repeated_even_after_its_first_token() -> None:
    """Its token is no part of the answer: the decode gives the first one that the client sees."""
    talk = disaggregated()
    talk.arrives("r")
    talk.first_token("r.0")

    talk.fails("r.0", Reason.REPLICA_LOST)

    assert talk.sends == ["r.1 prefill to q"]


def test_a_decode_that_no_replica_had_is_repeated_from_the_same_blocks() -> None:
    talk = disaggregated()
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)

    talk.fails("r.1", Reason.REPLICA_LOST, was_taken=False)

    assert talk.sends == ["r.2 decode to e from r.0"]


def test_a_decode_that_is_lost_begins_anew_with_its_prompt() -> None:
    """It may have pulled its blocks, and had them freed: another one would pull what has come in their place."""
    talk = disaggregated()
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)

    talk.fails("r.1", Reason.REPLICA_LOST)

    assert talk.sends == ["r.2 prefill to p"]
    talk.finishes("r.2", output_tokens=1)
    assert talk.sends == ["r.3 decode to e from r.2"]


def test_a_request_starts_over_at_the_prefill_when_its_blocks_are_gone() -> None:
    talk = disaggregated(decodes="d")
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)

    talk.fails("r.1", Reason.KV_TRANSFER_FAILED)
    assert talk.sends == ["r.2 prefill to q"]
    talk.finishes("r.2", output_tokens=1)
    assert talk.sends == ["r.3 decode to d from r.2"]


def test_a_failed_transfer_casts_no_suspicion_on_the_replica() -> None:
    talk = disaggregated(decodes="d")
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)
    talk.fails("r.1", Reason.KV_TRANSFER_FAILED)

    talk.finishes("r.2", output_tokens=1)

    assert talk.sends == ["r.3 decode to d from r.2"]


def test_a_prefill_replica_that_was_lost_may_serve_a_request_that_starts_over() -> None:
    talk = disaggregated(decodes="d")
    talk.arrives("r")
    talk.fails("r.0", Reason.REPLICA_LOST)
    talk.finishes("r.1", output_tokens=1)

    talk.at(6.0).fails("r.2", Reason.KV_TRANSFER_FAILED)

    assert talk.sends == ["r.3 prefill to p"]


def test_a_request_is_refused_with_the_reason_when_there_is_no_other_replica() -> None:
    talk = Dialogue(params=NO_WAITING_ROOM).replicas(Role.UNIFIED, "a")
    talk.arrives("q")

    talk.fails("q.0", Reason.REPLICA_LOST)

    assert talk.responses == {"q": refused(Reason.REPLICA_LOST)}
    assert talk.is_over


def test_a_request_is_refused_with_the_reason_when_there_is_nowhere_to_start_over() -> None:
    talk = disaggregated(prefills="p", params=NO_WAITING_ROOM)
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)
    talk.replicas(Role.PREFILL).replicas(Role.DECODE)

    talk.fails("r.1", Reason.KV_TRANSFER_FAILED)

    assert talk.responses == {"r": refused(Reason.KV_TRANSFER_FAILED, to="r")}
    assert talk.is_over


def test_a_failure_that_another_replica_would_repeat_is_not_tried_again() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")

    talk.fails("q.0", Reason.INVALID_REQUEST)

    assert talk.sends == []
    assert talk.responses == {"q": refused(Reason.INVALID_REQUEST)}
    assert talk.is_over


def test_a_replica_whose_engine_fails_where_another_one_does_not_is_spared_for_a_while() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    assert talk.sends == ["q.1 unified to b"]
    assert talk.load.keys() == {"a", "b"}, "it may have been the request"

    talk.at(1.0).first_token("q.1")

    assert talk.load.keys() == {"b"}
    [token] = [each for each in talk.timers if each.endswith(":quarantine")]
    assert talk.timers[token] == 6.0
    talk.finishes("q.1")
    assert talk.responses == {"q": completed()}
    talk.at(6.0).fires(token)
    assert talk.probes == ["a.1 on a"]
    talk.probe_ends("a.1")
    talk.arrives("r")
    assert talk.sends == ["r.0 unified to a"]


def test_what_two_engines_fail_on_is_told_and_held_against_neither() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q")
    talk.fails("q.0", Reason.ENGINE_ERROR)
    talk.fails("q.1", Reason.ENGINE_ERROR)

    assert talk.responses == {"q": refused(Reason.ENGINE_ERROR, may_retry=False)}
    assert talk.load.keys() == {"a", "b", "c"}
    assert talk.is_over


def test_a_decode_that_an_engine_fails_on_begins_anew_and_goes_to_another_engine() -> None:
    talk = disaggregated()
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)

    talk.fails("r.1", Reason.ENGINE_ERROR)

    assert talk.sends == ["r.2 prefill to p"]
    talk.finishes("r.2", output_tokens=1)
    assert talk.sends == ["r.3 decode to e from r.2"]
    assert talk.load.keys() == {"p", "q", "d", "e"}, "that its prompt was computed says nothing of a decode engine"
    talk.first_token("r.3")
    assert [each.replica_id for each in talk.dispatcher.fleet.live(Role.DECODE, talk.now_s)] == ["e"]


@for_each("reason", [Reason.KV_TRANSFER_FAILED, Reason.ENGINE_ERROR, Reason.INVALID_REQUEST])
def test_after_the_first_token_only_a_loss_is_made_up_for(reason: Reason) -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.first_token("q.0")

    talk.fails("q.0", reason)

    assert talk.sends == []
    assert talk.responses == {"q": failed(reason)}
    assert talk.is_over


def test_an_answer_that_began_before_its_kv_came_goes_on_elsewhere_when_that_is_not_to_be_had() -> None:
    talk = disaggregated(prefills="pq")
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)
    talk.begins_answer("r.1")

    talk.fails("r.1", Reason.KV_TRANSFER_FAILED, output_tokens=1)

    assert talk.sends == ["r.2 prefill to q"]
    talk.finishes("r.2", output_tokens=1)
    talk.begins_answer("r.3")
    assert talk.commits == ["r.3"]
    talk.finishes("r.3")
    assert talk.is_over


def test_an_answer_whose_kv_is_not_to_be_had_goes_on_from_the_same_replica_where_there_is_no_other() -> None:
    talk = disaggregated(prefills="p")
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)
    talk.begins_answer("r.1")

    talk.fails("r.1", Reason.KV_TRANSFER_FAILED, output_tokens=1)

    assert talk.sends == ["r.2 prefill to p"]


def test_an_answer_whose_replica_is_lost_goes_on_elsewhere_from_what_was_given_out() -> None:
    talk = Dialogue(rates=ServiceRates()).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.first_token("q.0")

    talk.fails("q.0", Reason.REPLICA_LOST, output_tokens=7)
    sent = [each for each in talk.answer if isinstance(each, Send)]
    assert [(each.attempt_id, each.replica_id, each.prefill_tokens, each.kv_tokens) for each in sent] == [
        ("q.1", "b", 107, 150)
    ]
    assert talk.resumptions == [Resumption(request_id="q", attempt_id="q.0", output_tokens=7)]
    assert talk.responses == {}

    talk.first_token("q.1")
    assert talk.commits == ["q.1"]
    talk.finishes("q.1", output_tokens=43)
    assert talk.responses == {"q": completed()}
    assert talk.is_over


def test_policies_hear_once_of_an_answer_that_went_on_elsewhere() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.first_token("q.0")
    talk.fails("q.0", Reason.REPLICA_LOST, output_tokens=7)
    talk.first_token("q.1")
    talk.finishes("q.1", output_tokens=43)

    assert [type(each) for each in talk.request_signals] == [Admitted, Started, Answering, Ended]
    ended = talk.request_signals[-1]
    assert isinstance(ended, Ended)
    assert (ended.is_completed, ended.output_tokens, ended.request.prompt_tokens) == (True, 50, 100)


def test_a_decode_that_is_lost_in_mid_answer_begins_again_with_a_prefill() -> None:
    talk = disaggregated()
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)
    talk.first_token("r.1")

    talk.fails("r.1", Reason.REPLICA_LOST, output_tokens=7)
    assert talk.sends == ["r.2 prefill to p"]
    talk.finishes("r.2", output_tokens=1)
    assert talk.sends == ["r.3 decode to e from r.2"]


def test_an_answer_that_could_not_go_on_as_it_began_has_failed() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q", is_resumable=False)
    talk.first_token("q.0")

    talk.fails("q.0", Reason.REPLICA_LOST, output_tokens=7)

    assert talk.responses == {"q": failed(Reason.REPLICA_LOST)}
    assert talk.is_over


def test_an_answer_that_nobody_can_go_on_with_has_failed() -> None:
    talk = Dialogue(params=NO_WAITING_ROOM).replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.first_token("q.0")

    talk.fails("q.0", Reason.REPLICA_LOST, output_tokens=7)

    assert talk.responses == {"q": failed(Reason.REPLICA_LOST)}
    assert talk.is_over


def test_an_answer_that_two_replicas_are_lost_with_has_failed() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q")
    for attempt_id in ("q.0", "q.1"):
        talk.first_token(attempt_id)
        talk.fails(attempt_id, Reason.REPLICA_LOST, output_tokens=1)

    assert talk.sends == []
    assert talk.responses == {"q": failed(Reason.REPLICA_LOST, may_retry=False)}
    assert talk.is_over


def test_a_request_that_two_replicas_are_lost_with_is_refused_for_good() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    assert talk.sends == ["q.1 unified to b"]

    talk.fails("q.1", Reason.REPLICA_LOST)

    assert talk.sends == []
    assert talk.responses == {"q": refused(Reason.REPLICA_LOST, may_retry=False)}


def test_a_replica_that_was_gone_before_it_had_an_attempt_is_not_lost_with_it() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", "c", "d")
    talk.arrives("q")
    for attempt_id in ("q.0", "q.1", "q.2"):
        assert talk.responses == {}
        talk.fails(attempt_id, Reason.REPLICA_LOST, was_taken=False)
    assert talk.sends == ["q.3 unified to d"]


def test_an_answer_that_gets_further_each_time_is_never_given_up() -> None:
    talk = Dialogue(params=DispatcherParams(max_attempts=2)).replicas(Role.UNIFIED, *"abcdefgh")
    talk.arrives("q")
    for number in range(7):
        talk.first_token(f"q.{number}")
        talk.fails(f"q.{number}", Reason.REPLICA_LOST, output_tokens=PROGRESS_TOKENS)
    assert talk.sends == ["q.7 unified to h"]


def test_what_one_replica_is_lost_with_and_the_next_stands_still_with_stays_there() -> None:
    """It may be what they hang on: no third one gets it."""
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q")
    talk.fails("q.0", Reason.REPLICA_LOST)

    talk.tell(ReplicaStalled(replica_id="b"))

    assert (talk.sends, talk.cancels, talk.responses) == ([], [], {})
    talk.fails("q.1", Reason.REPLICA_LOST)
    assert talk.responses == {"q": refused(Reason.REPLICA_LOST, may_retry=False)}


def test_a_request_leads_to_no_more_than_max_attempts() -> None:
    talk = Dialogue(params=DispatcherParams(max_attempts=2)).replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q")
    talk.fails("q.0", Reason.REPLICA_LOST, was_taken=False)

    talk.fails("q.1", Reason.REPLICA_LOST, was_taken=False)

    assert talk.sends == []
    assert talk.responses == {"q": refused(Reason.REPLICA_LOST, may_retry=False)}


def test_attempts_of_each_stage_count_by_themselves() -> None:
    talk = Dialogue(planner="always_disaggregated", params=DispatcherParams(max_attempts=2))
    talk.replicas(Role.PREFILL, "p", "q").replicas(Role.DECODE, "d", "e", "f")
    talk.arrives("r")
    talk.fails("r.0", Reason.REPLICA_LOST)
    talk.finishes("r.1", output_tokens=1)

    talk.fails("r.2", Reason.REPLICA_LOST, was_taken=False)
    assert talk.sends == ["r.3 decode to e from r.1"]
    talk.fails("r.3", Reason.REPLICA_LOST, was_taken=False)
    assert talk.responses == {"r": refused(Reason.REPLICA_LOST, to="r", may_retry=False)}


def test_an_answer_over_a_handoff_is_lost_as_often_as_one_of_a_single_stage() -> None:
    """Each time it takes another prefill and another decode."""
    params = DispatcherParams(max_attempts=3, max_fruitless_losses=9)
    talk = Dialogue(planner="always_disaggregated", params=params)
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", "e", "f")
    talk.arrives("r")
    for number in (0, 2):
        talk.finishes(f"r.{number}", output_tokens=1)
        talk.first_token(f"r.{number + 1}")
        talk.fails(f"r.{number + 1}", Reason.REPLICA_LOST, output_tokens=1)
        assert talk.responses == {}
    talk.finishes("r.4", output_tokens=1)
    talk.first_token("r.5")
    talk.fails("r.5", Reason.REPLICA_LOST, output_tokens=1)
    assert talk.responses == {"r": failed(Reason.REPLICA_LOST)}


def test_blocks_that_are_lost_again_and_again_are_computed_no_more_often_than_that() -> None:
    talk = Dialogue(planner="always_disaggregated", params=DispatcherParams(max_attempts=2))
    talk.replicas(Role.PREFILL, "p", "q").replicas(Role.DECODE, "d")
    talk.arrives("r")
    for number in (0, 2):
        assert talk.responses == {}
        talk.finishes(f"r.{number}", output_tokens=1)
        talk.fails(f"r.{number + 1}", Reason.KV_TRANSFER_FAILED)
    assert talk.responses == {"r": refused(Reason.KV_TRANSFER_FAILED, to="r", may_retry=False)}


def test_a_refused_client_is_told_when_to_come_back() -> None:
    talk = Dialogue(params=DispatcherParams(retry_after_s=11.0))

    talk.arrives("q")

    assert talk.responses == {"q": refused(Reason.NO_REPLICA_AVAILABLE, 11.0)}


def test_a_lost_replica_is_not_picked_for_five_seconds() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.at(1.0).arrives("q1")
    talk.fails("q1.0", Reason.REPLICA_LOST)
    talk.finishes("q1.1")

    talk.at(5.999).arrives("q2")
    assert talk.sends == ["q2.0 unified to b"]
    talk.at(6.0).arrives("q3")
    assert talk.sends == ["q3.0 unified to a"]


def test_suspicion_lasts_as_long_as_the_parameters_say() -> None:
    talk = Dialogue(params=DispatcherParams(quarantine_s=0.5)).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q1")
    talk.fails("q1.0", Reason.REPLICA_LOST)

    talk.at(0.5).arrives("q2")

    assert talk.sends == ["q2.0 unified to a"]


def test_a_later_loss_makes_the_suspicion_last_longer_and_an_earlier_end_changes_nothing() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q1")
    talk.arrives("q2", prompt_tokens=1000)
    talk.arrives("q3")
    assert talk.load["a"][0] == 2
    talk.fails("q1.0", Reason.REPLICA_LOST)
    talk.at(3.0).fails("q3.0", Reason.REPLICA_LOST)

    talk.fires("q1.0:quarantine")
    talk.at(7.0).arrives("q4")
    assert talk.sends == ["q4.0 unified to b"]
    talk.at(8.0).arrives("q5")
    assert talk.sends == ["q5.0 unified to a"]


def test_the_replica_that_took_the_attempt_is_the_one_that_is_suspected() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q1")
    talk.accepts("q1.0", "b")

    talk.fails("q1.0", Reason.REPLICA_LOST)

    assert talk.sends == ["q1.1 unified to a"]


def test_losing_a_replica_that_has_left_suspects_nobody() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.replicas(Role.UNIFIED, "b")

    talk.fails("q.0", Reason.REPLICA_LOST)

    assert talk.sends == ["q.1 unified to b"]


def test_a_replica_that_lost_one_of_two_attempts_is_not_tried_again() -> None:
    """It counts although the other attempt was still under way when it was lost."""
    talk = Dialogue(hedging=hedge_after(1.0), params=NO_WAITING_ROOM).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.fires("q.0:hedge")
    talk.fails("q.0", Reason.REPLICA_LOST)

    talk.at(10.0).fails("q.1", Reason.REPLICA_LOST, was_taken=False)

    assert talk.sends == []
    assert talk.responses == {"q": refused(Reason.REPLICA_LOST)}


def test_blocks_that_are_gone_are_made_again_where_they_were_when_there_is_no_other_replica() -> None:
    talk = disaggregated(prefills="p", decodes="d")
    talk.arrives("r")
    talk.finishes("r.0", output_tokens=1)

    talk.fails("r.1", Reason.KV_TRANSFER_FAILED)

    assert talk.sends == ["r.2 prefill to p"]
