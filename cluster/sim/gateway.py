"""A gateway in virtual time: the production dispatcher, whose effects are carried out on simulated replicas."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cluster.bound_seconds import alone_times, bound_seconds
from cluster.clock import NO_SKEW, ClockSkew
from cluster.latency_budget import LatencyBudget
from cluster.load_coordinator.news import UnsharedNews
from cluster.sim.attempt import AttemptEvent, SimAttempt
from cluster.sim.event_queue import EventQueue, Handler, Rank
from cluster.sim.gateway_processor import GatewayProcessor
from cluster.sim.replica import SimReplica
from cluster.sim.tied_attempts import SimTiedAttempts
from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Arrival, PlannedRequest, shortened
from engines.contract import AWAITS_KV
from engines.handoff import comes_from_prefill
from engines.model.messages import Abort
from engines.model.sequences import Sequence
from policies.decisions import Reason
from policies.load_reports import LoadReport
from policies.pool_views import PoolLoad
from policies.views import RequestView, Role
from routing.dispatcher import Dispatcher
from routing.lanes.access import LaneAccess
from routing.request.effects import (
    Cancel,
    CancelProbe,
    CancelTimer,
    Commit,
    Degraded,
    Ejection,
    Outcome,
    OutcomeKind,
    Placement,
    Probe,
    PushLoad,
    Record,
    ReleaseKv,
    Respond,
    Send,
    SetTimer,
    ShareCacheChange,
    ShareFirstArrival,
    SharePrompt,
    Truncate,
)
from routing.request.events import (
    AnswerBegun,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    CacheChanged,
    Event,
    FirstTokenReceived,
    LaneLengthExceeded,
    NewsReceived,
    ProbeEnded,
    Reconfigured,
    TimerFired,
)
from routing.request.news import GatewayNews
from routing.sizing.geometry import ServiceRates

BROKEN = Outcome(kind=OutcomeKind.FAILED)
"""Of a request whose gateway has died: nobody gives a reason."""
_Way = tuple[str, bool]
"""A replica, and whether to it or from it."""


class GatewayLink:
    """The network as one gateway has it: a connection to each replica, whose messages keep their order.

    Args:
        delay_s: Of a message, one way.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._extra_s = 0.0
        self._has_been_slow = False
        self._cut: set[str] = set()
        self._last_s: dict[_Way, float] = {}

    def slow_down(self, extra_s: float) -> None:
        """Messages take so much longer from now on; 0: no longer than usual, but behind those that are on their way."""
        self._extra_s = extra_s
        self._has_been_slow = True

    def cut(self, replica_id: str) -> None:
        """Nothing gets through to a replica or back."""
        self._cut.add(replica_id)

    def mend(self, replica_id: str) -> None:
        """Messages get through again."""
        self._cut.discard(replica_id)

    def is_cut(self, replica_id: str) -> bool:
        """Whether nothing gets through."""
        return bool(self._cut) and replica_id in self._cut

    def arrival_s(self, now_s: float, replica_id: str, *, is_to_replica: bool) -> float:
        """When a message is there that leaves now."""
        if not self._has_been_slow:
            return now_s + self._delay_s
        way = replica_id, is_to_replica
        at_s = max(now_s + self._delay_s + self._extra_s, self._last_s.get(way, 0.0))
        self._last_s[way] = at_s
        return at_s


