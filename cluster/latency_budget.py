"""Where the time of one request went: a few looks at the gateway's clock, and what engines say of themselves.

Nodes have clocks of their own, so engines say how long something took and never when. The stages follow one another
without a gap from the request's coming to its answer's having left, so they add up to the whole whatever happens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from engines.contract import EngineTimes


class LatencyStage(StrEnum):
    """What a request spends its time on, in the order in which it comes to it; ``LOST`` may come anywhere.

    ``PARSE``: reading and checking headers and body. ``TOKENIZE``: making token ids of the text. ``CLASSIFY``:
    working out what it is told apart by, such as the blocks of its prompt. ``ADMIT``: the dispatcher's decisions,
    its lane among them. ``QUEUE``: waiting at the gateway for a replica. ``DISPATCH``: between gateway and
    replicas, a finished prompt's way back included. ``PREFILL``: the engine's line and the prompt. ``KV_TRANSFER``:
    until the prompt's KV is where the answer is made; after the first token, where that was drawn with the prompt.
    ``FIRST_TOKEN``: the first token's way to the gateway, and after a transfer the step that makes it. ``DECODE``:
    from the first token to the last one. ``EGRESS``: until the answer has left the gateway, and before that the
    times in which the client was too far behind for more tokens. ``LOST``: attempts that came to nothing, and what
    followed until another one.
    """

    PARSE = "parse"
    TOKENIZE = "tokenize"
    CLASSIFY = "classify"
    ADMIT = "admit"
    QUEUE = "queue"
    DISPATCH = "dispatch"
    PREFILL = "prefill"
    KV_TRANSFER = "kv_transfer"
    FIRST_TOKEN = "first_token"
    DECODE = "decode"
    EGRESS = "egress"
    LOST = "lost"


class Span(msgspec.Struct, frozen=True, gc=False):
    """A stage, or a part of one.

    Args:
        stage: What was going on.
        begins_s: By the gateway's clock.
        ends_s: Likewise; later than ``begins_s``.
        replica_id: Where, if on a replica or on the way to one.
    """

    stage: LatencyStage
    begins_s: float
    ends_s: float
    replica_id: str = ""


NOT_SAID = EngineTimes()
_NOTHING_SPENT = dict.fromkeys(LatencyStage, 0.0)
Timeline = list[Span]
"""Spans in order; each begins where the one before it ends."""


@dataclass(slots=True)
class _AttemptTimes:
    """One attempt: when what happened to it, by the gateway's clock, and what its engine says."""

    sent_s: float
    kv_from: str | None
    replica_id: str
    accepted_s: float
    ended_s: float
    engine: EngineTimes = NOT_SAID


@dataclass(slots=True)
class _Break:
    """A time in mid-answer in which no tokens came."""

    stage: LatencyStage
    begins_s: float
    ends_s: float = math.inf

    def end(self, at_s: float) -> None:
        """It is over; what ended earlier stays so."""
        self.ends_s = min(self.ends_s, at_s)


