"""How many requests each stage did in time, as the scaling policy sees it."""

from policies import PolicyChoice, Reason, Role
from policies.pool_views import Demand
from routing.intake.slos import Slo, Slos
from tests.routing.dialogue import ALWAYS_ADMIT, DOUBLES, Dialogue
from tests.tables import for_each

SCALED = PolicyChoice(name="queue_depth", params={"target_requests": 4})
SLOS = Slos(default=Slo(ttft_s=1.0, tpot_s=0.1))


def dialogue(planner: str = "always_disaggregated", admission: PolicyChoice = ALWAYS_ADMIT) -> Dialogue:
    talk = Dialogue(planner=planner, admission=admission, scaling=SCALED, slos=SLOS)
    return talk.replicas(Role.UNIFIED, "u").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")


def counts(talk: Dialogue) -> dict[str, tuple[float, float]]:
    """In time and late, of the pools that were either."""
    found = {name: each.demand for name, each in talk.dispatcher.pool_loads(talk.now_s).items()}
    return {name: (d.num_in_time, d.num_late) for name, d in found.items() if d.num_in_time or d.num_late}


def served(talk: Dialogue, prompt_s: float, first_token_s: float, end_s: float) -> None:
    """A request of the handoff whose prompt is computed, whose first token comes and whose answer ends then."""
    talk.arrives("q", max_output_tokens=11)
    talk.at(prompt_s).finishes("q.0", 1)
    talk.at(first_token_s).first_token("q.1")
    talk.at(end_s).finishes("q.1", 11)


def test_a_request_that_is_in_time_was_so_at_both_stages() -> None:
    talk = dialogue()
    served(talk, 0.5, 0.6, 1.6)
    assert counts(talk) == {"prefill": (1, 0), "decode": (1, 0)}


def test_a_prompt_that_takes_too_long_is_late_where_it_was_computed_alone() -> None:
    talk = dialogue()
    served(talk, 1.5, 1.6, 2.0)
    assert counts(talk) == {"prefill": (0, 1)}


def test_a_first_token_that_waits_for_decode_is_late_there_alone() -> None:
    talk = dialogue()
    served(talk, 0.5, 1.5, 2.0)
    assert counts(talk) == {"prefill": (1, 0), "decode": (0, 1)}


def test_slow_tokens_are_late_where_they_are_decoded() -> None:
    talk = dialogue()
    served(talk, 0.5, 0.6, 1.7)
    assert counts(talk) == {"prefill": (1, 0), "decode": (0, 1)}


def test_a_unified_replica_does_both() -> None:
    talk = dialogue("always_unified")
    talk.arrives("q", max_output_tokens=11)
    talk.at(0.5).first_token("q.0")
    talk.at(1.4).finishes("q.0", 11)
    talk.arrives("r", max_output_tokens=11)
    talk.at(1.5).first_token("r.0")
    talk.at(3.0).finishes("r.0", 11)
    assert counts(talk) == {"unified": (1, 1)}


def test_an_answer_of_one_token_has_no_further_ones_to_be_late_with() -> None:
    talk = dialogue("always_unified")
    talk.arrives("q")
    talk.at(0.5).first_token("q.0")
    talk.at(9.0).finishes("q.0", 1)
    assert counts(talk) == {"unified": (1, 0)}


@for_each(("reason", "late_at"), [("deadline_unreachable", "prefill"), ("kv_full", "decode")])
def test_a_refused_request_is_late_where_room_is_missing_and_its_retry_does_not_count(
    reason: str, late_at: str
) -> None:
    talk = dialogue(admission=PolicyChoice(name=f"{DOUBLES}:AdmitNone", params={"reason": reason}))
    talk.arrives("q")
    talk.arrives("again", retry_count=1)
    assert counts(talk) == {late_at: (0, 1)}


def test_a_request_that_ends_without_a_token_is_late() -> None:
    talk = dialogue("always_unified")
    talk.arrives("q")
    talk.at(0.2).client_goes("q")
    assert counts(talk) == {"unified": (0, 1)}


def test_an_answer_that_breaks_off_counts_by_its_first_token() -> None:
    talk = dialogue("always_unified")
    talk.arrives("q")
    talk.at(0.5).first_token("q.0")
    talk.at(40.0).client_goes("q")
    assert counts(talk) == {"unified": (1, 0)}


def test_of_a_repeated_prompt_the_first_time_counts() -> None:
    talk = dialogue().replicas(Role.DECODE, "d", "e")
    talk.arrives("q", max_output_tokens=11)
    talk.at(0.5).finishes("q.0", 1)
    talk.at(0.7).fails("q.1", Reason.REPLICA_LOST)
    assert counts(talk) == {}
    talk.at(100.0).client_goes("q")
    assert counts(talk) == {"prefill": (1, 0), "decode": (0, 1)}


def test_without_a_scaling_policy_nothing_is_counted() -> None:
    talk = Dialogue(slos=SLOS).replicas(Role.UNIFIED, "u")
    talk.arrives("q")
    talk.at(5.0).client_goes("q")
    assert talk.dispatcher.pool_loads(5.0)["unified"].demand == Demand()