class SimOpenRequest:
    """One request that a gateway serves.

    Args:
        request: What the client sent.
        sent_s: When.
        budget: Where its time goes.

    Attributes:
        budget: Where its time goes.
        served: The same as engines get it: with a shorter answer where it is degraded.
        num_emitted: How many tokens of its answer those of its attempts that have ended have emitted: the next one
            begins behind them.
        given_tokens: How many its client has got, counted as they came.
        cached_tokens: Prompt tokens that were cached where its first token is from, as far as that is known.
        sequences: What engines have of it: one of each attempt.
    """

    __slots__ = (
        "budget",
        "cached_tokens",
        "committed",
        "first_token_s",
        "given_tokens",
        "held_by",
        "num_attempts",
        "num_emitted",
        "num_hedges",
        "output_tokens",
        "request",
        "sent_s",
        "sequences",
        "served",
    )

    def __init__(self, request: PlannedRequest, sent_s: float, budget: LatencyBudget) -> None:
        self.request = request
        self.budget = budget
        self.served = request
        self.sent_s = sent_s
        self.first_token_s = math.nan
        self.output_tokens = 0
        self.num_emitted = 0
        self.given_tokens = 0
        self.cached_tokens = 0
        self.num_attempts = 0
        self.num_hedges = 0
        self.committed = ""
        self.held_by: dict[str, SimReplica] = {}
        self.sequences: list[Sequence] = []

    @property
    def has_begun(self) -> bool:
        """Whether its client has got the first token."""
        return not math.isnan(self.first_token_s)

    @property
    def computed_prompt_tokens(self) -> int:
        """Prompt tokens that replicas have computed for it, all attempts taken together."""
        return sum(sequence.num_prefilled for sequence in self.sequences)

    def num_from_prefill(self, kv_source: "SimReplica") -> int:
        """How many tokens the prefill that ``kv_source`` ran has drawn for its decode: 1, unless that is the last."""
        prompt_tokens = self.served.prompt_tokens + self.num_emitted
        is_drawn = comes_from_prefill(prompt_tokens, kv_source.kv_block_tokens, is_resumable=True)
        return int(is_drawn and self.served.output_tokens - self.num_emitted > 1)

    def spent_s(self, rates: ServiceRates) -> list[float]:
        """What its time was spent on, in the order of ``Bound``; on an idle fleet it takes what ``rates`` say."""
        alone = alone_times(rates, self.request.prompt_tokens, self.cached_tokens, self.output_tokens)
        return [*bound_seconds(self.budget.timeline(), alone).values()]

    @property
    def is_settled(self) -> bool:
        """Whether no replica computes for it any more; one that was told to stop does until its step is over."""
        return all(sequence.is_over for sequence in self.sequences)