class LatencyBudget:
    """The times of one request, from now on; each method is called when it happens.

    Args:
        now_s: The gateway's clock, in seconds.

    Attributes:
        received_s: When the request came.
        is_wanted: Whether the client has asked for it.
        longest_gap_s: Between two pieces of the answer at the gateway; 0 without two.
    """

    __slots__ = (
        "_admitted_s",
        "_answered_s",
        "_arrived_s",
        "_attempts",
        "_breaks",
        "_committed",
        "_first_token_s",
        "_gave_out_s",
        "_hold_up",
        "_loss",
        "_now_s",
        "_parsed_s",
        "_tokenized_s",
        "_transfer",
        "is_wanted",
        "longest_gap_s",
        "received_s",
    )

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.received_s = self._parsed_s = self._tokenized_s = self._arrived_s = self._admitted_s = now_s()
        self._attempts: dict[str, _AttemptTimes] = {}
        self._committed: _AttemptTimes | None = None
        self._first_token_s = 0.0
        self._breaks: list[_Break] = []
        self._loss: _Break | None = None
        self._hold_up: _Break | None = None
        self._transfer: _Break | None = None
        self._answered_s: float | None = None
        self._gave_out_s = math.inf
        self.longest_gap_s = 0.0
        self.is_wanted = False

    # -- what happens -------------------------------------------------------------------------------------------------

    def parsed(self) -> None:
        """Headers and body are read and make sense."""
        self._parsed_s = self._now_s()

    def tokenized(self) -> None:
        """The prompt is token ids."""
        self._tokenized_s = self._now_s()

    def arrived(self) -> None:
        """The dispatcher is told of it."""
        self._arrived_s = self._now_s()

    def admitted(self) -> None:
        """The dispatcher has decided about it."""
        self._admitted_s = self._now_s()

    def sent(self, attempt_id: str, replica_id: str, kv_from: str | None) -> None:
        """An attempt begins; ``kv_from`` is the one that has computed its prompt."""
        now_s = self._now_s()
        self._attempts[attempt_id] = _AttemptTimes(now_s, kv_from, replica_id, now_s, now_s)

    def accepted(self, attempt_id: str, replica_id: str) -> None:
        """A replica has taken an attempt."""
        times = self._attempts[attempt_id]
        times.accepted_s, times.replica_id = self._now_s(), replica_id

    def placed(self, attempt_id: str) -> None:
        """An attempt goes to a replica that does not say when it has it: both ways count as equally long."""
        self._attempts[attempt_id].accepted_s = math.inf

    def took(self, attempt_id: str, engine: EngineTimes) -> None:
        """What the attempt's engine says; of one that goes on with a first token of the prefill's it says so before."""
        times = self._attempts[attempt_id]
        if times.engine.awaits_kv and self._transfer is not None:
            self._transfer.end(min(self._transfer.begins_s + engine.kv_transfer_s, self._now_s()))
        else:
            times.engine = engine

    def ended(self, attempt_id: str) -> None:
        """An attempt is over."""
        self._attempts[attempt_id].ended_s = self._now_s()

    def committed(self, attempt_id: str) -> None:
        """An attempt has given the first token, or goes on with the answer."""
        now_s, times = self._now_s(), self._attempts[attempt_id]
        if self._committed is None:
            self._committed, self._first_token_s = times, now_s
        elif self._loss is not None:
            self._loss.end(now_s)
            self._loss = None
        if times.engine.awaits_kv:
            self._transfer = _Break(LatencyStage.KV_TRANSFER, now_s)
            self._breaks.append(self._transfer)

    def interrupted(self) -> None:
        """The attempt that gave the answer was stopped or lost; before the first token that changes nothing.

        From then on it is not the client that there are no tokens for, however far behind it is.
        """
        if self._committed is None or self._loss is not None:
            return
        now_s = self._now_s()
        for pause in self._breaks:
            pause.end(now_s)
        self._hold_up = None
        self._loss = _Break(LatencyStage.LOST, now_s)
        self._breaks.append(self._loss)

    def held_up(self) -> None:
        """The client is too far behind for more tokens from now on."""
        if self._hold_up is None:
            self._hold_up = _Break(LatencyStage.EGRESS, self._now_s())
            self._breaks.append(self._hold_up)

    def let_go(self) -> None:
        """It has read on, and there is room for more."""
        if self._hold_up is not None:
            self._hold_up.end(self._now_s())
            self._hold_up = None

    def gave_out(self) -> None:
        """A piece of the answer has come."""
        now_s = self._now_s()
        gap_s = now_s - self._gave_out_s
        if gap_s > self.longest_gap_s:  # noqa: PLR1730 - for every chunk, and max() takes as long as all the rest
            self.longest_gap_s = gap_s
        self._gave_out_s = now_s

    def answered(self) -> None:
        """The last token is at the gateway, or the verdict is out that there will be none."""
        self._answered_s = self._now_s()

    # -- what came of it ----------------------------------------------------------------------------------------------

    @property
    def dispatched_s(self) -> float:
        """When its first attempt was sent, by the gateway's clock; endless without one."""
        return self._first_sent_s()

    @property
    def replica_id(self) -> str:
        """Who gave the first token; empty when nobody did."""
        return self._committed.replica_id if self._committed else ""

    @property
    def replica_ids(self) -> set[str]:
        """Who had an attempt of it."""
        return {each.replica_id for each in self._attempts.values()}

    def timeline(self) -> Timeline:
        """All stages until now or, while tokens are still to come, until the first one."""
        line = _StageLine(self.received_s)
        line.go_on(LatencyStage.PARSE, self._parsed_s)
        line.go_on(LatencyStage.TOKENIZE, self._tokenized_s)
        line.go_on(LatencyStage.CLASSIFY, self._arrived_s)
        line.go_on(LatencyStage.ADMIT, self._admitted_s)
        if self._committed is None:
            self._wait(line, self._first_sent_s(), self._now_s() if self._answered_s is None else self._answered_s)
        else:
            self._serve(line, self._committed)
        if self._answered_s is not None:
            self._answer(line, self._answered_s)
            line.go_on(LatencyStage.EGRESS, self._now_s())
        return line.spans

    def _wait(self, line: "_StageLine", sent_s: float, until_s: float) -> None:
        """In the queue until an attempt is sent; from then on, time is lost until it is made good."""
        line.go_on(LatencyStage.QUEUE, min(until_s, sent_s))
        line.go_on(LatencyStage.LOST, until_s)

    def _serve(self, line: "_StageLine", last: _AttemptTimes) -> None:
        """What led to the first token: one attempt, or that which has computed the prompt and that which answers."""
        if last.kv_from is None:
            self._wait(line, self._first_sent_s(), last.sent_s)
            line.run(last, LatencyStage.PREFILL, last.engine.prefill_s, LatencyStage.FIRST_TOKEN, self._first_token_s)
            return
        prefill = self._attempts[last.kv_from]
        self._wait(line, self._first_sent_s(), prefill.sent_s)
        line.run(prefill, LatencyStage.PREFILL, prefill.engine.prefill_s, LatencyStage.DISPATCH, prefill.ended_s)
        self._wait(line, self._first_sent_s(of_handle=last.kv_from), last.sent_s)
        line.run(
            last, LatencyStage.KV_TRANSFER, last.engine.kv_transfer_s, LatencyStage.FIRST_TOKEN, self._first_token_s
        )

    def _first_sent_s(self, of_handle: str | None = None) -> float:
        """When the first attempt was sent, or the first that was to go on from a prompt; endless without one."""
        for each in self._attempts.values():
            if of_handle is None or each.kv_from == of_handle:
                return each.sent_s
        return math.inf

    def _answer(self, line: "_StageLine", until_s: float) -> None:
        for pause in self._breaks:
            line.go_on(LatencyStage.DECODE, min(pause.begins_s, until_s))
            line.go_on(pause.stage, min(pause.ends_s, until_s))
        line.go_on(LatencyStage.DECODE, until_s)


