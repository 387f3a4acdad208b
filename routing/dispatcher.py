"""The life of every request as a state machine without I/O: events in, effects out.

A request arrives, passes shedding and admission, is given a plan, and then goes through the plan's stages. Each stage
is served by one attempt, or by several when an attempt is lost or hedged. The first token of the last stage commits the
request to that attempt; should its replica be lost, another resumes from what has been emitted. Whatever happens, the
request is answered exactly once and every slot it took is given back exactly once.
"""

from collections.abc import Callable, Mapping, Sequence

from policies import signals
from policies.decisions import GiveUp, Reason, Reject
from policies.errors import InvariantViolation
from policies.views import Candidates, Role
from routing.attempts.hedging import Hedger
from routing.attempts.open_attempts import InFlight
from routing.attempts.preemption import Preemptor
from routing.attempts.recovery import Recovery
from routing.config.parts import DispatcherParts
from routing.fleet.ejection import Ejector
from routing.fleet.fleet import Fleet
from routing.intake.intake import Intake
from routing.intake.load_exchange import LoadExchange
from routing.queues.queues import Queues
from routing.request import events
from routing.request.attempt import Attempt
from routing.request.effects import Effect, Outcome, OutcomeKind, Respond, SetTimer
from routing.request.refusal import given_up, refusal
from routing.request.state import RequestState