class SimGateway:
    """One gateway; see the module.

    Args:
        dispatcher: Decides.
        replicas: All replicas there are, by id; those that died are among them until nobody asks any more.
        fleet: The delays.
        events: Where the future goes.
        on_answer: Called with each request, how it ended, and when.
        on_load: Called with what the load coordinator is to know, and when.
        on_ejection: Called with each replica that is ejected, and when.
        on_event: Called with every event that the dispatcher was told, and its effects.
        clock: What its dispatcher goes by; all else here goes by the run's time.
        name: What its own requests are called by at replicas.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        replicas: Mapping[str, SimReplica],
        fleet: FleetSpec,
        events: EventQueue,
        *,
        on_answer: Callable[[SimOpenRequest, Outcome, float], None],
        on_load: Callable[[LoadReport, float], None],
        on_ejection: Callable[[Ejection, float], None],
        on_event: Callable[[float, Event, Any], None] | None = None,
        clock: ClockSkew = NO_SKEW,
        name: str = "gateway",
    ) -> None:
        self._name, self._dispatcher, self._skew = name, dispatcher, clock
        self._replicas = replicas
        self._network_delay_s = fleet.network_delay_s
        self._detection_delay_s = fleet.detection_delay_s
        self._link = GatewayLink(fleet.network_delay_s)
        self._paused_until_s = 0.0
        self._missed: list[tuple[Handler, Any]] = []
        self._num_missed_timers = 0
        self._fleet = fleet
        self._processor = GatewayProcessor(fleet)
        self._arriving: dict[str, Arrival] = {}
        self._num_streams = 0
        self.is_dead = False
        self._events = events
        self._on_answer, self._on_load = on_answer, on_load
        self._on_ejection, self._on_event = on_ejection, on_event
        self._unshared = UnsharedNews()
        self._now_s = 0.0
        self._clock = lambda: self._now_s
        self._requests: dict[str, SimOpenRequest] = {}
        self._attempts: dict[str, tuple[SimAttempt, SimReplica]] = {}
        self._probes: dict[str, SimReplica] = {}
        self._timers: dict[str, int] = {}
        self._cancelled: list[tuple[Sequence, float]] = []
        self._carry_out = self._interpreters()

    def _interpreters(self) -> dict[type, Callable[[Any, float], None]]:
        """What carries each effect out."""
        return {
            Send: self._send,
            Cancel: self._cancel,
            ReleaseKv: self._release_kv,
            Probe: self._probe,
            CancelProbe: self._cancel_probe,
            Truncate: self._truncate,
            Commit: self._commit,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Respond: self._respond,
            PushLoad: self._push_load,
            ShareFirstArrival: self._share_first_arrival,
            SharePrompt: self._share_prompt,
            ShareCacheChange: self._share_cache_change,
            Record: self._record,
        }

    @property
    def report_period_s(self) -> float:
        """Between two ``LoadDue`` that it wants to be told; ``math.inf``: none."""
        return self._dispatcher.report_period_s

    @property
    def shares_news(self) -> bool:
        """Whether it is to hear what is new with other gateways."""
        return self._dispatcher.shares_news

    def take_news(self, now_s: float) -> GatewayNews:
        """What is new with it, on its way to the other gateways."""
        shown_s = self._skew.shown_s(now_s)
        return self._unshared.take(self._dispatcher.work(shown_s), shown_s)

    def hear(self, news: GatewayNews, now_s: float) -> None:
        """What is new with the others has arrived."""
        self.handle(NewsReceived(news=news.on_clock(self._skew.shown_s(now_s))), now_s)

    @property
    def num_open_requests(self) -> int:
        """Requests that have no answer yet."""
        return len(self._requests) + len(self._arriving)

    def left(self) -> Mapping[str, int]:
        """What it still has, which at rest is nothing."""
        return {
            "requests": len(self._requests),
            "attempts": len(self._attempts),
            "probes": len(self._probes),
            "timers": len(self._timers),
            "requests in its dispatcher": self._dispatcher.num_open_requests,
            "slots in its dispatcher": self._dispatcher.fleet.num_ongoing_requests,
            "waiting stages in its dispatcher": self._dispatcher.num_waiting_requests,
        }

    def gauges(self, now_s: float) -> Mapping[str, float]:
        """What its dispatcher knows of queues, lanes and pools; see :meth:`routing.dispatcher.Dispatcher.gauges`."""
        return self._dispatcher.gauges(self._skew.shown_s(now_s))

    @property
    def access(self) -> LaneAccess:
        """Which pools each lane has."""
        return self._dispatcher.access

    def pool_loads(self, now_s: float) -> Mapping[str, PoolLoad]:
        """What it has for each pool; see :meth:`routing.dispatcher.Dispatcher.pool_loads`."""
        return self._dispatcher.pool_loads(self._skew.shown_s(now_s))

    def cancels_s(self) -> list[float]:
        """How long engines went on with attempts whose end was asked for, those that they stopped."""
        took_s = [sequence.aborted_s - asked_at_s for sequence, asked_at_s in self._cancelled]
        return [each for each in took_s if each >= 0]  # NaN: it had ended; less: it had left its queue already

    def handle(self, event: Event, now_s: float) -> None:
        """Passes one event to the dispatcher and carries the effects out, in order."""
        if self.is_dead and not isinstance(event, Reconfigured):
            return
        if now_s < self._paused_until_s:
            self._put_off(self._handle_late, event)
            return
        self._now_s = now_s
        effects = self._dispatcher.handle(event, self._skew.shown_s(now_s))
        if self._on_event is not None:
            self._on_event(now_s, event, effects)
        carry_out = self._carry_out
        for effect in effects:
            carry_out[type(effect)](effect, now_s)

    def _handle_late(self, now_s: float, event: Event) -> None:
        self.handle(event, now_s)

    # -- faults -------------------------------------------------------------------------------------------------------

    def die(self, successor: Dispatcher, now_s: float) -> None:
        """It forgets everything, its clients' connections break, and replicas stop what they do for it.

        Args:
            successor: Decides once another process has its place; hears of configurations alone until then.
            now_s: When.
        """
        self.is_dead, self._dispatcher, self._paused_until_s = True, successor, 0.0
        for attempt_id, (_, replica) in self._attempts.items():
            at_s = self._link.arrival_s(now_s, replica.replica_id, is_to_replica=True)
            self._events.push(at_s, Rank.TO_REPLICA, replica.cancel, attempt_id)
        for number in self._timers.values():
            if number > 0:
                self._events.cancel(number)
        self._now_s = now_s
        broken = [*self._requests.values(), *(self._opened(each, now_s) for each in self._arriving.values())]
        for opened in broken:
            opened.output_tokens = self._num_given(opened, now_s)
        for kept in (self._requests, self._arriving, self._attempts, self._probes, self._timers):
            kept.clear()
        self._missed.clear()
        self._unshared, self._processor, self._num_streams = UnsharedNews(), GatewayProcessor(self._fleet), 0
        for opened in broken:
            opened.budget.answered()
            self._on_answer(opened, BROKEN, now_s)

    def revive(self) -> None:
        """Another process has its place."""
        self.is_dead = False

    def _num_given(self, opened: SimOpenRequest, now_s: float) -> int:
        """How many tokens of an answer that is not whole its client has."""
        found = self._attempts.get(opened.committed)
        return opened.num_emitted + (found[1].num_output_tokens_of(found[0], now_s) if found else 0)

    def pause(self, until_s: float) -> None:
        """It stands still until then, and hears of all that happens meanwhile when it goes on, in order."""
        if until_s > self._paused_until_s and not self.is_dead:
            self._paused_until_s = until_s
            self._events.push(until_s, Rank.FAULT, self._go_on)

    def slow_down(self, extra_s: float) -> None:
        """Messages between it and replicas take so much longer; 0: no longer than usual."""
        self._link.slow_down(extra_s)

    def cut(self, replica_id: str, now_s: float) -> None:
        """It loses its connection to a replica, which both notice after a while."""
        self._link.cut(replica_id)
        noticed_s = now_s + self._detection_delay_s
        for attempt_id, (_, replica) in self._attempts.items():
            if replica.replica_id == replica_id:
                lost = AttemptFailed(attempt_id=attempt_id, reason=Reason.REPLICA_LOST)
                self._events.push(noticed_s, Rank.TO_GATEWAY, self._receive, lost)
                self._events.push(noticed_s, Rank.TO_REPLICA, replica.cancel, attempt_id)

    def mend(self, replica_id: str) -> None:
        """It has a connection to the replica again."""
        self._link.mend(replica_id)

    def _put_off(self, handler: Handler, argument: Any) -> None:
        self._missed.append((handler, argument))

    def _go_on(self, now_s: float, _: None) -> None:
        if now_s == self._paused_until_s:
            missed, self._missed = self._missed, []
            for handler, argument in missed:
                handler(now_s, argument)

    # -- what comes in ------------------------------------------------------------------------------------------------

    def arrive(self, now_s: float, arrival: Arrival) -> None:
        """A request is here; it is read as soon as the processor gets to it."""
        if now_s < self._paused_until_s:
            self._arriving[arrival.request.request_id] = arrival
            self._put_off(self._arrive_late, arrival)
        elif self._processor.is_free_of_charge:
            self._take_in(now_s, arrival)
        else:
            self._arriving[arrival.request.request_id] = arrival
            done_s = self._processor.done_s(now_s, self._num_streams)
            self._events.push(done_s, Rank.ARRIVAL, self._take_in_late, arrival)

    def _arrive_late(self, now_s: float, arrival: Arrival) -> None:
        del self._arriving[arrival.request.request_id]
        self.arrive(now_s, arrival)

    def _take_in_late(self, now_s: float, arrival: Arrival) -> None:
        """Unless who was reading it has died."""
        if self._arriving.pop(arrival.request.request_id, None) is not None:
            self._take_in(now_s, arrival)

    def _take_in(self, now_s: float, arrival: Arrival) -> None:
        """A request has been read and tokenized."""
        request = arrival.request
        opened = self._requests[request.request_id] = self._opened(arrival, now_s)
        opened.budget.tokenized()
        view = RequestView(
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens,
            max_output_tokens=request.max_output_tokens,
            arrival_s=self._skew.shown_s(now_s),
            deadline_s=self._skew.shown_s(arrival.at_s) + request.timeout_s,
            priority=request.priority,
            tenant=request.tenant,
            session_id=request.session_id,
            logical_request_id=request.idempotency_key or str(request.body),
            is_keyed=bool(request.idempotency_key),
            retry_count=request.retry_count,
            prefix_blocks=request.prompt_content,
            prefix_block_tokens=request.content_unit_tokens,
            prompt_id=request.prompt_id,
            adapter=request.adapter,
        )
        self.handle(Arrived(request=view), now_s)

    def _opened(self, arrival: Arrival, now_s: float) -> SimOpenRequest:
        """A request whose time begins when it came."""
        self._now_s = arrival.at_s
        budget = LatencyBudget(self._clock)
        self._now_s = now_s
        return SimOpenRequest(arrival.request, arrival.at_s, budget)

    def _receive(self, now_s: float, event: AttemptEvent) -> None:
        """A replica's answer; one to an attempt that was cancelled comes too late."""
        if now_s < self._paused_until_s:
            self._put_off(self._receive, event)
            return
        if type(event) is FirstTokenReceived or type(event) is LaneLengthExceeded or type(event) is AnswerBegun:
            if event.attempt_id in self._attempts:
                self._hear_of_progress(event, now_s)
            return
        found = self._attempts.pop(event.attempt_id, None)
        if found is None:
            return
        attempt, replica = found
        opened = self._requests.get(attempt.request.request_id)
        if opened is not None:
            self._now_s = now_s
            opened.budget.ended(attempt.attempt_id)
            if type(event) is AttemptFinished:
                self._take_result(opened, attempt, replica, event.output_tokens)
            elif type(event) is AttemptFailed and attempt.attempt_id == opened.committed:
                opened.output_tokens = opened.num_emitted + replica.num_output_tokens_of(attempt, now_s)
                kept_tokens = self._keep(attempt.attempt_id, attempt, replica, now_s=now_s)
                event = msgspec.structs.replace(event, output_tokens=kept_tokens)
        self.handle(event, now_s)

    def _hear_of_progress(self, event: AnswerBegun | FirstTokenReceived | LaneLengthExceeded, now_s: float) -> None:
        attempt = self._attempts[event.attempt_id][0]
        if attempt.awaits_kv and type(event) is not LaneLengthExceeded:
            opened = self._requests.get(attempt.request.request_id)
            if opened is not None:
                self._now_s = now_s
                opened.budget.took(event.attempt_id, AWAITS_KV if type(event) is AnswerBegun else attempt.times)
        self.handle(event, now_s)

    def _take_result(
        self, opened: SimOpenRequest, attempt: SimAttempt, replica: SimReplica, output_tokens: int
    ) -> None:
        """An attempt has done all that it was sent for."""
        opened.held_by[attempt.attempt_id] = replica
        opened.output_tokens = opened.given_tokens + output_tokens
        if attempt.stage is Role.PREFILL:
            opened.budget.took(attempt.attempt_id, attempt.times)
            if not opened.has_begun:
                opened.cached_tokens = attempt.sequence.cached_tokens

    def _reply(self, at_s: float, event: AttemptEvent | CacheChanged) -> None:
        if isinstance(event, CacheChanged):
            self._carry_back(at_s, event.change.replica_id, self._hear_of_cache, event)
        elif (found := self._attempts.get(event.attempt_id)) is not None:
            self._carry_back(at_s, found[1].replica_id, self._receive, event)

    def _carry_back(self, at_s: float, replica_id: str, receive: Handler, event: AttemptEvent | CacheChanged) -> None:
        if not self._link.is_cut(replica_id):
            at_s = self._link.arrival_s(at_s, replica_id, is_to_replica=False)
            self._events.push(at_s, Rank.TO_GATEWAY, receive, event)

    def _hear_of_cache(self, now_s: float, event: CacheChanged) -> None:
        """It came with an attempt's answer, and holds whatever has become of the attempt."""
        self.handle(event, now_s)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _send(self, effect: Send, now_s: float) -> None:
        opened = self._requests[effect.request_id]
        opened.num_attempts += 1
        replica = self._replicas[effect.replica_id]
        kv_source = None if effect.kv_from is None else opened.held_by[effect.kv_from]
        num_from_prefill = 0 if kv_source is None else opened.num_from_prefill(kv_source)
        attempt = SimAttempt(effect, opened.served, self._reply, opened.num_emitted, num_from_prefill)
        opened.sequences.append(attempt.sequence)
        opened.budget.sent(effect.attempt_id, effect.replica_id, effect.kv_from)
        if effect.kv_from is not None and kv_source is not None:
            attempt.pull(kv_source.engine.handle, kv_source.tell, kv_source.replica_id, effect.kv_from)
            attempt.sequence.link_slowdown = replica.link_slowdown_from(kv_source.place)
        first = self._attempts.get(effect.tied_to) if effect.tied_to is not None else None
        if first is not None:
            SimTiedAttempts(first, (attempt, replica), self._events, self._network_delay_s).tie(now_s)
        self._attempts[effect.attempt_id] = (attempt, replica)
        self._carry(now_s, attempt, replica)

    def _carry(self, now_s: float, attempt: SimAttempt, replica: SimReplica) -> None:
        """An attempt is on its way, or there is no connection."""
        if self._link.is_cut(replica.replica_id):
            lost = AttemptFailed(attempt_id=attempt.attempt_id, reason=Reason.REPLICA_LOST, was_taken=False)
            self._events.push(now_s + self._detection_delay_s, Rank.TO_GATEWAY, self._receive, lost)
            return
        at_s = self._link.arrival_s(now_s, replica.replica_id, is_to_replica=True)
        self._events.push(at_s, Rank.TO_REPLICA, replica.receive, attempt)

    def _cancel(self, effect: Cancel, now_s: float) -> None:
        """What its replica says of it from now on is for nobody."""
        found = self._attempts.get(effect.attempt_id)
        if found is not None:
            at_s = self._link.arrival_s(now_s, found[1].replica_id, is_to_replica=True)
            self._events.push(at_s, Rank.TO_REPLICA, found[1].cancel, effect.attempt_id)
            self._cancelled.append((found[0].sequence, now_s))
            ended = AttemptFailed(
                attempt_id=effect.attempt_id,
                reason=Reason.CLIENT_GONE,
                output_tokens=self._keep(effect.attempt_id, *found, now_s=now_s),
            )
            del self._attempts[effect.attempt_id]
            self._events.push(now_s, Rank.TO_GATEWAY, self._end_cancelled, ended)

    def _release_kv(self, effect: ReleaseKv, now_s: float) -> None:
        """By way of a decode replica, as KV is pulled."""
        holder = self._requests[effect.request_id].held_by[effect.kv_from]
        if not self._link.is_cut(effect.replica_id):
            at_s = self._link.arrival_s(now_s, effect.replica_id, is_to_replica=True) + self._network_delay_s
            self._events.push(at_s, Rank.TO_REPLICA, holder.tell, Abort(effect.kv_from))

    def _probe(self, effect: Probe, now_s: float) -> None:
        attempt_id = f"{self._name}/{effect.probe_id}"
        request = PlannedRequest(
            request_id=attempt_id,
            logical_request=-1,
            scheduled_s=now_s,
            prompt_tokens=effect.prompt_tokens,
            output_tokens=effect.output_tokens,
            max_output_tokens=effect.output_tokens,
            timeout_s=math.inf,
        )
        send = Send(
            attempt_id=attempt_id,
            request_id=attempt_id,
            stage=Role.UNIFIED,
            replica_id=effect.replica_id,
            pool=effect.pool,
            prefill_tokens=0,
            kv_tokens=0,
            kv_from=None,
        )
        replica = self._probes[attempt_id] = self._replicas[effect.replica_id]
        if not self._link.is_cut(replica.replica_id):
            at_s = self._link.arrival_s(now_s, replica.replica_id, is_to_replica=True)
            self._events.push(at_s, Rank.TO_REPLICA, replica.receive, SimAttempt(send, request, self._reply_to_probe))

    def _reply_to_probe(self, at_s: float, event: AttemptEvent | CacheChanged) -> None:
        """Its end counts, and what the replica tells on that occasion."""
        if isinstance(event, CacheChanged):
            self._carry_back(at_s, event.change.replica_id, self._hear_of_cache, event)
        elif isinstance(event, AttemptFinished | AttemptFailed) and event.attempt_id in self._probes:
            self._carry_back(at_s, self._probes[event.attempt_id].replica_id, self._receive_from_probe, event)

    def _receive_from_probe(self, now_s: float, event: AttemptFinished | AttemptFailed) -> None:
        if now_s < self._paused_until_s:
            self._put_off(self._receive_from_probe, event)
        elif self._probes.pop(event.attempt_id, None) is not None:
            probe_id = event.attempt_id.removeprefix(f"{self._name}/")
            is_well = not isinstance(event, AttemptFailed) or event.reason is Reason.INVALID_REQUEST
            self.handle(ProbeEnded(probe_id=probe_id, is_well=is_well), now_s)

    def _cancel_probe(self, effect: CancelProbe, now_s: float) -> None:
        attempt_id = f"{self._name}/{effect.probe_id}"
        if (replica := self._probes.pop(attempt_id, None)) is not None:
            at_s = self._link.arrival_s(now_s, replica.replica_id, is_to_replica=True)
            self._events.push(at_s, Rank.TO_REPLICA, replica.cancel, attempt_id)

    def _end_cancelled(self, now_s: float, ended: AttemptFailed) -> None:
        opened = self._requests.get(ended.attempt_id.rpartition(".")[0])
        if opened is not None:
            self._now_s = now_s
            opened.budget.ended(ended.attempt_id)
        self.handle(ended, now_s)

    def _keep(self, attempt_id: str, attempt: SimAttempt, replica: SimReplica, *, now_s: float) -> int:
        """How much of an answer that is stopped its client has; what follows goes on from there."""
        opened = self._requests.get(attempt.request.request_id)
        if opened is None or opened.committed != attempt_id:
            return 0
        left_tokens = opened.served.output_tokens - opened.num_emitted
        output_tokens = min(left_tokens - 1, replica.num_output_tokens_of(attempt, now_s))  # the last one ends it
        opened.committed = ""
        opened.budget.interrupted()
        opened.num_emitted += output_tokens
        opened.given_tokens += output_tokens
        return output_tokens

    def _truncate(self, effect: Truncate, now_s: float) -> None:
        found = self._attempts.get(effect.attempt_id)
        if found is not None:
            attempt, replica = found
            output_tokens = replica.num_output_tokens_of(attempt, now_s)
            at_s = self._link.arrival_s(now_s, replica.replica_id, is_to_replica=True)
            self._events.push(at_s, Rank.TO_REPLICA, replica.cancel, effect.attempt_id)
            ended = AttemptFinished(attempt_id=effect.attempt_id, output_tokens=output_tokens)
            self._events.push(now_s, Rank.TO_GATEWAY, self._receive, ended)

    def _commit(self, effect: Commit, now_s: float) -> None:
        opened = self._requests[effect.request_id]
        if not opened.has_begun:
            opened.first_token_s = now_s
            self._num_streams += 1
            first = self._attempts[effect.attempt_id][0]
            if not first.awaits_kv:
                opened.budget.took(effect.attempt_id, first.times)
            if first.stage is Role.UNIFIED:
                opened.cached_tokens = first.sequence.cached_tokens
        opened.committed = effect.attempt_id
        opened.budget.committed(effect.attempt_id)

    def _set_timer(self, effect: SetTimer, now_s: float) -> None:
        at_s = max(self._skew.when_s(effect.at_s), now_s)  # its gateway may have stood still until it was over
        self._timers[effect.token] = self._events.push(at_s, Rank.TIMER, self._fire, effect.token)

    def _fire(self, now_s: float, token: str) -> None:
        if now_s < self._paused_until_s:
            self._num_missed_timers += 1
            self._timers[token] = -self._num_missed_timers
            self._put_off(self._fire_late, (token, -self._num_missed_timers))
            return
        del self._timers[token]
        self.handle(TimerFired(token=token), now_s)

    def _fire_late(self, now_s: float, missed: tuple[str, int]) -> None:
        """Unless what it has heard before has stopped it."""
        token, number = missed
        if self._timers.get(token) == number:
            self._fire(now_s, token)

    def _cancel_timer(self, effect: CancelTimer, now_s: float) -> None:
        number = self._timers.pop(effect.token, None)
        if number is not None and number > 0:
            self._events.cancel(number)

    def _respond(self, effect: Respond, now_s: float) -> None:
        opened = self._requests.pop(effect.request_id)
        self._num_streams -= opened.has_begun
        outcome = effect.outcome
        if outcome.kind is not OutcomeKind.COMPLETED and (opened.committed in self._attempts or not opened.committed):
            opened.output_tokens = self._num_given(opened, now_s)  # a prefill's token has not been given to anybody
        opened.budget.answered()
        self._on_answer(opened, outcome, now_s)

    def _push_load(self, effect: PushLoad, now_s: float) -> None:
        self._on_load(effect.report, now_s)

    def _share_first_arrival(self, effect: ShareFirstArrival, now_s: float) -> None:
        self._unshared.add_arrival(effect.arrival)

    def _share_prompt(self, effect: SharePrompt, now_s: float) -> None:
        self._unshared.add_prompt(effect.prompt)

    def _share_cache_change(self, effect: ShareCacheChange, now_s: float) -> None:
        self._unshared.add_cache_change(effect.change)

    def _record(self, effect: Record, now_s: float) -> None:
        """A degraded request's answer is that much shorter; placements are counted from the sends, but for hedges."""
        decision = effect.decision
        if type(decision) is Placement:
            if decision.is_hedge:
                self._requests[decision.request_id].num_hedges += 1
        elif type(decision) is Degraded:
            opened = self._requests[decision.request_id]
            opened.served = shortened(opened.request, decision.max_output_tokens)
        elif type(decision) is Ejection:
            self._on_ejection(decision, now_s)
