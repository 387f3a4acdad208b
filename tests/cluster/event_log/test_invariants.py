"""A conversation in which something does not hold is found by what is wrong with it; one in which all holds is not."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import GatewayStreams, LogHeader
from cluster.event_log.frames import LogReader, LogRecord, frame
from cluster.event_log.invariants import MOST_VIOLATIONS, DispatcherInvariants, hear_log, main
from cluster.sim.faults import Fault
from cluster.sim.simulator import simulate
from engines.faults import FaultKind
from policies import ConfigError, InvariantViolation, PolicyChoice, Priority, Reason, Role
from routing import (
    Accepted,
    AnswerBegun,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    Cancel,
    CancelProbe,
    CancelTimer,
    ClientGone,
    Commit,
    Degraded,
    DispatcherParams,
    Effect,
    Event,
    FirstTokenReceived,
    FleetChanged,
    Outcome,
    OutcomeKind,
    Placement,
    Preemption,
    Probe,
    ProbeEnded,
    Record,
    ReleaseKv,
    Replan,
    ReplicaReported,
    Respond,
    Send,
    SetTimer,
    TimerFired,
    Truncate,
    reconfigured,
)
from tests.cluster.logged import A_SPEC, LogInMemory, a_header
from tests.cluster.simulated import dispatcher, fleet, poisson
from tests.policy_doubles import a_request, replica_info
from tests.tables import for_each

MAX_ATTEMPTS = 2
LATE_S = 1.0
MOST_TOKENS = 50
Told = tuple[float, Event, Sequence[Effect]]
UNIFIED, PREFILL, DECODE = Role.UNIFIED, Role.PREFILL, Role.DECODE


# -- what a conversation is made of ----------------------------------------------------------------------------------


def fleet_of(*names: str, role: Role = UNIFIED, slots: int = 2) -> Event:
    return FleetChanged(
        pool=role.value, role=role, replicas=tuple(replica_info(each, role, slots=slots) for each in names)
    )


def arrived(request_id: str = "q", **terms: Any) -> Event:
    return Arrived(request=a_request(request_id, max_output_tokens=MOST_TOKENS, **terms))


def send(attempt_id: str = "q.0", replica_id: str = "a", stage: Role = UNIFIED, **more: Any) -> Effect:
    own = {"request_id": attempt_id.rpartition(".")[0], "pool": stage.value, "prefill_tokens": 1, "kv_tokens": 1}
    return Send(attempt_id=attempt_id, replica_id=replica_id, stage=stage, **{"kv_from": None, **own, **more})


def hedge(attempt_id: str) -> Effect:
    request_id = attempt_id.rpartition(".")[0]
    return Record(
        decision=Placement(
            request_id=request_id, attempt_id=attempt_id, replica_id="b", num_candidates=1, is_hedge=True
        )
    )


def first_token(attempt_id: str = "q.0") -> Event:
    return FirstTokenReceived(attempt_id=attempt_id)


def finished(attempt_id: str = "q.0", output_tokens: int = 3) -> Event:
    return AttemptFinished(attempt_id=attempt_id, output_tokens=output_tokens)


def failed(attempt_id: str = "q.0", output_tokens: int = 0, reason: Reason = Reason.REPLICA_LOST) -> Event:
    return AttemptFailed(attempt_id=attempt_id, reason=reason, output_tokens=output_tokens)


def commit(attempt_id: str = "q.0") -> Effect:
    return Commit(request_id=attempt_id.rpartition(".")[0], attempt_id=attempt_id)


def respond(kind: OutcomeKind = OutcomeKind.COMPLETED, request_id: str = "q", retry_after_s: float = 0.0) -> Effect:
    reason = None if kind is OutcomeKind.COMPLETED else Reason.REPLICA_LOST
    return Respond(request_id=request_id, outcome=Outcome(kind=kind, reason=reason, retry_after_s=retry_after_s))


def refuse(retry_after_s: float = 2.0) -> Effect:
    return respond(OutcomeKind.REFUSED, retry_after_s=retry_after_s)


def release(kv_from: str = "q.0") -> Effect:
    return ReleaseKv(request_id="q", kv_from=kv_from, replica_id="d")


def probe(probe_id: str) -> Effect:
    replica_id = probe_id.partition(".")[0]
    return Probe(probe_id=probe_id, replica_id=replica_id, pool="unified", prompt_tokens=8, output_tokens=1)


def told(event: Event, *effects: Effect, at_s: float = 0.0) -> Told:
    return at_s, event, effects


UP = told(fleet_of("a", "b"))
APART = (told(fleet_of("p", role=PREFILL)), told(fleet_of("d", "e", role=DECODE)))
SENT = (UP, told(arrived(), send()))
BEGUN = (*SENT, told(first_token(), commit()))
DONE = (*BEGUN, told(finished(), respond()))
HANDED_OFF = (
    *APART,
    told(arrived(), send(replica_id="p", stage=PREFILL)),
    told(finished(), send("q.1", "d", DECODE, kv_from="q.0")),
)
NOTHING = ReplicaReported(replica_id="a", prefill_tokens=0, kv_tokens=0, kv_cache_usage=0.0)


def heard(*conversation: Told, is_closed: bool = False, max_attempts: int = MAX_ATTEMPTS) -> DispatcherInvariants:
    listener = DispatcherInvariants(max_attempts, LATE_S)
    for now_s, event, effects in conversation:
        listener.on_event(now_s, event, effects)
    if is_closed:
        listener.close()
    return listener


# -- what does not hold -----------------------------------------------------------------------------------------------

BROKEN: dict[str, tuple[Told, ...]] = {
    # outcomes
    "q has no outcome 1.50 s after its deadline": (*SENT, told(NOTHING, at_s=61.5)),
    "late has no outcome 1.25 s after its deadline": (
        UP,
        told(arrived("late", deadline_s=3.0), send("late.0"), at_s=9.0),
        told(NOTHING, at_s=10.25),
    ),
    "q has another outcome, completed": (*DONE, told(NOTHING, respond())),
    "q has another outcome, refused": (*SENT, told(failed(), refuse(), refuse())),
    "other has another outcome, completed": (*SENT, told(NOTHING, respond(request_id="other"))),
    "q has no outcome though its client has gone": (*SENT, told(ClientGone(request_id="q"))),
    "q comes while it is there": (*SENT, told(arrived())),
    "q is told to come back in -1.0 s": (*SENT, told(failed(), refuse(-1.0))),
    "q is told to come back in nan s": (*SENT, told(failed(), refuse(math.nan))),
    "q is told to come back in inf s": (*SENT, told(failed(), refuse(math.inf))),
    # answers
    "q is refused with a part of its answer given": (*BEGUN, told(failed(output_tokens=1), refuse())),
    "q has failed with nothing of its answer given, and is not refused": (
        *SENT,
        told(failed(), respond(OutcomeKind.FAILED)),
    ),
    "q has a whole answer, and no attempt has finished it": (*BEGUN, told(failed(output_tokens=9), respond())),
    "q has 51 tokens of an answer of 50 at the most": (*BEGUN, told(finished(output_tokens=51), respond())),
    "q has 53 tokens of an answer of 50 at the most": (
        *BEGUN,
        told(failed(output_tokens=20), send("q.1", "b")),
        told(first_token("q.1"), commit("q.1")),
        told(finished("q.1", 33), respond()),
    ),
    "q has 5 tokens of an answer of 4 at the most": (
        UP,
        told(
            arrived(),
            Record(
                decision=Degraded(
                    request_id="q", priority=Priority.STANDARD, max_output_tokens=4, asked_output_tokens=50
                )
            ),
            send(),
        ),
        told(finished(output_tokens=5), commit(), respond()),
    ),
    "q.1 is to give the answer that q.0 gives": (
        *BEGUN,
        told(NOTHING, hedge("q.1"), send("q.1", "b")),
        told(first_token("q.1"), commit("q.1")),
    ),
    "q.0 is to give an answer and is a prefill": (
        *APART,
        told(arrived(), send(replica_id="p", stage=PREFILL)),
        told(finished(), commit()),
    ),
    "q.7 is to give the answer of q and is not under way for it": (*SENT, told(NOTHING, commit("q.7"))),
    "q.0 has emitted 4 tokens and does not give the answer": (*SENT, told(failed(output_tokens=4), refuse())),
    "q.0 is truncated and does not give the answer": (*SENT, told(NOTHING, Truncate(attempt_id="q.0"))),
    # attempts
    "q.1 is sent for a request that has its outcome": (*DONE, told(NOTHING, send("q.1"))),
    "q.2 is sent for a request that has its outcome": (
        *SENT,
        told(NOTHING, refuse(), Cancel(attempt_id="q.0"), send("q.2", "b")),
    ),
    "q.0 is sent twice": (*SENT, told(failed(), send())),
    "q.0 is sent to c, which is not up": (UP, told(arrived(), send(replica_id="c"))),
    "q.1 is sent to a, which is not up": (
        *SENT,
        told(fleet_of("b")),
        told(failed(), send("q.1", "a")),
    ),
    "q.2 is sent to a, which has no free slot": (
        *SENT,
        told(NOTHING, hedge("q.1"), send("q.1"), hedge("q.2"), send("q.2")),
    ),
    "r.0 is sent to b, which has no free slot": (
        told(fleet_of("a", "b", slots=1)),
        told(arrived(), send()),
        told(Accepted(attempt_id="q.0", replica_id="b")),
        told(arrived("r"), send("r.0", "b")),
    ),
    "q.1 is tied to q.9, which is not under way": (*SENT, told(NOTHING, hedge("q.1"), send("q.1", "b", tied_to="q.9"))),
    "q.2 is attempt 3 at unified, of 2": (
        *SENT,
        told(first_token(), commit()),
        told(failed(output_tokens=15), send("q.1", "b")),
        told(failed("q.1"), send("q.2", "a")),
    ),
    "q.2 is attempt 3 at prefill, of 2": (
        *APART,
        told(arrived(), send(replica_id="p", stage=PREFILL)),
        told(failed(), send("q.1", "p", PREFILL)),
        told(failed("q.1"), send("q.2", "p", PREFILL)),
    ),
    "q.0 ends and is not under way": (*SENT, told(failed(), refuse()), told(finished())),
    "q.5 ends and is not under way": (*SENT, told(AttemptWithdrawn(attempt_id="q.5"))),
    "q.0 gives a token and is not under way": (*SENT, told(failed(), refuse()), told(first_token())),
    "q.3 gives a token and is not under way": (*SENT, told(AnswerBegun(attempt_id="q.3"))),
    "q.4 is accepted and is not under way": (*SENT, told(Accepted(attempt_id="q.4", replica_id="a"))),
    "q.0 gives its first token twice": (*BEGUN, told(first_token())),
    "q.0 is cancelled and is not under way": (*DONE, told(NOTHING, Cancel(attempt_id="q.0"))),
    "q.0 is cancelled twice": (*SENT, told(NOTHING, Cancel(attempt_id="q.0"), Cancel(attempt_id="q.0"))),
    # KV
    "q.1 is to pull the KV of q.9, which is no finished prefill of its request": (
        *APART,
        told(arrived(), send(replica_id="p", stage=PREFILL)),
        told(finished(), send("q.1", "d", DECODE, kv_from="q.9")),
    ),
    "q.2 is to pull the KV of q.0, which was given up": (
        *HANDED_OFF,
        told(failed("q.1"), release(), send("q.2", "e", DECODE, kv_from="q.0")),
    ),
    "the KV of q.0 is given up and is not held": (*HANDED_OFF, told(failed("q.1"), release(), release())),
    "the KV of q.1 is given up and is not held": (*HANDED_OFF, told(NOTHING, release("q.1"))),
    # timers
    "the timer t has not fired 1.50 s after its time": (
        told(NOTHING, SetTimer(token="t", at_s=2.0)),
        told(NOTHING, at_s=3.5),
    ),
    "the timer t fires 0.500 s before its time": (
        told(NOTHING, SetTimer(token="t", at_s=2.0)),
        told(TimerFired(token="t"), at_s=1.5),
    ),
    "the timer t is set while it runs": (
        told(NOTHING, SetTimer(token="t", at_s=2.0)),
        told(NOTHING, SetTimer(token="t", at_s=3.0)),
    ),
    "the timer t is set for no time": (told(NOTHING, SetTimer(token="t", at_s=math.nan)),),
    # probes
    "a.2 is sent to a, which is probed": (told(NOTHING, probe("a.1")), told(NOTHING, probe("a.2"))),
    "the probe a.1 ends and is not under way": (
        told(NOTHING, probe("a.1")),
        told(NOTHING, CancelProbe(probe_id="a.1")),
        told(ProbeEnded(probe_id="a.1", is_well=True)),
    ),
    # time
    "time goes back, from 2.0 s to 1.0 s": (told(NOTHING, at_s=2.0), told(NOTHING, at_s=1.0)),
}


@for_each(("what", "conversation"), BROKEN.items(), ids=BROKEN)
def test_what_does_not_hold_is_said(what: str, conversation: tuple[Told, ...]) -> None:
    *_, (now_s, _, _) = conversation
    found = heard(*conversation)

    assert f"record {len(conversation)}, {now_s:.3f} s: {what}" in found.violations
    assert found.num_violations == len(found.violations)


def test_it_holds_until_then() -> None:
    """Each of the conversations above is a true one but for its end."""
    early = {what: heard(*conversation[:-1]).violations for what, conversation in BROKEN.items()}

    assert {what: said for what, said in early.items() if said} == {}


def test_what_is_left_when_a_dispatcher_ends_is_said() -> None:
    assert heard(*SENT, is_closed=True).violations == [
        "record 2, 0.000 s: q is left without an outcome",
        "record 2, 0.000 s: q.0 is left without an end",
    ]
    cancelled = told(ClientGone(request_id="q"), Cancel(attempt_id="q.0"), respond(OutcomeKind.CANCELLED))
    assert heard(*SENT, cancelled, is_closed=True).violations == ["record 3, 0.000 s: q.0 is left without an end"]


def test_a_dispatcher_that_raises_is_said_unless_it_was_told_of_what_cannot_be() -> None:
    listener = DispatcherInvariants(MAX_ATTEMPTS)
    listener.on_error(0.0, reconfigured(A_SPEC), ConfigError("planner", "x", "another"))
    assert listener.violations == []

    listener.on_error(1.0, reconfigured(A_SPEC), InvariantViolation("oh"))
    listener.on_error(2.0, arrived(), ZeroDivisionError())

    assert listener.violations == [
        "record 2, 1.000 s: the dispatcher raises InvariantViolation when it is told Reconfigured",
        "record 3, 2.000 s: the dispatcher raises ZeroDivisionError when it is told Arrived",
    ]


def test_the_first_of_many_violations_are_kept_and_all_are_counted() -> None:
    found = heard(*(told(finished(f"q.{number}")) for number in range(MOST_VIOLATIONS + 5)))

    assert (len(found.violations), found.num_violations) == (MOST_VIOLATIONS, MOST_VIOLATIONS + 5)


# -- what holds -------------------------------------------------------------------------------------------------------

TRUE: dict[str, tuple[Told, ...]] = {
    "one answer": DONE,
    "a refusal": (UP, told(arrived(), refuse())),
    "an outcome a little late": (*SENT, told(failed(), refuse(), at_s=60.9)),
    "a client that goes": (
        *SENT,
        told(ClientGone(request_id="q"), Cancel(attempt_id="q.0"), respond(OutcomeKind.CANCELLED)),
        told(failed(reason=Reason.CLIENT_GONE)),
        told(ClientGone(request_id="q")),
    ),
    "one probe after the other": (
        told(NOTHING, probe("a.1"), probe("b.2")),
        told(ProbeEnded(probe_id="a.1", is_well=False), probe("a.3")),
    ),
    "an answer from the cache": (
        UP,
        told(
            arrived(),
            Record(
                decision=Degraded(
                    request_id="q",
                    priority=Priority.STANDARD,
                    max_output_tokens=50,
                    asked_output_tokens=50,
                    from_cache=True,
                )
            ),
            respond(),
        ),
    ),
    "as many attempts as may be, twice, with progress between them": (
        *SENT,
        told(failed(), send("q.1", "b")),
        told(first_token("q.1"), commit("q.1")),
        told(failed("q.1", output_tokens=16), send("q.2", "a")),
        told(failed("q.2"), send("q.3", "b")),
        told(failed("q.3"), respond(OutcomeKind.FAILED)),
    ),
    "as many attempts as may be, and again after a preemption": (
        *SENT,
        told(failed(), send("q.1", "b"), Cancel(attempt_id="q.1")),
        told(
            failed("q.1", reason=Reason.CLIENT_GONE),
            Record(decision=Preemption(request_id="q", attempt_id="q.1", output_tokens=0)),
            send("q.2", "a"),
        ),
        told(failed("q.2"), send("q.3", "b")),
        told(failed("q.3"), refuse()),
    ),
    "as many attempts as may be, and one that begins another plan": (
        *APART,
        told(arrived(), send(replica_id="p", stage=PREFILL)),
        told(failed(), send("q.1", "p", PREFILL)),
        told(finished("q.1")),
        told(
            NOTHING,
            Record(decision=Replan(request_id="q", plan=(PREFILL, DECODE), instead_of=(DECODE,))),
            send("q.2", "p", PREFILL),
        ),
        told(finished("q.2"), send("q.3", "d", DECODE, kv_from="q.2")),
        told(finished("q.3"), commit("q.3"), respond()),
    ),
    "a hedge beside each attempt": (
        *SENT,
        told(NOTHING, hedge("q.1"), send("q.1", "b")),
        told(failed("q.1")),
        told(failed(), send("q.2", "a")),
        told(NOTHING, hedge("q.3"), send("q.3", "b")),
        told(first_token("q.3"), Cancel(attempt_id="q.2"), commit("q.3")),
        told(failed("q.2", reason=Reason.CLIENT_GONE)),
        told(finished("q.3"), respond()),
    ),
    "two tied attempts of which the second wins and is preempted": (
        *SENT,
        told(NOTHING, hedge("q.1"), send("q.1", "b", tied_to="q.0"), Cancel(attempt_id="q.1")),
        told(failed("q.1", reason=Reason.CLIENT_GONE)),
        told(AttemptWithdrawn(attempt_id="q.0"), send("q.2", "a")),
        told(failed("q.2"), send("q.3", "b")),
        told(failed("q.3"), refuse()),
    ),
    "a pull that fails, elsewhere": (
        *HANDED_OFF,
        told(failed("q.1", reason=Reason.KV_TRANSFER_FAILED), send("q.2", "e", DECODE, kv_from="q.0")),
        told(AnswerBegun(attempt_id="q.2"), commit("q.2")),
        told(finished("q.2"), respond()),
    ),
    "an answer that comes whole at once": (*SENT, told(finished(), commit(), respond())),
    "an answer that is truncated": (
        *BEGUN,
        told(NOTHING, Truncate(attempt_id="q.0")),
        told(finished(), respond()),
    ),
    "an attempt of a replica that has gone": (*SENT, told(fleet_of("b")), told(failed(), send("q.1", "b"))),
    "a slot that is free again because another replica took the attempt": (
        told(fleet_of("a", "b", slots=1)),
        told(arrived(), send()),
        told(Accepted(attempt_id="q.0", replica_id="b")),
        told(arrived("r"), send("r.0", "a")),
    ),
    "timers": (
        told(
            NOTHING,
            SetTimer(token="t", at_s=2.0),
            SetTimer(token="u", at_s=2.0),
            SetTimer(token="never", at_s=math.inf),
        ),
        told(NOTHING, CancelTimer(token="u"), at_s=1.0),
        told(TimerFired(token="t"), SetTimer(token="t", at_s=3.0), at_s=2.5),
        told(TimerFired(token="u"), at_s=2.5),
        told(TimerFired(token="t"), at_s=4.0),
    ),
    "more attempts by a new configuration": (
        UP,
        told(reconfigured(replace(A_SPEC, params=DispatcherParams(max_attempts=3)))),
        told(arrived(), send()),
        told(failed(), send("q.1", "b")),
        told(failed("q.1"), send("q.2", "a")),
    ),
}


@for_each(("what", "conversation"), TRUE.items(), ids=TRUE)
def test_what_may_be_is_no_violation(what: str, conversation: tuple[Told, ...]) -> None:
    assert heard(*conversation).violations == []


def test_requests_attempts_and_outcomes_are_counted() -> None:
    found = heard(*DONE, told(arrived("r"), respond(OutcomeKind.REFUSED, "r")))

    assert (found.num_records, found.num_requests, found.num_attempts, found.num_open_requests) == (5, 2, 1, 0)
    assert found.outcomes == {OutcomeKind.COMPLETED: 1, OutcomeKind.REFUSED: 1}


def test_what_is_over_is_forgotten() -> None:
    """In a log of millions of requests what is known is what is open."""
    listener = heard(UP)
    for number in range(5_000):
        name = f"r{number}"
        terms = {"deadline_s": number + 600.0}
        deadline = SetTimer(token=f"{name}:deadline", at_s=number + 600.0)
        listener.on_event(float(number), arrived(name, **terms), [deadline, send(f"{name}.0")])
        listener.on_event(
            float(number),
            finished(f"{name}.0"),
            [CancelTimer(token=deadline.token), commit(f"{name}.0"), respond(request_id=name)],
        )

    assert listener.violations == []
    known = len(listener._requests), len(listener._attempts)
    due = len(listener._deadlines._heap), len(listener._timers._heap)
    assert max(*known, *due) < 100


# -- logs -------------------------------------------------------------------------------------------------------------


@cache
def simulated(is_disaggregated: bool = True) -> LogInMemory:
    """The log of a gateway with crashes, engines that fail, and hedges; tests leave it as it is."""
    spec = fleet(3, is_disaggregated=is_disaggregated)
    made_from = dispatcher(spec)
    hedging = PolicyChoice(name="fixed_delay", params={"wait_s": 0.3})
    made_from = replace(made_from, policies=replace(made_from.policies, hedging=hedging))
    streams = GatewayStreams(seed=3, prefix="gateway.0.")
    log = LogInMemory(LogHeader(gateway="0", streams=streams, dispatcher=made_from))

    def listen(gateway: int, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        log.on_event(now_s, event, effects)

    faults = [
        Fault(kind=kind, at_s=1.0 + number, for_s=2.0, role=role, replica=number)
        for number, kind in enumerate((FaultKind.CRASH, FaultKind.FAIL))
        for role in spec.roles_by_pool.values()
    ]
    simulate(spec, made_from, poisson(300, rate_per_s=60.0, seed=2), ["all"], seed=3, faults=faults, on_event=listen)
    return log


@cache
def conversation_of(log: LogInMemory) -> tuple[Told, ...]:
    reader = LogReader(log.file())
    return tuple((each.now_s, each.event, effects_in(reader, each)) for each in reader)


def effects_in(reader: LogReader, record: LogRecord) -> Sequence[Effect]:
    answer = reader.answer(record)
    assert not isinstance(answer, str)
    return answer


@for_each("is_disaggregated", [False, True])
def test_a_long_log_holds(is_disaggregated: bool) -> None:
    log = simulated(is_disaggregated)

    verdict = hear_log(log.file())

    assert (verdict.heard.violations, verdict.end) == ([], "closed")
    assert (verdict.heard.num_records, verdict.heard.num_requests) == (len(log.events), 300)
    assert verdict.heard.num_attempts > 300, "some were lost"
    assert verdict.heard.num_open_requests == 0


def whole_violations(*conversation: Told) -> list[str]:
    """Of a conversation from the beginning to the end, with the usual parameters."""
    return heard(*conversation, is_closed=True, max_attempts=DispatcherParams().max_attempts).violations


@given(data=st.data())
def test_a_conversation_in_which_the_end_of_an_attempt_is_missing_does_not_hold(data: st.DataObject) -> None:
    told_of = conversation_of(simulated())
    ends = [n for n, (_, event, _) in enumerate(told_of) if isinstance(event, AttemptFinished | AttemptFailed)]

    number = data.draw(st.sampled_from(ends))

    assert not whole_violations(*told_of)
    assert whole_violations(*told_of[:number], *told_of[number + 1 :])


@given(data=st.data())
def test_a_conversation_in_which_an_effect_is_missing_does_not_hold(data: st.DataObject) -> None:
    """One of those that something has to follow from."""
    told_of = conversation_of(simulated())
    places = [(n, at) for n, (*_, effects) in enumerate(told_of) for at in range(len(effects))]
    kinds = (Send, Respond)

    number, at = data.draw(st.sampled_from([(n, at) for n, at in places if isinstance(told_of[n][2][at], kinds)]))
    now_s, event, effects = told_of[number]
    without = now_s, event, [*effects[:at], *effects[at + 1 :]]

    assert whole_violations(*told_of[:number], without, *told_of[number + 1 :])


# -- the command line -------------------------------------------------------------------------------------------------


def saved(folder: Path, data: bytes, name: str = "gw-1.log") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def logged(*conversation: Told) -> LogInMemory:
    log = LogInMemory(a_header())
    for now_s, event, effects in conversation:
        log.on_event(now_s, event, effects)
    return log


def columns(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_the_command_has_a_line_for_each_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = saved(tmp_path, simulated().whole())
    small = saved(tmp_path, logged(*SENT).whole(end=None)[:-3], "another-gateway-2.log")

    assert main([whole, small]) == 0

    head, first, second = capsys.readouterr().out.splitlines()
    assert columns(head)[1:4] == ["records", "requests", "attempts"]
    assert columns(first)[0] == whole
    assert columns(first)[2] == "300"
    assert columns(first)[-1] == "held, closed"
    assert columns(second) == [small, "1", "0", "0", "0", "0", "0", "0", "0", "held, cut off"]
    assert head.index("verdict") == first.index("held") == second.index("held"), "they are aligned"


def test_the_command_says_what_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, logged(*SENT).whole())

    assert main([path]) == 1

    _, line, *said = capsys.readouterr().out.splitlines()
    assert columns(line)[-1] == "2 violations, closed"
    assert said == [
        "  record 2, 0.000 s: q is left without an outcome",
        "  record 2, 0.000 s: q.0 is left without an end",
    ]


def test_the_command_says_how_many_more_do_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, logged(*(told(finished(f"q.{number}")) for number in range(1_050))).whole())

    assert main([path]) == 1

    assert capsys.readouterr().out.endswith("\n  and 1,030 more\n")


def test_a_log_whose_end_is_missing_holds_as_far_as_it_goes(tmp_path: Path) -> None:
    assert main([saved(tmp_path, logged(*SENT).whole(end=None))]) == 0
    assert main([saved(tmp_path, logged(*SENT).whole(end="the disk is full"))]) == 0


def test_what_is_late_for_one_is_in_time_for_another(tmp_path: Path) -> None:
    path = saved(tmp_path, logged(*SENT, told(failed(), refuse(), at_s=80.0)).whole())

    assert main([path]) == 1
    assert main([path, "--late", "30"]) == 0


def test_a_log_that_cannot_be_read_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = saved(tmp_path, logged(*DONE).whole(), "good.log"), saved(tmp_path, b"no log")

    assert main([bad, good, str(tmp_path / "missing.log")]) == 2

    printed = capsys.readouterr()
    assert [columns(line)[0] for line in printed.out.splitlines()[1:]] == [good]
    assert printed.err.splitlines()[0] == f"{bad}: not an event log"
    assert "missing.log" in printed.err.splitlines()[1]


def test_an_answer_of_something_else_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = logged(UP)
    log.frames.append(frame(msgspec.msgpack.encode((1.0, NOTHING, [{"type": "Dance"}]))))
    path = saved(tmp_path, log.whole())

    assert main([path]) == 2

    assert capsys.readouterr().err.startswith(f"{path}: after record 2: not an answer (")


def test_help_says_what_a_line_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])

    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "exit status" in printed
    assert "--late SECONDS" in printed


@for_each("late", ["-1", "nan", "soon"])
def test_an_allowance_that_is_none_is_refused(late: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["some.log", "--late", late])

    assert ended.value.code == 2
    assert "--late" in capsys.readouterr().err