class Dispatcher:
    """Turns events into effects; single-threaded, never waits, reads no clock.

    Args:
        parts: What it is put together from.
        parts_for: Makes the parts that it goes on with when it is reconfigured, or raises.
    """

    def __init__(self, parts: DispatcherParts, parts_for: Callable[[events.Reconfigured], DispatcherParts]) -> None:
        self.fleet = Fleet(parts.access.whole_request_pools, parts.params.prefill_window_tokens)
        self._in_flight = InFlight(self.fleet, parts.policies, parts.request_classifier, parts.prefixes)
        self._ejector = Ejector(self.fleet, parts.policies.ejection)
        self._use(parts)
        self._parts_for = parts_for
        self._states: dict[str, RequestState] = {}
        self._effects: list[Effect] = []
        self._has_answered = False
        self._handlers: dict[type, Callable[..., None]] = {
            events.Arrived: self._on_arrived,
            events.Accepted: self._on_accepted,
            events.FirstTokenReceived: self._on_first_token,
            events.LaneLengthExceeded: self._on_lane_length_exceeded,
            events.AttemptFinished: self._on_attempt_finished,
            events.AttemptFailed: self._on_attempt_failed,
            events.AttemptWithdrawn: self._on_attempt_withdrawn,
            events.ClientGone: self._on_client_gone,
            events.TimerFired: self._on_timer_fired,
            events.FleetChanged: self._on_fleet_changed,
            events.ReplicaReported: self._on_replica_reported,
            events.LoadDue: self._coordinate,
            events.ThresholdsReceived: self._coordinate,
            events.Reconfigured: self._on_reconfigured,
        }

    def _use(self, parts: DispatcherParts) -> None:
        policies, classifier, access = parts.policies, parts.request_classifier, parts.access
        self.policies, self.request_classifier, self.access = policies, classifier, access
        self._prefixes, self._params, self._subscribed = parts.prefixes, parts.params, policies.subscribed
        self._in_flight.use(policies, classifier, parts.prefixes)
        self._ejector.use(policies.ejection)
        self._queues = Queues(policies, access, self.fleet, classifier.rates)
        self._preemptor = Preemptor(policies.preemption, self._queues, access, self.fleet, self._in_flight)
        self._hedger = Hedger(policies, access, self.fleet, classifier.rates)
        self._recovery = Recovery(policies.retrying, classifier, access, fleet=self.fleet, params=parts.params)
        self._coordination = LoadExchange(policies.shedding)
        self._intake = Intake(policies, classifier, parts.planner, access, fleet=self.fleet, queues=self._queues)

    @property
    def report_period_s(self) -> float:
        """Between two ``LoadDue`` that it wants to be told; ``math.inf``: none."""
        return self._coordination.period_s

    @property
    def num_waiting_requests(self) -> int:
        """Requests that no replica has room for yet."""
        return len(self._queues)

    @property
    def num_open_requests(self) -> int:
        """Requests that are not answered, or whose attempts have not all ended."""
        return len(self._states)

    @property
    def num_open_attempts(self) -> int:
        """Attempts that hold a slot."""
        return len(self._in_flight)

    def gauges(self, now_s: float) -> Mapping[str, float]:
        """What is known of lanes, pools and queues: ``name``, ``name:lane``, ``name:pool``, or ``name:class:queue``."""
        of_parts = self.request_classifier.gauges(), self.access.gauges(), self._ejector.gauges()
        known = {name: value for each in (*of_parts, self._queues.gauges(now_s)) for name, value in each.items()}
        return {**known, "shed_fraction": self.policies.shedding.shed_fraction(now_s)}

    def handle(self, event: events.Event, now_s: float) -> Sequence[Effect]:
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
        effects: list[Effect] = []
        self._effects = self._in_flight.effects = self._ejector.effects = effects
        self._handlers[type(event)](event, now_s)
        if self._has_answered:
            self._has_answered = False
            self._ask_again(now_s)
        return effects

    # -- a request comes in -------------------------------------------------------------------------------------------

    def _on_arrived(self, event: events.Arrived, now_s: float) -> None:
        if event.request.request_id in self._states:
            raise InvariantViolation(f"request {event.request.request_id} arrived twice")
        for role in self.access.look(self.fleet, now_s):
            self._drain(role, now_s)
        decision = self._intake.take_in(event.request, now_s)
        request, outcome = decision.request, decision.outcome
        self._effects.extend(decision.records)
        if outcome is not None:
            self._effects.append(Respond(request_id=request.request_id, outcome=outcome))
            return
        state = RequestState.begin(request, decision.plan, decision.output_time_limit_s)
        self._states[request.request_id] = state
        if signals.Admitted in self._subscribed:
            self.policies.observe(signals.Admitted(request=request, at_s=now_s))
        self._effects.append(SetTimer(token=state.deadline_token, at_s=request.deadline_s))
        self._place(state, now_s, Reason.NO_REPLICA_AVAILABLE)
        self._settle(state)

    def _place(self, state: RequestState, now_s: float, otherwise: Reason) -> None:
        """Enqueues the stage and lets the queue move, or refuses the request for ``otherwise``."""
        self._effects.extend(state.enqueue())
        if self._queues.can_wait(state, now_s):
            self._queues.push(state, now_s)
            self._drain(state.stage, now_s)
        else:
            self._give_up(state, otherwise, now_s)

    def _send(self, state: RequestState, candidates: Candidates, now_s: float) -> None:
        attempt = self._in_flight.send(state, candidates, now_s)
        self._effects.extend(self._hedger.timers(state, attempt, now_s))

    def _hedge(self, attempt_id: str, now_s: float) -> None:
        """Sends a second attempt beside one that is still without a first token."""
        attempt = self._in_flight.get(attempt_id)
        if attempt is None or attempt.is_cancelled or attempt.has_first_token:
            return
        state = self._states[attempt.request_id]
        if target := self._hedger.target(state, attempt, now_s):
            self._in_flight.send(state, target, now_s, tied_to=self._hedger.tied_to(attempt))
        else:
            self._effects.append(self._hedger.later(attempt, now_s))

    # -- an attempt makes progress ------------------------------------------------------------------------------------

    def _on_accepted(self, event: events.Accepted, now_s: float) -> None:
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is not None:
            self._in_flight.move(attempt, event.replica_id)
            self._drain(attempt.stage, now_s)

    def _on_first_token(self, event: events.FirstTokenReceived, now_s: float) -> None:
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is None or attempt.is_given_up or attempt.has_first_token:
            return
        attempt.has_first_token = True
        self.fleet.end_prefill(attempt)
        if signals.FirstToken in self._subscribed:
            self.policies.observe(attempt.gave_first_token(now_s))
        self._win(self._states[attempt.request_id], attempt, now_s)
        if self._ejector.look(attempt, now_s) or self._params.prefill_window_tokens:
            self._drain(attempt.stage, now_s)

    def _on_lane_length_exceeded(self, event: events.LaneLengthExceeded, now_s: float) -> None:
        """The answer is longer than its lane is for."""
        if (attempt := self._in_flight.get(event.attempt_id)) and not attempt.is_given_up:
            self._in_flight.exceed_lane_length(self._states[attempt.request_id], attempt, event.output_tokens)

    def _win(self, state: RequestState, attempt: Attempt, now_s: float) -> None:
        """The attempt wins its stage: its rivals are cancelled, and in the last stage its tokens are the answer."""
        if beaten := state.rivals_of(attempt):
            self._effects.append(attempt.race(beaten))
            for rival in beaten:
                self._in_flight.supersede(rival)
        if state.is_last_stage:
            was_answering = state.is_answering
            self._effects.extend(state.commit(attempt, now_s))
            if signals.Answering in self._subscribed and not was_answering:
                self.policies.observe(signals.Answering(request=state.request, at_s=now_s))

    # -- an attempt ends ----------------------------------------------------------------------------------------------

    def _on_attempt_finished(self, event: events.AttemptFinished, now_s: float) -> None:
        attempt = self._close(event.attempt_id)
        if attempt is None:
            return
        state = self._states[attempt.request_id]
        if signals.Completed in self._subscribed:
            self.policies.observe(attempt.completed(event.output_tokens, now_s))
        self._ejector.look(attempt, now_s)
        if not attempt.is_given_up:
            if state.committed is None:
                self._win(state, attempt, now_s)
            if state.is_last_stage:
                output_tokens = state.num_emitted + event.output_tokens
                self.request_classifier.answered(state.whole_request, output_tokens, was_truncated=state.is_truncated)
                self._answer(state, Outcome(kind=OutcomeKind.COMPLETED), now_s, output_tokens)
            else:
                state.enter_next_stage(attempt)
                self._place(state, now_s, Reason.NO_REPLICA_AVAILABLE)
        self._settle(state)
        self._drain(attempt.stage, now_s)

    def _on_attempt_failed(self, event: events.AttemptFailed, now_s: float) -> None:
        attempt = self._close(event.attempt_id)
        if attempt is None:
            return
        state = self._states[attempt.request_id]
        if event.reason is Reason.REPLICA_LOST:
            self._ejector.lost(attempt, now_s, now_s + self._params.quarantine_s)
        if attempt.is_cancelled:
            if attempt.ends_as in self._subscribed:
                self.policies.observe(attempt.stopped(now_s))
            if attempt.is_preempted and not state.has_active_attempt():
                self._requeue_preempted(state, attempt, event.output_tokens, now_s)
        else:
            if signals.Failed in self._subscribed:
                self.policies.observe(attempt.failed(event.reason, now_s))
            self._ejector.look(attempt, now_s)
            self._recover(state, attempt, event, now_s)
        self._settle(state)
        self._drain(attempt.stage, now_s)

    def _on_attempt_withdrawn(self, event: events.AttemptWithdrawn, now_s: float) -> None:
        """The one that it was tied to goes on; should that one have ended meanwhile, the request needs another."""
        attempt = self._in_flight.get(event.attempt_id)
        if attempt is None or attempt.is_cancelled:
            self._on_attempt_failed(events.AttemptFailed(attempt_id=event.attempt_id, reason=Reason.CLIENT_GONE), now_s)
            return
        state = self._states[attempt.request_id]
        self._close(event.attempt_id)
        if not self._in_flight.withdraws(state, attempt, now_s):
            if state.lost_beside:
                self._repeat(state, *state.lost_beside, now_s)
            else:
                self._place(state, now_s, Reason.NO_REPLICA_AVAILABLE)
        self._settle(state)
        self._drain(attempt.stage, now_s)

    def _requeue_preempted(self, state: RequestState, attempt: Attempt, output_tokens: int, now_s: float) -> None:
        """A preempted request waits for its turn again, behind the one that it made room for."""
        emitted = output_tokens if state.committed == attempt.attempt_id else 0
        self._effects.append(attempt.preemption(emitted))
        state.requeue_preempted(self.request_classifier.rest_of(state.request, emitted), emitted)
        self._drain(attempt.stage, now_s)
        self._place(state, now_s, Reason.NO_REPLICA_AVAILABLE)

    def _recover(self, state: RequestState, attempt: Attempt, event: events.AttemptFailed, now_s: float) -> None:
        """A lost attempt is repeated elsewhere; after its first token the answer is resumed there."""
        if event.reason is Reason.REPLICA_LOST:
            state.failed_replicas |= {attempt.replica_id}
        if state.has_active_attempt():
            state.lost_beside = attempt, event
        else:
            self._repeat(state, attempt, event, now_s)

    def _repeat(self, state: RequestState, attempt: Attempt, event: events.AttemptFailed, now_s: float) -> None:
        """Now, after a while, or not at all."""
        decision = self._recovery.decide(state, attempt, event.reason, now_s)
        if isinstance(decision, GiveUp):
            self._give_up(state, event.reason, now_s, may_retry=decision.may_retry)
            return
        self._effects.extend(self._recovery.prepare(state, attempt, event, decision, now_s))
        if not state.backing_off:
            self._place(state, now_s, event.reason)

    def _try_again(self, state: RequestState, now_s: float) -> None:
        if reason := self._recovery.end_back_off(state, now_s):
            self._place(state, now_s, reason)
            self._settle(state)

    # -- the world changes --------------------------------------------------------------------------------------------

    def _on_client_gone(self, event: events.ClientGone, now_s: float) -> None:
        state = self._states.get(event.request_id)
        if state is not None and not state.is_answered:
            self._answer(state, Outcome(kind=OutcomeKind.CANCELLED, reason=Reason.CLIENT_GONE), now_s)
            self._settle(state)

    def _on_timer_fired(self, event: events.TimerFired, now_s: float) -> None:
        subject, _, purpose = event.token.rpartition(":")
        if purpose == "hedge":
            self._hedge(subject, now_s)
        elif self._ejector.ends(event.token):
            for role in Role:
                self._drain(role, now_s)
        elif (state := self._states.get(subject)) is None or state.is_answered:
            return
        elif purpose == "output_time_limit":
            self._effects.extend(state.truncate())
        elif purpose == "retry":
            self._try_again(state, now_s)
        else:
            self._give_up(state, Reason.DEADLINE_EXCEEDED, now_s)
            self._settle(state)

    def _on_fleet_changed(self, event: events.FleetChanged, now_s: float) -> None:
        for replica_id in self.fleet.replace(event.pool, event.role, event.replicas):
            self._prefixes.forget(replica_id)
            self._ejector.forget(replica_id)
        self._ejector.keep_one(event.pool, now_s)
        self._drain(event.role, now_s)

    def _on_replica_reported(self, event: events.ReplicaReported, now_s: float) -> None:
        self.fleet.report(event.replica_id, event.prefill_tokens, event.kv_tokens, event.kv_cache_usage)
        replica = self.fleet.get(event.replica_id)
        if replica is not None and self._params.prefill_window_tokens:
            self._drain(replica.role, now_s)
        self._ask_again(now_s)

    def _coordinate(self, event: events.LoadDue | events.ThresholdsReceived, now_s: float) -> None:
        self._effects.extend(self._coordination.handle(event, now_s))

    def _on_reconfigured(self, event: events.Reconfigured, now_s: float) -> None:
        """What is under way goes on, and who waits is enqueued in the new queues."""
        before = self._queues
        self._use(self._parts_for(event))
        self.fleet.set_prefill_window(self._params.prefill_window_tokens)
        for state in self._states.values():
            state.request = self.request_classifier.put_in_lane(state.request, self.fleet, now_s)
        self._queues.take_over(before, now_s)
        for role in Role:
            self._drain(role, now_s)

    def _ask_again(self, now_s: float) -> None:
        """Somebody has ended, here or elsewhere: those whom admission told to wait may start now."""
        for stage in tuple(self._queues.held.values()):
            self._drain(stage, now_s)

    def _drain(self, stage: Role, now_s: float) -> None:
        """Sends waiting requests while there is room, and refuses those that have nobody left to wait for."""
        for state, move in self._queues.moves(stage, now_s):
            if isinstance(move, Reject):
                self._answer(state, refusal(state.request.request_id, move), now_s)
            elif move:
                self._send(state, move, now_s)
                continue
            else:
                self._give_up(state, Reason.NO_REPLICA_AVAILABLE, now_s)
            self._settle(state)
        if self._in_flight.stoppable:
            for queue in self._queues.blocked(stage, now_s):
                self._preemptor.make_room(queue, now_s)

    # -- a request ends -----------------------------------------------------------------------------------------------

    def _give_up(self, state: RequestState, reason: Reason, now_s: float, *, may_retry: bool = True) -> None:
        self._answer(state, given_up(state, reason, self._params.retry_after_s, may_retry=may_retry), now_s)

    def _answer(self, state: RequestState, outcome: Outcome, now_s: float, output_tokens: int = 0) -> None:
        """The one place where a request is answered: stops its timer, its wait and its attempts."""
        state.is_answered = self._has_answered = True
        self._effects.extend(state.timers_to_cancel())
        self._queues.remove(state)
        for attempt in state.open_attempts.values():
            attempt.is_preempted = False  # there is nothing to resume
            if not attempt.is_cancelled:
                self._in_flight.cancel(attempt)
        self._effects.append(Respond(request_id=state.request.request_id, outcome=outcome))
        if signals.Ended in self._subscribed:
            self.policies.observe(state.ended(outcome, output_tokens, now_s))

    def _close(self, attempt_id: str) -> Attempt | None:
        """Gives the attempt's slot back, the first time."""
        attempt = self._in_flight.close(attempt_id)
        if attempt is not None:
            del self._states[attempt.request_id].open_attempts[attempt_id]
        return attempt

    def _settle(self, state: RequestState) -> None:
        """Forgets a request that is answered and holds no slot any more."""
        if state.is_done:
            self._states.pop(state.request.request_id, None)