class _StageLine:
    """Spans one after the other; what would end before it begins is left out."""

    def __init__(self, begins_s: float) -> None:
        self.spans: Timeline = []
        self._at_s = begins_s

    def go_on(self, stage: LatencyStage, until_s: float, replica_id: str = "") -> None:
        """The next span."""
        if until_s > self._at_s:
            self.spans.append(Span(stage, self._at_s, until_s, replica_id))
            self._at_s = until_s

    def run(
        self, times: _AttemptTimes, stage: LatencyStage, engine_s: float, then: LatencyStage, until_s: float
    ) -> None:
        """An attempt: its way there, what its engine did, and the way back.

        The engine may have begun before the gateway hears that the attempt is taken. When it hears so late that no way
        back would be left, both ways count as equally long.
        """
        on_its_way_s = max(0.0, until_s - self._at_s - engine_s)
        there_s = times.accepted_s - self._at_s
        if there_s > on_its_way_s:
            there_s = on_its_way_s / 2
        self.go_on(LatencyStage.DISPATCH, self._at_s + there_s, times.replica_id)
        self.go_on(stage, min(self._at_s + engine_s, until_s), times.replica_id)
        self.go_on(then, until_s, times.replica_id)


def spent_s(timeline: Timeline) -> dict[LatencyStage, float]:
    """Seconds of each stage; 0 for those that a request did not come to."""
    spent = _NOTHING_SPENT.copy()
    for span in timeline:
        spent[span.stage] += span.ends_s - span.begins_s
    return spent
