"""The life of every request as a state machine without I/O: events in, effects out.

A request arrives, passes shedding and admission, is given a plan, and then goes through the plan's stages. Each stage
is served by one attempt, or by several when an attempt is lost or hedged. The first token of the last stage commits the
request to that attempt; should its replica be lost, another resumes from what has been emitted. Whatever happens, the
request is answered exactly once and every slot it took is given back exactly once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from policies import signals
from policies.candidates import Candidates
from policies.decisions import Again, GiveUp, Reason, Reject
from policies.errors import InvariantViolation
from policies.pool_views import PoolLoad
from policies.views import RequestView, Role
from routing.attempts.handoff import Handoff
from routing.attempts.hedging import Hedger
from routing.attempts.open_attempts import InFlight
from routing.attempts.preemption import Preemptor
from routing.attempts.prompt_leaders import PromptLeaders, Turn
from routing.attempts.recovery import Recovery
from routing.config.parts import DispatcherParts
from routing.fleet.ejection import EJECTOR_TIMERS, Ejector
from routing.fleet.fleet import Fleet
from routing.fleet.out_elsewhere import OUT_ELSEWHERE_TIMER
from routing.fleet.probes import Probes
from routing.fleet.ramp import RAMP_TIMER, Ramp
from routing.intake.intake import Intake
from routing.intake.load_exchange import LoadExchange
from routing.intake.pool_loads import pool_loads
from routing.queues.queues import Queues
from routing.request import events
from routing.request.effects import Effect, Outcome, OutcomeKind, Record, Respond, SetTimer, ShareCacheChange
from routing.request.news import CacheChange, SharedWork
from routing.request.refusal import given_up, refusal
from routing.request.request import PROGRESS_TOKENS, Attempt, Request
from routing.request.states import (
    GIVEN_UP,
    PREEMPTED,
    UNDER_WAY,
    WITHOUT_TOKEN,
    AnswerState,
    AttemptState,
    RequestState,
)

Effects = Sequence[Effect]
NOTHING: Effects = ()
WAITING_ROOM_TIMER = "waiting_room"
TIMERS_OF_REPLICAS = (*EJECTOR_TIMERS, OUT_ELSEWHERE_TIMER, RAMP_TIMER, WAITING_ROOM_TIMER)
"""What timers are for, at the end of their tokens, that are about replicas."""


class Dispatcher:
    """Turns events into effects; single-threaded, never waits, reads no clock.

    Args:
        parts: What it is put together from.
        parts_for: Makes the parts that it goes on with when it is reconfigured, or raises.
    """

    def __init__(self, parts: DispatcherParts, parts_for: Callable[[events.Reconfigured], DispatcherParts]) -> None:
        self.fleet = Fleet(parts.access.whole_request_pools, parts.params.prefill_window_tokens)
        self._in_flight = InFlight(
            self.fleet, parts.policies, parts.request_classifier, parts.prefixes, first_tokens=parts.first_tokens
        )
        self._probes = Probes(parts.params.probe_s, parts.first_tokens)
        self._ejector = Ejector(self.fleet, parts.policies.ejection, self._probes, self._does_without)
        self._ramp = Ramp(self.fleet, parts.params.ramp_stage_s)
        self._leaders = PromptLeaders(parts.params.leader_first, parts.params.max_fruitless_losses)
        self._use(parts)
        self._parts_for = parts_for
        self._requests: dict[str, Request] = {}
        self._has_answered = False
        self._num_closings = 0
        self._handlers: dict[type, Callable[..., Effects]] = {
            events.Arrived: self._on_arrived,
            events.Accepted: self._on_accepted,
            events.AnswerBegun: self._on_answer_begun,
            events.FirstTokenReceived: self._on_first_token,
            events.LaneLengthExceeded: self._on_lane_length_exceeded,
            events.AttemptFinished: self._on_attempt_finished,
            events.AttemptFailed: self._on_attempt_failed,
            events.AttemptWithdrawn: self._on_attempt_withdrawn,
            events.ClientGone: self._on_client_gone,
            events.TimerFired: self._on_timer_fired,
            events.FleetChanged: self._on_fleet_changed,
            events.ReplicaReported: self._on_replica_reported,
            events.ReplicaStalled: self._on_replica_stalled,
            events.ReplicaUnstalled: self._on_replica_unstalled,
            events.ProbeEnded: self._on_probe_ended,
            events.CacheChanged: self._on_cache_changed,
            events.LoadDue: self._coordinate,
            events.ThresholdsReceived: self._coordinate,
            events.NewsReceived: self._on_news_received,
            events.Reconfigured: self._on_reconfigured,
        }

    def _use(self, parts: DispatcherParts) -> None:
        policies, classifier, access = parts.policies, parts.request_classifier, parts.access
        self.policies, self.request_classifier, self.access = policies, classifier, access
        self._prefixes, self._params, self._subscribed = parts.prefixes, parts.params, policies.subscribed
        self._in_flight.use(
            policies, classifier, parts.prefixes, parts.first_tokens, shares_prompts=parts.shares_prompts
        )
        self._ejector.use(policies.ejection)
        self._probes.use(parts.params.probe_s, parts.first_tokens)
        self._ramp.use(parts.params.ramp_stage_s)
        self._leaders.use(parts.params.leader_first, parts.params.max_fruitless_losses)
        self.fleet.waiting_room_s = parts.params.waiting_room_s
        self._queues = Queues(policies, access, self.fleet, parts.first_tokens, shares_news=parts.shares_news)
        self.shares_news, self._shares_prompts = parts.shares_news, parts.shares_prompts
        self._preemptor = Preemptor(policies.preemption, self._queues, access, self.fleet, self._in_flight)
        self._hedger = Hedger(policies, access, self.fleet, parts.first_tokens)
        self._handoff = Handoff(access, self.fleet, parts.kv_lease_s)
        self._recovery = Recovery(
            policies.retrying, classifier, access, self._handoff, fleet=self.fleet, params=parts.params
        )
        self._coordination = LoadExchange(policies.shedding)
        self._logical_requests, self._meters = parts.logical_requests, (parts.demand, parts.slo_meter)
        self._intake = Intake(
            policies,
            classifier,
            parts.planner,
            access,
            fleet=self.fleet,
            queues=self._queues,
            logical_requests=parts.logical_requests,
        )

    @property
    def report_period_s(self) -> float:
        """Between two ``LoadDue`` that it wants to be told; ``math.inf``: none."""
        return self._coordination.period_s

    def work(self, now_s: float) -> SharedWork:
        """What this gateway has waiting and under way, and whom it keeps out, for the others."""
        waiting, replicas = self._queues.waiting(), self.fleet.work_here()
        return SharedWork(waiting=waiting, replicas=replicas, out=self._ejector.own(now_s))

    def pool_loads(self, now_s: float) -> Mapping[str, PoolLoad]:
        """What this gateway has for each pool, for the policy that says how many replicas it is to have."""
        return pool_loads(self._meters, self.access, self._queues, self.fleet, now_s)

    @property
    def num_waiting_requests(self) -> int:
        """Requests that no replica has room for yet, or that another one with their prompt goes before."""
        return len(self._queues) + self._leaders.num_followers

    @property
    def num_open_requests(self) -> int:
        """Requests that are not answered, or whose attempts have not all ended."""
        return len(self._requests)

    @property
    def num_open_attempts(self) -> int:
        """Attempts that hold a slot."""
        return len(self._in_flight)

    def gauges(self, now_s: float) -> Mapping[str, float]:
        """What is known of lanes, pools and queues: ``name``, ``name:lane``, ``name:pool``, or ``name:class:queue``."""
        of_parts = self.request_classifier.gauges(), self.access.gauges(), self._ejector.gauges()
        known = {name: value for each in (*of_parts, self._queues.gauges(now_s)) for name, value in each.items()}
        shed_fraction, followers = self.policies.shedding.shed_fraction(now_s), self._leaders.num_followers
        return {**known, "shed_fraction": shed_fraction, "followers": float(followers)}

    def handle(self, event: events.Event, now_s: float) -> Effects:
        """Takes in one event.

        Args:
            event: What happened.
            now_s: Now, in seconds, monotonic.

        Returns:
            Effects for the host to carry out, in order.

        Raises:
            InvariantViolation: A request arrived twice.
            ConfigError: The other configuration can't be; everything is as it was.
            PolicyMisbehaved: A balancer picked what was no candidate; nothing has been sent.
        """
        effects = self._handlers[type(event)](event, now_s)
        if self._leaders.released:
            effects = [*effects, *self._place_released(now_s)]
        if self._has_answered:
            self._has_answered = False
            if started := self._ask_again(now_s):
                return [*effects, *started]
        return effects

    # -- a request comes in -------------------------------------------------------------------------------------------

    def _on_arrived(self, event: events.Arrived, now_s: float) -> Effects:
        if event.request.request_id in self._requests:
            raise InvariantViolation(f"request {event.request.request_id} arrived twice")
        decision = self._intake.take_in(event.request, now_s)
        view, outcome = decision.request, decision.outcome
        effects: list[Effect] = [*decision.records]
        if signals.Offered in self._subscribed:
            why = outcome.reason if outcome is not None else None
            offered = signals.Offered(request=view, stages=decision.usual_plan, refused_for=why, at_s=now_s)
            self.policies.observe(offered)
        if stages := self.access.look(view, decision.usual_plan[0], self.fleet, now_s):
            effects += self._drain_all(stages, now_s)
        if outcome is not None:
            return [*effects, *self._respond(view, outcome, now_s)]
        request = Request.begin(view, decision.usual_plan, decision.output_time_limit_s, decision.permits)
        if decision.plan != decision.usual_plan:
            effects.append(request.go_by(decision.plan))
        self._requests[view.request_id] = request
        if signals.Admitted in self._subscribed:
            self.policies.observe_request(signals.Admitted(request=view, at_s=now_s), request.permits)
        effects.append(SetTimer(token=request.deadline_token, at_s=view.deadline_s))
        effects += self._place(request, now_s, Reason.NO_REPLICA_AVAILABLE)
        self._settle(request)
        return effects

    def _place(self, request: Request, now_s: float, otherwise: Reason) -> list[Effect]:
        """Enqueues the stage and lets the queue move, or refuses the request for ``otherwise``."""
        turn = self._turn_of(request, now_s)
        if turn is Turn.FOLLOWS:
            return [*request.follow()]
        effects: list[Effect] = [*request.enqueue()]
        if turn is Turn.CONDEMNED:
            return [*effects, *self._give_up(request, Reason.REPLICA_LOST, now_s, may_retry=False)]
        if request.num_sent and (request.failed_replicas or self.fleet.has_gaps):
            effects += self._queues.replan(request, now_s)
        can_wait = self._queues.can_wait(request, now_s)
        if not can_wait:
            replanned = self._queues.replan(request, now_s)
            can_wait = bool(replanned)
            effects += replanned
        if can_wait:
            self._queues.push(request, now_s)
            effects += self._drain(request.stage, now_s)
        else:
            effects += self._give_up(request, otherwise, now_s)
        return effects

    def _turn_of(self, request: Request, now_s: float) -> Turn:
        return self._leaders.turn_of(request, now_s) if self._leaders.is_on else Turn.GOES

    def _place_released(self, now_s: float) -> list[Effect]:
        """Those that need not wait for another one with their prompt any longer, unless they are answered by now."""
        effects: list[Effect] = []
        while self._leaders.released:
            request = self._leaders.released.popleft()
            if request.state is RequestState.FOLLOWING:
                effects += self._place(request, now_s, Reason.NO_REPLICA_AVAILABLE)
                self._settle(request)
        return effects

    def _send_in_turn(self, request: Request, candidates: Candidates, now_s: float) -> Effects:
        """What is known of its prompt may have changed while it waited."""
        turn = self._turn_of(request, now_s)
        if turn is Turn.GOES:
            return self._send(request, candidates, now_s)
        if turn is Turn.FOLLOWS:
            return request.follow()
        effects = self._give_up(request, Reason.REPLICA_LOST, now_s, may_retry=False)
        self._settle(request)
        return effects

    def _send(self, request: Request, candidates: Candidates, now_s: float) -> Effects:
        attempt, effects = self._in_flight.send(request, candidates, now_s)
        return (*effects, *self._hedger.timers(request, attempt, now_s)) if self._hedger.is_on else effects

    def _hedge(self, attempt_id: str, now_s: float) -> Effects:
        """Sends a second attempt beside one that is still without a first token."""
        attempt = self._in_flight.get(attempt_id)
        if attempt is None or attempt.state is not AttemptState.SENT:
            return NOTHING
        request = self._requests[attempt.request_id]
        if self._leaders.is_on and self._leaders.is_suspect(request, now_s):
            return NOTHING
        if target := self._hedger.target(request, attempt, now_s):
            return self._in_flight.send(request, target, now_s, tied_to=self._hedger.tied_to(attempt))[1]
        return (self._hedger.later(attempt, now_s),)

    # -- an attempt makes progress ------------------------------------------------------------------------------------

    def _on_accepted(self, event: events.Accepted, now_s: float) -> Effects:
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is None:
            return NOTHING
        self._in_flight.move(attempt, event.replica_id)
        return self._drain(attempt.stage, now_s)

    def _on_answer_begun(self, event: events.AnswerBegun, now_s: float) -> Effects:
        """The client gets its first token; the attempt has none of its own, and is not done with its prompt."""
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is None or attempt.state not in WITHOUT_TOKEN:
            return NOTHING
        request = self._requests[attempt.request_id]
        return self._win(request, attempt, now_s) if request.committed is None else NOTHING

    def _on_first_token(self, event: events.FirstTokenReceived, now_s: float) -> Effects:
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is None or attempt.state not in WITHOUT_TOKEN:
            return NOTHING
        self._in_flight.first_token(attempt, now_s)
        if signals.FirstToken in self._subscribed:
            self.policies.observe(attempt.gave_first_token(now_s))
        request = self._requests[attempt.request_id]
        effects = self._win(request, attempt, now_s) if request.committed is None else []
        frees_room = bool(self._params.prefill_window_tokens)
        if self._ejector.is_on:
            ejections = self._ejector.look(attempt, now_s)
            effects += ejections.effects
            frees_room = frees_room or ejections.frees_room
        if frees_room:
            effects += self._drain(attempt.stage, now_s)
        return effects

    def _on_lane_length_exceeded(self, event: events.LaneLengthExceeded, now_s: float) -> Effects:
        """The answer is longer than its lane is for."""
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is None or attempt.state in GIVEN_UP:
            return NOTHING
        request = self._requests[attempt.request_id]
        return (self._in_flight.exceed_lane_length(request, attempt, event.output_tokens),)

    def _win(self, request: Request, attempt: Attempt, now_s: float) -> list[Effect]:
        """The attempt wins its stage: its rivals are cancelled, and in the last stage its tokens are the answer."""
        before = request.answer
        effects = request.win(attempt, now_s)
        if self._leaders.is_on:
            self._leaders.get_further(request, now_s, is_complete=False)
        if request.erred_on:
            for replica_id in sorted(request.be_cleared(attempt)):
                because_of = f"{attempt.attempt_id}/{replica_id}"
                effects += self._ejector.spare_erring(replica_id, because_of, now_s, self._params.quarantine_s)
            effects += self._drain(attempt.stage, now_s)
        if request.answer is not before and before is AnswerState.NONE and signals.Answering in self._subscribed:
            self.policies.observe_request(signals.Answering(request=request.view, at_s=now_s), request.permits)
        return effects

    def _spare(self, replica_id: str, because_of: str, now_s: float) -> list[Effect]:
        return self._ejector.spare(replica_id, because_of, now_s, now_s + self._params.quarantine_s)

    # -- an attempt ends ----------------------------------------------------------------------------------------------

    def _on_attempt_finished(self, event: events.AttemptFinished, now_s: float) -> Effects:
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is None:
            return NOTHING
        request, was = self._requests[attempt.request_id], attempt.state
        self._in_flight.close(request, attempt)
        if signals.Completed in self._subscribed:
            self.policies.observe(attempt.completed(event.output_tokens, now_s))
        effects: list[Effect] = []
        if self._ejector.is_on:
            effects += self._ejector.look(attempt, now_s).effects
        if was not in GIVEN_UP:
            effects += self._complete_stage(request, attempt, event.output_tokens, now_s)
        self._settle(request)
        effects += self._drain(attempt.stage, now_s)
        return effects

    def _complete_stage(self, request: Request, attempt: Attempt, output_tokens: int, now_s: float) -> Effects:
        """The next stage follows, or the answer is complete."""
        effects: list[Effect] = []
        if request.committed is None:
            effects += self._win(request, attempt, now_s)
        if request.is_last_stage:
            output_tokens += request.num_emitted
            was_truncated = request.answer is AnswerState.TRUNCATED
            if self._leaders.is_on:
                self._leaders.get_further(request, now_s, is_complete=True)
            self.request_classifier.answered(request.whole_request, output_tokens, was_truncated=was_truncated)
            effects += self._answer(request, Outcome(kind=OutcomeKind.COMPLETED), now_s, output_tokens)
        else:
            replica = self.fleet.get(attempt.replica_id)
            place = replica.place if replica is not None else ()
            request.enter_next_stage(attempt, place, now_s + self._handoff.sending_s)
            effects += self._place(request, now_s, Reason.NO_REPLICA_AVAILABLE)
        return effects

    def _on_attempt_failed(self, event: events.AttemptFailed, now_s: float) -> Effects:
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is None:
            return NOTHING
        request, was = self._requests[attempt.request_id], attempt.state
        self._in_flight.close(request, attempt)
        if was in WITHOUT_TOKEN:
            self._handoff.ended(request, attempt, event.reason, was_taken=event.was_taken)
        effects: list[Effect] = []
        if event.reason is Reason.REPLICA_LOST:
            effects += self._spare(attempt.replica_id, attempt.attempt_id, now_s)
        if was in UNDER_WAY:
            effects += self._recover(request, attempt, event, now_s)
        elif was is AttemptState.STALLED:
            effects += self._move_on(request, attempt, event.output_tokens, now_s)
        else:
            effects += self._stop(request, attempt, was, event.output_tokens, now_s)
        self._settle(request)
        effects += self._drain(attempt.stage, now_s)
        return effects

    def _on_attempt_withdrawn(self, event: events.AttemptWithdrawn, now_s: float) -> Effects:
        """The one that it was tied to computes the prompt; has that ended meanwhile, the request needs another."""
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is None or attempt.state not in UNDER_WAY:
            ended = events.AttemptFailed(attempt_id=event.attempt_id, reason=Reason.CLIENT_GONE)
            return self._on_attempt_failed(ended, now_s)
        request = self._requests[attempt.request_id]
        self._in_flight.close(request, attempt)
        if signals.Superseded in self._subscribed:
            self.policies.observe(attempt.superseded(now_s))
        effects: list[Effect] = []
        if (winner := request.active_attempt()) is not None:
            effects.append(winner.race([attempt]))
        elif request.lost_beside:
            effects += self._repeat(request, *request.lost_beside, now_s)
        else:  # the winner was stopped, and neither of the two counts as an attempt
            request.count_free()
            effects += self._place(request, now_s, Reason.NO_REPLICA_AVAILABLE)
        self._settle(request)
        effects += self._drain(attempt.stage, now_s)
        return effects

    def _stop(self, request: Request, attempt: Attempt, was: AttemptState, output_tokens: int, now_s: float) -> Effects:
        """An attempt has ended whose end was asked for. One that was preempted waits for its turn again, behind the one
        that it made room for.
        """
        if was is AttemptState.SUPERSEDING:
            if signals.Superseded in self._subscribed:
                self.policies.observe(attempt.superseded(now_s))
        elif signals.Cancelled in self._subscribed:
            self.policies.observe(attempt.cancelled(now_s))
        if was not in PREEMPTED or request.active_attempt() is not None:
            return NOTHING
        emitted = output_tokens if request.committed == attempt.attempt_id else 0
        request.resume_preempted(self.request_classifier.rest_of(request.view, emitted), emitted)
        preemption: Record = attempt.preemption(emitted)
        drained = self._drain(attempt.stage, now_s)
        return [preemption, *drained, *self._place(request, now_s, Reason.NO_REPLICA_AVAILABLE)]

    def _recover(self, request: Request, attempt: Attempt, event: events.AttemptFailed, now_s: float) -> Effects:
        """A lost attempt is repeated elsewhere; after its first token the answer is resumed there."""
        if signals.Failed in self._subscribed:
            self.policies.observe(attempt.failed(event.reason, now_s))
        effects: list[Effect] = []
        if self._ejector.is_on:
            effects += self._ejector.look(attempt, now_s).effects
        request.emit(event.output_tokens)
        if event.reason is Reason.REPLICA_LOST:
            request.avoid_too(attempt.replica_id)
            if event.was_taken and event.output_tokens < PROGRESS_TOKENS:
                self._lose_with(request, attempt, now_s)
        elif event.reason is Reason.ENGINE_ERROR:
            request.err_on(attempt)
            because_of, for_s = attempt.attempt_id, self._params.quarantine_s
            effects += self._ejector.err_again(attempt.replica_id, because_of, now_s, for_s)
        if request.active_attempt() is not None:
            request.lose(attempt, event)
        else:
            effects += self._repeat(request, attempt, event, now_s)
        return effects

    def _move_on(self, request: Request, attempt: Attempt, output_tokens: int, now_s: float) -> Effects:
        """The same for an attempt that was given up because something stands still; that may go on, and serve again."""
        lost = events.AttemptFailed(
            attempt_id=attempt.attempt_id, reason=attempt.stalled_by or Reason.REPLICA_LOST, output_tokens=output_tokens
        )
        if signals.Failed in self._subscribed:
            self.policies.observe(attempt.failed(lost.reason, now_s))
        request.emit(output_tokens)
        if request.active_attempt() is not None:
            request.lose(attempt, lost)
            return NOTHING
        return self._prepare(request, attempt, lost, attempt.again, now_s)

    def _repeat(self, request: Request, attempt: Attempt, event: events.AttemptFailed, now_s: float) -> Effects:
        """Now, after a while, or not at all."""
        decision = self._recovery.decide(request, attempt, event.reason, now_s)
        if not request.is_answering and self._leaders.is_condemned(request, now_s):
            decision = GiveUp(may_retry=False)
        if isinstance(decision, GiveUp):
            return self._give_up(request, event.reason, now_s, may_retry=decision.may_retry)
        return self._prepare(request, attempt, event, decision, now_s)

    def _lose_with(self, request: Request, attempt: Attempt, now_s: float) -> None:
        """Its replica was lost or stands still, and may have died of the request, or of its prompt whoever has it."""
        request.lose_with(attempt)
        self._leaders.strike(request, attempt, now_s)

    def _prepare(
        self, request: Request, attempt: Attempt, event: events.AttemptFailed, decision: Again, now_s: float
    ) -> Effects:
        effects = self._recovery.prepare(request, attempt, event, decision, now_s)
        if request.state is RequestState.BACKING_OFF:
            return effects
        return [*effects, *self._place(request, now_s, event.reason)]

    def _try_again(self, request: Request, now_s: float) -> Effects:
        reason = self._recovery.end_back_off(request, now_s)
        if reason is None:
            return NOTHING
        effects = self._place(request, now_s, reason)
        self._settle(request)
        return effects

    # -- the world changes --------------------------------------------------------------------------------------------

    def _on_client_gone(self, event: events.ClientGone, now_s: float) -> Effects:
        request = self._requests.get(event.request_id)
        if request is None or request.is_answered:
            return NOTHING
        effects = self._answer(request, Outcome(kind=OutcomeKind.CANCELLED, reason=Reason.CLIENT_GONE), now_s)
        self._settle(request)
        return effects

    def _on_timer_fired(self, event: events.TimerFired, now_s: float) -> Effects:
        subject, _, purpose = event.token.rpartition(":")
        if purpose == "hedge":
            return self._hedge(subject, now_s)
        if purpose in TIMERS_OF_REPLICAS:
            self.fleet.look_for_gaps(now_s)
            told = self._ejector.elsewhere.ends(event.token, now_s)
            ended = told, self._ejector.ends(event.token, now_s), self._ramp.ends(event.token, now_s)
            return [*(effect for effects in ended for effect in effects), *self._drain_all(Role, now_s)]
        request = self._requests.get(subject)
        if request is None or request.is_answered:
            return NOTHING
        if purpose == "output_time_limit":
            return request.truncate()
        if purpose == "retry":
            return self._try_again(request, now_s)
        effects = self._give_up(request, Reason.DEADLINE_EXCEEDED, now_s)
        self._settle(request)
        return effects

    def _on_fleet_changed(self, event: events.FleetChanged, now_s: float) -> Effects:
        replaced = self.fleet.replace(event.pool, event.role, event.replicas, now_s)
        effects: list[Effect] = []
        for replica_id in replaced.gone:
            self._prefixes.forget(replica_id)
            effects += self._ejector.forget(replica_id)
            self._ramp.forget(replica_id)
        effects += [*self._ramp.begin(replaced.fresh, now_s), *self._ejector.keep_one(event.pool, now_s)]
        if replaced.gone and self.fleet.is_empty(event.pool) and self.fleet.waiting_room_s:
            effects.append(self._closing_time(event.pool))
        return [*effects, *self._drain_all(Role, now_s)]

    def _closing_time(self, pool: str) -> SetTimer:
        """When those are refused that still wait for a pool that has lost its last replica."""
        self._num_closings += 1
        token = f"{pool}.{self._num_closings}:{WAITING_ROOM_TIMER}"
        return SetTimer(token=token, at_s=self.fleet.closes_at_s(pool))

    def _on_replica_reported(self, event: events.ReplicaReported, now_s: float) -> Effects:
        self.fleet.report(event.replica_id, event.prefill_tokens, event.kv_tokens, event.kv_cache_usage)
        self.fleet.report_adapters(event.replica_id, event.adapters, event.adapters_in_use)
        replica = self.fleet.get(event.replica_id) if self._params.prefill_window_tokens else None
        if replica is None:
            return self._ask_again(now_s)
        return [*self._drain(replica.role, now_s), *self._ask_again(now_s)]

    def _on_replica_stalled(self, event: events.ReplicaStalled, now_s: float) -> Effects:
        """What it has goes on elsewhere, and so does what waits for KV of its; what can't stays and hopes."""
        effects = [*self._ejector.stall(event.replica_id, now_s)]
        if not self._ejector.is_stalled(event.replica_id):
            return effects
        for attempt in self._in_flight.under_way():
            request = self._requests[attempt.request_id]
            reason = request.held_up_by(attempt, event.replica_id)
            if reason is Reason.REPLICA_LOST and attempt.state in WITHOUT_TOKEN:
                self._lose_with(request, attempt, now_s)
            decision = None if reason is None else self._recovery.decide(request, attempt, reason, now_s)
            if reason is not None and isinstance(decision, Again):
                effects.append(attempt.stall(reason, decision))
        return [*effects, *self._drain_all(Role, now_s)]

    def _does_without(self, pool: str, now_s: float) -> bool:
        return self.access.does_without(pool, self.fleet, now_s)

    def _on_replica_unstalled(self, event: events.ReplicaUnstalled, now_s: float) -> Effects:
        readmitted = self._ejector.unstall(event.replica_id, now_s)
        return [*readmitted, *self._drain_all(Role, now_s)] if readmitted else NOTHING

    def _on_probe_ended(self, event: events.ProbeEnded, now_s: float) -> Effects:
        ended = self._ejector.probe_ended(event.probe_id, now_s, is_well=event.is_well)
        return [*ended, *self._drain_all(Role, now_s)] if ended else NOTHING

    def _on_cache_changed(self, event: events.CacheChanged, now_s: float) -> Effects:
        self._take_in(event.change)
        return (ShareCacheChange(change=event.change),) if self._shares_prompts else NOTHING

    def _take_in(self, change: CacheChange) -> None:
        if self.fleet.get(change.replica_id) is not None:
            self._prefixes.cache_changed(*change)

    def _coordinate(self, event: events.LoadDue | events.ThresholdsReceived, now_s: float) -> Effects:
        return self._coordination.handle(event, now_s)

    def _on_news_received(self, event: events.NewsReceived, now_s: float) -> Effects:
        news = event.news
        self._logical_requests.take_in(news.arrivals, now_s)
        self.fleet.share(news.work.replicas)
        for prompt in news.prompts:
            if self.fleet.get(prompt.replica_id) is not None:
                self._prefixes.sent_elsewhere(prompt.blocks, prompt.replica_id)
        for change in news.cache_changes:
            self._take_in(change)
        self._queues.share(news.work.waiting, now_s)
        timers: Effects = NOTHING
        if news.work.out:
            timers = self._ejector.elsewhere.hear(news.work.out, self._ejector.own(now_s), now_s)
        if timers or self._params.prefill_window_tokens:
            return [*timers, *self._drain_all(Role, now_s)]
        return NOTHING

    def _on_reconfigured(self, event: events.Reconfigured, now_s: float) -> Effects:
        """What is under way stays so, and what waits is enqueued in the new queues."""
        before, waited_s = self._queues, self.fleet.waiting_room_s
        self._use(self._parts_for(event))
        self.fleet.set_prefill_window(self._params.prefill_window_tokens)
        for request in self._requests.values():
            request.revise(self.request_classifier.put_in_lane(request.view, self.fleet, now_s))
        self._queues.take_over(before, now_s)
        closings: list[Effect] = []
        if self.fleet.waiting_room_s != waited_s:
            empty = filter(self.fleet.is_empty, self.fleet.pool_names)
            closings = [self._closing_time(each) for each in empty if self.fleet.closes_at_s(each) > now_s]
        return [*closings, *self._drain_all(Role, now_s)]

    def _ask_again(self, now_s: float) -> Effects:
        """A request has ended, here or elsewhere: those that admission told to wait may start now."""
        held = self._queues.held
        return self._drain_all(tuple(held.values()), now_s) if held else NOTHING

    def _drain_all(self, stages: Iterable[Role], now_s: float) -> list[Effect]:
        return [effect for stage in stages for effect in self._drain(stage, now_s)]

    def _drain(self, stage: Role, now_s: float) -> list[Effect]:
        """Sends waiting requests while there is room; those that no replica is left for go by another plan, or are
        refused.
        """
        effects: list[Effect] = []
        redirected: list[Role] = []
        if not self._queues:
            return effects
        for request, move in self._queues.moves(stage, now_s):
            if isinstance(move, Reject):
                effects += self._answer(request, refusal(request.view.request_id, move), now_s)
            elif move and now_s < request.kv_until_s:
                effects += self._send_in_turn(request, move, now_s)
                continue
            elif replanned := self._queues.replan(request, now_s):
                effects += replanned
                self._queues.push(request, now_s)
                redirected.append(request.stage)
                continue
            else:
                effects += self._give_up(request, Reason.NO_REPLICA_AVAILABLE, now_s)
            self._settle(request)
        effects += self._drain_all(dict.fromkeys(redirected), now_s)
        if self._in_flight.stoppable:
            for queue in self._queues.blocked(stage, now_s):
                effects += self._preemptor.make_room(queue, now_s)
        return effects

    # -- a request ends -----------------------------------------------------------------------------------------------

    def _give_up(self, request: Request, reason: Reason, now_s: float, *, may_retry: bool = True) -> list[Effect]:
        retry_after_s = self._params.retry_after_s
        if reason is Reason.NO_REPLICA_AVAILABLE:
            returns_in_s = self.access.returns_in_s(request.stage, request.view.lane, self.fleet, now_s)
            retry_after_s = max(retry_after_s, returns_in_s)
        outcome = given_up(request, reason, retry_after_s, may_retry=may_retry)
        return self._answer(request, outcome, now_s)

    def _answer(self, request: Request, outcome: Outcome, now_s: float, output_tokens: int = 0) -> list[Effect]:
        """The one place where a request is answered: stops its timers, its wait and its attempts."""
        if request.state is RequestState.WAITING:
            self._queues.remove(request)
        self._has_answered = True
        if self._leaders.is_on:
            self._leaders.leave(request)
        effects: list[Effect] = [*request.be_answered()]
        for attempt in request.open_attempts.values():
            effects += attempt.cancel()
        if request.has_idle_kv:
            effects += self._handoff.release(request, now_s)
        effects += self._respond(request.view, outcome, now_s)
        if signals.Ended in self._subscribed:
            self.policies.observe_request(request.ended(outcome, output_tokens, now_s), request.permits)
        return effects

    def _respond(self, request: RequestView, outcome: Outcome, now_s: float) -> Effects:
        if outcome.kind is OutcomeKind.COMPLETED and not (request.retry_count or request.is_keyed):
            return (Respond(request_id=request.request_id, outcome=outcome),)
        told, shared = self._logical_requests.end(request, outcome, now_s)
        return (Respond(request_id=request.request_id, outcome=told), *shared)

    def _settle(self, request: Request) -> None:
        """Forgets a request that is answered and holds no slot any more."""
        if request.state is RequestState.ANSWERED and not request.open_attempts:
            self._requests.pop(request.view.request_id, None)
