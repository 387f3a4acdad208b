"""What must hold in the conversation of a dispatcher and its host, whatever goes wrong, and where a log breaks it.

``python -m cluster.event_log.invariants LOG...``

- **Outcomes.** Each request has one, by its deadline, and at once when its client has gone. A refusal says when to come
  back, and that is no time in the past.
- **Answers.** A refused request has had nothing of its answer, a failed one has. A whole answer is what one attempt
  after the other gave, the last of which has finished, and has no more tokens than were asked for.
- **Attempts.** They are sent for requests that have no outcome, to replicas that are up and have a free slot. A request
  has no more of them at a stage than ``max_attempts``, between two of which it has got no further; those are not among
  them with which it begins another plan. Each ends once; nothing is asked of it afterwards, and nothing is told of it.
- **KV.** A decode pulls that of a finished prefill of its request which has not been given up. It is given up once.
- **Probes.** Of a replica there is one at a time. Each ends once, unless it is cancelled.
- **Timers.** One that is not stopped fires once, in time and not before it.
- **Time** does not go back. A dispatcher raises nothing, unless it is told of a configuration that can't be.
- **The end.** When a dispatcher's log is closed, each request has its outcome and each attempt has ended.

Part of that is owed by the host: a dispatcher takes no harm from an event about an attempt that has ended, or from a
timer that fires although it was stopped. The former is a violation here, as no host tells it; the latter is none.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cluster.event_log.accounts import AttemptAccount, DueTimes, ReplicaAccounts, RequestAccount
from cluster.event_log.frames import CLOSED, EventLogUnreadable, LogReader
from policies.errors import ConfigError
from policies.views import Role
from routing.config.spec import from_json
from routing.request.effects import (
    EARLY_S,
    Cancel,
    CancelProbe,
    CancelTimer,
    Commit,
    Degraded,
    Effect,
    OutcomeKind,
    Placement,
    Preemption,
    Probe,
    Record,
    ReleaseKv,
    Replan,
    Respond,
    Send,
    SetTimer,
    Truncate,
)
from routing.request.events import (
    Accepted,
    AnswerBegun,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    ClientGone,
    Event,
    FirstTokenReceived,
    FleetChanged,
    LaneLengthExceeded,
    ProbeEnded,
    Reconfigured,
    TimerFired,
)
from routing.request.request import PROGRESS_TOKENS

LATE_S = 5.0
"""An event loop of a gateway may have been busy, or its machine."""
MOST_VIOLATIONS = 20
"""A broken conversation breaks everything after it; the first ones tell."""


class DispatcherInvariants:
    """Hears one dispatcher's conversation, as its listener or out of its log, and writes down what does not hold.

    Args:
        max_attempts: Of a request at a stage; where the configuration changes, the largest that it has been.
        late_s: How much later than it is due an outcome or a timer may come: the host may have stood still.
        early_s: How much earlier a timer may.

    Attributes:
        violations: What did not hold, a sentence each, the first ones.
        num_violations: How often something did not.
        num_records: Calls of the dispatcher.
        num_requests: Requests that came.
        num_attempts: Attempts that were sent.
        outcomes: How requests ended.
    """

    def __init__(self, max_attempts: int, late_s: float = LATE_S, early_s: float = EARLY_S) -> None:
        self._max_attempts, self._late_s, self._early_s = max_attempts, late_s, early_s
        self._now_s = -math.inf
        self._requests: dict[str, RequestAccount] = {}
        self._attempts: dict[str, AttemptAccount] = {}
        self._replicas = ReplicaAccounts()
        self._deadlines, self._timers = DueTimes(), DueTimes()
        self._hedges, self._probes = set[str](), dict[str, str]()
        self._ending: list[RequestAccount] = []
        self._just_ended: AttemptAccount | None = None
        self._given_tokens: int | None = None
        self.violations: list[str] = []
        self.num_violations = self.num_records = self.num_requests = self.num_attempts = 0
        self.outcomes: Counter[OutcomeKind] = Counter()
        self._hear: dict[type, Callable[[Any], None]] = {
            Arrived: self._arrive,
            Accepted: self._accept,
            AnswerBegun: self._give_token,
            FirstTokenReceived: self._give_first_token,
            LaneLengthExceeded: self._give_token,
            AttemptFinished: self._finish,
            AttemptFailed: self._fail,
            AttemptWithdrawn: self._withdraw,
            ProbeEnded: self._end_probe,
            TimerFired: self._fire,
            FleetChanged: self._change_fleet,
        }
        self._follow: dict[type, Callable[[Any], None]] = {
            Record: self._record,
            Send: self._send,
            Cancel: self._cancel,
            Truncate: self._truncate,
            Commit: self._commit,
            ReleaseKv: self._release_kv,
            Probe: self._probe,
            CancelProbe: self._cancel_probe,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Respond: self._respond,
        }

    # -- for whoever has the conversation -----------------------------------------------------------------------------

    def on_event(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """The dispatcher was told of an event and answered with these effects."""
        self._begin(now_s)
        if hear := self._hear.get(type(event)):
            hear(event)
        for effect in effects:
            if follow := self._follow.get(type(effect)):
                follow(effect)
        if isinstance(event, ClientGone):
            self._look_whether_it_is_answered(event.request_id)
        elif isinstance(event, Reconfigured):
            self._max_attempts = max(self._max_attempts, from_json(event.spec).params.max_attempts)
        self._settle()

    def on_error(self, now_s: float, event: Event, error: Exception) -> None:
        """The dispatcher was told of an event and raised."""
        self.on_raised(now_s, event, type(error).__name__)

    def on_raised(self, now_s: float, event: Event, error: str) -> None:
        """The same, from a log, which has the exception's name."""
        self._begin(now_s)
        is_refused = isinstance(event, Reconfigured) and error == ConfigError.__name__
        if not is_refused:
            self._break(f"the dispatcher raises {error} when it is told {type(event).__name__}")
        hear = None if isinstance(event, Arrived) else self._hear.get(type(event))
        if hear is not None:
            hear(event)
        self._settle()

    def close(self) -> None:
        """The dispatcher is told nothing any more, and has nothing left."""
        for request in self._requests.values():
            if not request.is_answered:
                self._break(f"{request.request_id} is left without an outcome")
        for attempt_id in self._attempts:
            self._break(f"{attempt_id} is left without an end")

    @property
    def num_open_requests(self) -> int:
        """Requests that have no outcome, or attempts that have not ended."""
        return len(self._requests)

    def _begin(self, now_s: float) -> None:
        self.num_records += 1
        before_s, self._now_s = self._now_s, now_s
        if now_s < before_s:
            self._break(f"time goes back, from {before_s!r} s to {now_s!r} s")
        for request_id, due_s in self._deadlines.overdue(now_s - self._late_s):
            self._break(f"{request_id} has no outcome {now_s - due_s:.2f} s after its deadline")
        for token, due_s in self._timers.overdue(now_s - self._late_s):
            self._break(f"the timer {token} has not fired {now_s - due_s:.2f} s after its time")
        self._hedges.clear()
        self._just_ended = self._given_tokens = None

    def _settle(self) -> None:
        """Forgets what is over."""
        for request in self._ending:
            if request.is_over:
                self._requests.pop(request.request_id, None)
        self._ending.clear()

    def _break(self, what: str) -> None:
        self.num_violations += 1
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(f"record {self.num_records}, {self._now_s:.3f} s: {what}")

    # -- events -------------------------------------------------------------------------------------------------------

    def _arrive(self, event: Arrived) -> None:
        view = event.request
        if view.request_id in self._requests:
            self._break(f"{view.request_id} comes while it is there")
        self.num_requests += 1
        self._requests[view.request_id] = RequestAccount(view.request_id, view.max_output_tokens)
        self._deadlines.add(view.request_id, max(view.deadline_s, self._now_s))

    def _look_whether_it_is_answered(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is not None and not request.is_answered:
            self._break(f"{request_id} has no outcome though its client has gone")

    def _change_fleet(self, event: FleetChanged) -> None:
        self._replicas.change(event.pool, event.replicas)

    def _accept(self, event: Accepted) -> None:
        if attempt := self._find(event.attempt_id, "is accepted"):
            self._replicas.move(attempt, event.replica_id)

    def _give_token(self, event: AnswerBegun | LaneLengthExceeded) -> None:
        self._find(event.attempt_id, "gives a token")

    def _give_first_token(self, event: FirstTokenReceived) -> None:
        if attempt := self._find(event.attempt_id, "gives a token"):
            if attempt.has_first_token:
                self._break(f"{event.attempt_id} gives its first token twice")
            attempt.has_first_token = True

    def _finish(self, event: AttemptFinished) -> None:
        if attempt := self._close(event.attempt_id):
            self._given_tokens = event.output_tokens
            if attempt.stage is Role.PREFILL:
                attempt.request.kv[event.attempt_id] = True

    def _fail(self, event: AttemptFailed) -> None:
        attempt = self._close(event.attempt_id)
        if attempt is None:
            return
        request = attempt.request
        if request.committed == event.attempt_id:
            request.committed = ""
            request.num_emitted += event.output_tokens
        elif event.output_tokens:
            self._break(f"{event.attempt_id} has emitted {event.output_tokens} tokens and does not give the answer")
        if event.output_tokens >= PROGRESS_TOKENS:
            request.tries.clear()
        if not attempt.is_cancelled and request.has_another(attempt):
            request.has_lost_beside = True

    def _withdraw(self, event: AttemptWithdrawn) -> None:
        """Where neither of two tied attempts is there any more, none of them counts."""
        attempt = self._close(event.attempt_id)
        if attempt is None or attempt.is_cancelled:
            return
        request = attempt.request
        if not request.has_lost_beside and not request.has_another(attempt):
            request.tries[attempt.stage] -= 1

    def _fire(self, event: TimerFired) -> None:
        at_s = self._timers.pop(event.token)
        if at_s is not None and self._now_s < at_s - self._early_s:
            self._break(f"the timer {event.token} fires {at_s - self._now_s:.3f} s before its time")

    def _end_probe(self, event: ProbeEnded) -> None:
        if self._probes.pop(event.probe_id, None) is None:
            self._break(f"the probe {event.probe_id} ends and is not under way")

    def _find(self, attempt_id: str, what: str) -> AttemptAccount | None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            self._break(f"{attempt_id} {what} and is not under way")
        return attempt

    def _close(self, attempt_id: str) -> AttemptAccount | None:
        """An attempt has ended."""
        attempt = self._find(attempt_id, "ends")
        if attempt is not None:
            del self._attempts[attempt_id], attempt.request.under_way[attempt_id]
            self._replicas.give_back(attempt.replica_id)
            self._ending.append(attempt.request)
            self._just_ended = attempt
        return attempt

    # -- effects ------------------------------------------------------------------------------------------------------

    def _record(self, effect: Record) -> None:
        decision = effect.decision
        if isinstance(decision, Placement):
            if decision.is_hedge:
                self._hedges.add(decision.attempt_id)
        elif isinstance(decision, Preemption | Replan | Degraded) and decision.request_id in self._requests:
            self._change(self._requests[decision.request_id], decision)

    def _change(self, request: RequestAccount, decision: Preemption | Replan | Degraded) -> None:
        """A preemption is no fault of the attempts before it, nor is it one that a stage has no replica any more."""
        if isinstance(decision, Preemption):
            request.tries.clear()
        elif isinstance(decision, Replan):
            request.has_another_plan = bool(request.sent)
        else:
            request.most_tokens = decision.max_output_tokens
            request.has_cached_answer = decision.from_cache

    def _send(self, send: Send) -> None:
        self.num_attempts += 1
        request = self._requests.get(send.request_id)
        if request is None or request.is_answered:
            self._break(f"{send.attempt_id} is sent for a request that has its outcome")
        if request is None:
            return
        for what in (*self._faults_of_place(send), *_faults_of_kv(send, request)):
            self._break(f"{send.attempt_id} {what}")
        if send.attempt_id not in self._hedges:
            request.has_lost_beside = False
            self._count_try(send, request)
        request.sent.add(send.attempt_id)
        attempt = AttemptAccount.of(send, request)
        self._attempts[send.attempt_id] = request.under_way[send.attempt_id] = attempt
        self._replicas.take(send.replica_id)

    def _faults_of_place(self, send: Send) -> Iterator[str]:
        if send.attempt_id in self._requests[send.request_id].sent:
            yield "is sent twice"
        if not self._replicas.is_up(send.replica_id):
            yield f"is sent to {send.replica_id}, which is not up"
        elif self._replicas.num_free(send.replica_id) <= 0:
            yield f"is sent to {send.replica_id}, which has no free slot"
        if send.tied_to is not None and send.tied_to not in self._requests[send.request_id].under_way:
            yield f"is tied to {send.tied_to}, which is not under way"

    def _count_try(self, send: Send, request: RequestAccount) -> None:
        if request.has_another_plan:
            request.has_another_plan = False
            return
        request.tries[send.stage] += 1
        number, most = request.tries[send.stage], self._max_attempts
        if number > most:
            self._break(f"{send.attempt_id} is attempt {number} at {send.stage}, of {most}")

    def _cancel(self, effect: Cancel) -> None:
        if attempt := self._find(effect.attempt_id, "is cancelled"):
            if attempt.is_cancelled:
                self._break(f"{effect.attempt_id} is cancelled twice")
            attempt.is_cancelled = True

    def _truncate(self, effect: Truncate) -> None:
        attempt = self._find(effect.attempt_id, "is truncated")
        if attempt is not None and attempt.request.committed != effect.attempt_id:
            self._break(f"{effect.attempt_id} is truncated and does not give the answer")

    def _commit(self, effect: Commit) -> None:
        """Also of an attempt that has just finished, if that was its first word."""
        request, attempt_id = self._requests.get(effect.request_id), effect.attempt_id
        known = [each for each in (self._attempts.get(attempt_id), self._just_ended) if each is not None]
        attempt = next((each for each in known if each.attempt_id == attempt_id), None)
        if request is None or attempt is None or attempt.request is not request:
            self._break(f"{attempt_id} is to give the answer of {effect.request_id} and is not under way for it")
            return
        if attempt.stage is Role.PREFILL:
            self._break(f"{attempt_id} is to give an answer and is a prefill")
        if request.committed:
            self._break(f"{attempt_id} is to give the answer that {request.committed} gives")
        request.committed, request.has_begun = attempt_id, True

    def _release_kv(self, effect: ReleaseKv) -> None:
        request = self._requests.get(effect.request_id)
        if request is None or not request.kv.get(effect.kv_from):
            self._break(f"the KV of {effect.kv_from} is given up and is not held")
        else:
            request.kv[effect.kv_from] = False

    def _probe(self, effect: Probe) -> None:
        if effect.replica_id in self._probes.values():
            self._break(f"{effect.probe_id} is sent to {effect.replica_id}, which is probed")
        self._probes[effect.probe_id] = effect.replica_id

    def _cancel_probe(self, effect: CancelProbe) -> None:
        self._probes.pop(effect.probe_id, None)

    def _set_timer(self, effect: SetTimer) -> None:
        if effect.token in self._timers:
            self._break(f"the timer {effect.token} is set while it runs")
        if math.isnan(effect.at_s):
            self._break(f"the timer {effect.token} is set for no time")
        self._timers.add(effect.token, max(effect.at_s, self._now_s))

    def _cancel_timer(self, effect: CancelTimer) -> None:
        self._timers.pop(effect.token)

    def _respond(self, effect: Respond) -> None:
        request, outcome = self._requests.get(effect.request_id), effect.outcome
        self.outcomes[outcome.kind] += 1
        if request is None or request.is_answered:
            self._break(f"{effect.request_id} has another outcome, {outcome.kind}")
            return
        if not 0 <= outcome.retry_after_s < math.inf:
            self._break(f"{effect.request_id} is told to come back in {outcome.retry_after_s} s")
        for what in self._faults_of_answer(request, outcome.kind):
            self._break(f"{effect.request_id} {what}")
        request.is_answered = True
        self._deadlines.pop(effect.request_id)
        self._ending.append(request)

    def _faults_of_answer(self, request: RequestAccount, kind: OutcomeKind) -> Iterator[str]:
        if kind is OutcomeKind.REFUSED and request.has_begun:
            yield "is refused with a part of its answer given"
        elif kind is OutcomeKind.FAILED and not request.has_begun:
            yield "has failed with nothing of its answer given, and is not refused"
        elif kind is OutcomeKind.COMPLETED and not request.has_cached_answer:
            ended = self._just_ended
            if ended is None or self._given_tokens is None or ended.attempt_id != request.committed:
                yield "has a whole answer, and no attempt has finished it"
            elif request.num_emitted + self._given_tokens > request.most_tokens:
                given_tokens = request.num_emitted + self._given_tokens
                yield f"has {given_tokens} tokens of an answer of {request.most_tokens} at the most"


def _faults_of_kv(send: Send, request: RequestAccount) -> Iterator[str]:
    if send.kv_from is not None:
        is_held = request.kv.get(send.kv_from)
        if is_held is None:
            yield f"is to pull the KV of {send.kv_from}, which is no finished prefill of its request"
        elif not is_held:
            yield f"is to pull the KV of {send.kv_from}, which was given up"


# -- logs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LogVerdict:
    """What came of a log.

    Args:
        heard: All that its dispatcher was told and answered, as far as the log goes.
        end: How the log ends.
    """

    heard: DispatcherInvariants
    end: str


def hear_log(file: BinaryIO, late_s: float = LATE_S, early_s: float = EARLY_S) -> LogVerdict:
    """Goes through a log, in memory for what is open at a time.

    Args:
        file: The log, at its first byte.
        late_s: How much later than it is due an outcome or a timer may come.
        early_s: How much earlier a timer may.

    Raises:
        EventLogUnreadable: It is not a log, or a damaged one.
    """
    log = LogReader(file)
    heard = DispatcherInvariants(log.header.dispatcher.params.max_attempts, late_s, early_s)
    for record in log:
        answer = log.answer(record)
        if isinstance(answer, str):
            heard.on_raised(record.now_s, record.event, answer)
        else:
            heard.on_event(record.now_s, record.event, answer)
    if log.end_reason == CLOSED:
        heard.close()
    return LogVerdict(heard=heard, end=log.end_reason or "cut off")


NUMBERS = ("records", "requests", "attempts", *OutcomeKind, "open")
EXPLANATION = """\
Each line has how many records, requests and attempts there are in a log, how the requests ended, how many are open
where it ends, and how it ends: `closed` by its gateway, `cut off` where that was killed or writes still. A log without
a proper end holds as far as it goes. What does not hold is said below its line, with the number of the record, by
which `python -m cluster.event_log.replay LOG --show` has it.

What must hold: python -m pydoc cluster.event_log.invariants

examples:
  python -m cluster.event_log.invariants /var/log/spillway/events/*.log
  python -m cluster.event_log.invariants --late 30 gw-4711.log
      of a gateway that stood still for half a minute

exit status:
  0  everything holds
  1  something does not
  2  a log can't be read
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cluster.event_log.invariants",
        description="Does all hold that must, whatever went wrong, in what gateways have logged?",
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log", type=Path, nargs="+", help="an event log, as a gateway writes it")
    parser.add_argument(
        "--late",
        type=_seconds,
        default=LATE_S,
        metavar="SECONDS",
        help="how much later than it is due an outcome or a timer may come (default: %(default)g): "
        "a gateway's event loop may have been busy",
    )
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: 0 or more")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    width = max(len(str(path)) for path in options.log)
    print(f"{'log':{width}}", *(f"{name:>9}" for name in NUMBERS), "verdict", sep="  ")
    status = 0
    for path in options.log:
        try:
            with path.open("rb") as file:
                verdict = hear_log(file, options.late)
        except (OSError, EventLogUnreadable) as error:
            print(f"{path}: {error}", file=sys.stderr)
            status = 2
            continue
        print(f"{path!s:{width}}", _line(verdict), sep="  ")
        for each in _said(verdict.heard):
            print(f"  {each}")
        status = max(status, int(verdict.heard.num_violations > 0))
    return status


def _line(verdict: LogVerdict) -> str:
    heard = verdict.heard
    ended = (heard.outcomes[kind] for kind in OutcomeKind)
    numbers = (heard.num_records, heard.num_requests, heard.num_attempts, *ended, heard.num_open_requests)
    number = heard.num_violations
    held = f"{number:,} violation{'s' * (number > 1)}" if number else "held"
    return "  ".join((*(f"{number:>9,}" for number in numbers), f"{held}, {verdict.end}"))


def _said(heard: DispatcherInvariants) -> Iterator[str]:
    yield from heard.violations
    if more := heard.num_violations - len(heard.violations):
        yield f"and {more:,} more"


if __name__ == "__main__":
    sys.exit(main())
