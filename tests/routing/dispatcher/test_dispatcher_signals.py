"""Every policy is told what happened to each attempt: each kind of signal once, and a failure never as a success."""

import pytest

from policies import PolicyChoice, Reason, Role, signals
from routing.request.request import Attempt
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import Dialogue, hedge_after


def test_a_served_request_is_dispatched_gives_its_first_token_and_completes() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.at(1.0).arrives("q")
    talk.at(1.25).first_token("q.0")
    talk.at(4.0).finishes("q.0", output_tokens=42)

    assert talk.signals == [
        signals.Dispatched(request_id="q", attempt_id="q.0", replica_id="a", work_tokens=250, at_s=1.0),
        signals.FirstToken(request_id="q", attempt_id="q.0", replica_id="a", latency_s=0.25, at_s=1.25),
        signals.Completed(request_id="q", attempt_id="q.0", replica_id="a", latency_s=3.0, output_tokens=42, at_s=4.0),
    ]


def test_policies_hear_when_a_first_token_is_to_be_expected() -> None:
    talk = Dialogue(planner="always_disaggregated", rates=ServiceRates(new_token_s=0.001))
    talk.replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    talk.arrives("q1", prompt_tokens=300)
    talk.arrives("q2", prompt_tokens=100)
    talk.finishes("q1.0")

    sent = [each for each in talk.signals if isinstance(each, signals.Dispatched)]
    assert [(each.attempt_id, each.expected_s) for each in sent] == [
        ("q1.0", pytest.approx(0.3)),
        ("q2.0", pytest.approx(0.4, rel=1e-3)),  # one step has room for a token less, beside the other attempt
        ("q1.1", 0.0),
    ]


def test_a_lost_attempt_has_failed_with_its_reason() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.at(2.0).fails("q.0", Reason.REPLICA_LOST)

    assert talk.signals[1:] == [
        signals.Failed(request_id="q", attempt_id="q.0", replica_id="a", reason=Reason.REPLICA_LOST, at_s=2.0)
    ]


def test_an_attempt_that_nobody_waits_for_was_cancelled() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    talk.client_goes("q")
    assert len(talk.signals) == 1, "it has not ended yet"
    talk.at(0.5).stops("q.0")

    assert talk.signals[1:] == [signals.Cancelled(request_id="q", attempt_id="q.0", replica_id="a", at_s=0.5)]


def test_an_attempt_that_lost_to_another_was_superseded() -> None:
    talk = Dialogue(hedging=hedge_after(0.5)).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.fires("q.0:hedge")
    talk.first_token("q.1")
    talk.at(0.75).stops("q.0")

    assert talk.signals[-1:] == [signals.Superseded(request_id="q", attempt_id="q.0", replica_id="a", at_s=0.75)]


def test_a_request_that_was_never_sent_gives_no_signal() -> None:
    talk = Dialogue()

    talk.arrives("q")

    assert talk.signals == []


def test_signals_name_the_replica_that_really_took_the_attempt() -> None:
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q")
    talk.accepts("q.0", "b")
    talk.first_token("q.0")
    talk.finishes("q.0")

    assert [each.replica_id for each in talk.signals] == ["a", "b", "b"]


def test_no_signal_is_made_when_nobody_consumes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name in ("dispatched", "gave_first_token", "completed", "failed", "cancelled", "superseded"):
        monkeypatch.setattr(Attempt, name, lambda *_, name=name: made.append(name))
    talk = Dialogue(shedding=PolicyChoice(name="never_shed")).replicas(Role.UNIFIED, "a", "b")

    talk.arrives("served")
    talk.first_token("served.0")
    talk.finishes("served.0")
    talk.arrives("lost")
    talk.fails("lost.0", Reason.REPLICA_LOST)
    talk.client_goes("lost")
    talk.stops("lost.1")

    assert made == []
    assert talk.is_over


def test_who_consumes_one_kind_of_signal_is_told_of_no_other() -> None:
    talk = Dialogue(shedding=PolicyChoice(name="tests.policy_doubles:KeepAndRecordFailures")).replicas(
        Role.UNIFIED, "a", "b"
    )
    talk.arrives("q")
    talk.fails("q.0", Reason.REPLICA_LOST)
    talk.first_token("q.1")
    talk.finishes("q.1")

    assert talk.signal_names == ["Failed q.0"]
