"""Open attempts: sent, stopped, and closed, each slot taken once and given back once."""

from collections.abc import Iterable, Iterator
from heapq import merge

from policies import signals
from policies.contracts import PolicySet
from policies.errors import InvariantViolation, PolicyMisbehaved
from policies.views import Candidates, Priority, RequestView, Role
from routing.attempts.expectation import first_token_s
from routing.fleet.fleet import Fleet
from routing.intake.intake import RequestClassifier
from routing.prefixes.prefix_tracking import PrefixTracker, note_prompt
from routing.request.attempt import Attempt
from routing.request.effects import Cancel, Effect
from routing.request.state import RequestState


class Stoppable:
    """A sheddable attempt in flight, as policies see it: a :class:`policies.attempt_views.InFlightView`.

    Args:
        state: Its request.
        attempt: The attempt.
    """

    __slots__ = ("attempt", "state")

    def __init__(self, state: RequestState, attempt: Attempt) -> None:
        self.state = state
        self.attempt = attempt

    @property
    def request(self) -> RequestView:
        return self.state.request

    @property
    def replica_id(self) -> str:
        return self.attempt.replica_id

    @property
    def sent_at_s(self) -> float:
        return self.attempt.sent_at_s

    @property
    def num_preemptions(self) -> int:
        return self.state.num_preemptions

    @property
    def can_stop(self) -> bool:
        """Whether nothing is lost but time: no KV is on its way, and what has been emitted can be resumed."""
        attempt, state = self.attempt, self.state
        if attempt.is_cancelled or state.is_truncated or (attempt.stage is Role.DECODE and not attempt.has_first_token):
            return False
        return state.request.is_resumable or not state.is_answering


class StoppableAttempts:
    """All sheddable attempts in flight, by replica: those that can give their slots to another request."""

    def __init__(self) -> None:
        self._by_replica: dict[str, dict[str, Stoppable]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_replica)

    def add(self, stoppable: Stoppable) -> None:
        """An attempt holds a slot from here on."""
        attempt = stoppable.attempt
        self._by_replica.setdefault(attempt.replica_id, {})[attempt.attempt_id] = stoppable

    def discard(self, attempt: Attempt) -> Stoppable | None:
        """It does not any more, if it did."""
        here = self._by_replica.get(attempt.replica_id)
        found = None if here is None else here.pop(attempt.attempt_id, None)
        if here is not None and not here:
            del self._by_replica[attempt.replica_id]
        return found

    def num_on(self, replica_id: str) -> int:
        """How many holds a slot on a replica."""
        return len(self._by_replica.get(replica_id, ()))

    def newest_first(self, replica_ids: Iterable[str]) -> Iterator[Stoppable]:
        """Those on some replicas, the latest sent first; nobody may be added or discarded meanwhile."""
        on_each = (reversed(self._by_replica[each].values()) for each in replica_ids if each in self._by_replica)
        return merge(*on_each, key=_age)


def _age(stoppable: Stoppable) -> float:
    return -stoppable.attempt.sent_at_s


class InFlight:
    """All attempts of one dispatcher that hold a slot.

    Args:
        fleet: Where the slots are.
        policies: The balancers among them pick replicas.
        request_classifier: Knows when an answer exceeds its lane's length.
        prefixes: Is told where prompts go.

    Attributes:
        effects: Where effects go; another list for each event.
        stoppable: The sheddable ones.
    """

    def __init__(
        self, fleet: Fleet, policies: PolicySet, request_classifier: RequestClassifier, prefixes: PrefixTracker
    ) -> None:
        self._fleet = fleet
        self.use(policies, request_classifier, prefixes)
        self._open = OpenAttempts()
        self.effects: list[Effect] = []
        self.stoppable = StoppableAttempts()

    def use(self, policies: PolicySet, request_classifier: RequestClassifier, prefixes: PrefixTracker) -> None:
        """From here on attempts are sent by these; those in flight go on."""
        self._policies = policies
        self._subscribed = policies.subscribed
        self._request_classifier = request_classifier
        self._prefixes = prefixes

    def __len__(self) -> int:
        return len(self._open)

    def get(self, attempt_id: str) -> Attempt | None:
        """The open attempt of that id, if there is one."""
        return self._open.get(attempt_id)

    def send(self, state: RequestState, candidates: Candidates, now_s: float, *, tied_to: str | None = None) -> Attempt:
        """Sends a request's next attempt to one of the candidates.

        Args:
            state: The request.
            candidates: Replicas with room; the balancer picks one.
            now_s: Now.
            tied_to: The attempt under way with which it shares an execution claim.

        Raises:
            PolicyMisbehaved: The balancer picked another; nothing has been sent.
        """
        balancer = self._policies.balancers[state.stage]
        replica = balancer.pick(state.request, candidates, now_s)
        if not candidates.has(replica):
            raise PolicyMisbehaved("balancing", balancer, f"one of the {len(candidates)} candidates", replica)
        cached_tokens = note_prompt(self._prefixes, state.request, state.stage, replica.replica_id)
        attempt = state.new_attempt(replica.replica_id, cached_tokens, now_s, tied_to=tied_to)
        self._open.open(attempt)
        self.effects.append(attempt.placement(len(candidates)))
        self.effects.append(
            attempt.send(replica.pool, self._request_classifier.lane_limits_tokens(state.request, state.num_emitted))
        )
        self._fleet.take(attempt)  # from here on the candidates are others
        if state.request.priority is Priority.SHEDDABLE:
            self.stoppable.add(Stoppable(state, attempt))
        if signals.Started in self._subscribed and state.num_sent == 1:
            self._policies.observe(signals.Started(request=state.request, at_s=now_s))
        if signals.Dispatched in self._subscribed:
            expected_s = first_token_s(state.request, attempt, replica, self._request_classifier.rates)
            self._policies.observe(attempt.dispatched(expected_s))
        return attempt

    def move(self, attempt: Attempt, replica_id: str) -> None:
        """A replica took the attempt, perhaps another than the one that was picked."""
        if replica_id != attempt.replica_id:
            stoppable = self.stoppable.discard(attempt)
            self._fleet.move(attempt, replica_id)
            if stoppable is not None:
                self.stoppable.add(stoppable)

    def exceed_lane_length(self, state: RequestState, attempt: Attempt, output_tokens: int) -> None:
        """An answer that is longer than its lane is for goes on, and counts for what it is."""
        output_tokens += state.num_emitted
        before, state.request = state.request, self._request_classifier.demote(state.request, output_tokens)
        self._fleet.grow(attempt, max(attempt.kv_tokens, state.request.kv_tokens))
        self.effects.append(attempt.demotion(before.lane, state.request.lane, output_tokens))

    def withdraws(self, state: RequestState, attempt: Attempt, now_s: float) -> bool:
        """Takes note of an attempt that was withdrawn for the one that it was tied to; whether that one is still under
        way.

        If it is not, it was stopped or lost; unless it was lost, neither of the two counts as an attempt that the
        request has had.
        """
        attempt.is_superseded = True
        if signals.Superseded in self._subscribed:
            self._policies.observe(attempt.stopped(now_s))
        winner = state.active_attempt()
        if winner is None:
            state.num_free += state.lost_beside is None
            return False
        self.effects.append(winner.race([attempt]))
        return True

    def cancel(self, attempt: Attempt) -> None:
        """Asks for an attempt's end, which is still to come."""
        attempt.is_cancelled = True
        self.effects.append(Cancel(attempt_id=attempt.attempt_id))

    def supersede(self, attempt: Attempt) -> None:
        """Asks for an attempt's end because another of its stage has won."""
        attempt.is_superseded = True
        self.cancel(attempt)

    def preempt(self, attempt: Attempt) -> None:
        """Asks for an attempt's end so that another request gets its slot; its own request is to be resumed."""
        attempt.is_preempted = True
        self.cancel(attempt)

    def close(self, attempt_id: str) -> Attempt | None:
        """Gives the attempt's slot back, the first time."""
        attempt = self._open.close(attempt_id)
        if attempt is not None:
            self._fleet.give_back(attempt)
            self.stoppable.discard(attempt)
        return attempt


class OpenAttempts:
    """All open attempts. An attempt is opened once and closed once; a late or doubled event finds nothing."""

    def __init__(self) -> None:
        self._open: dict[str, Attempt] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, attempt: Attempt) -> None:
        """Raises ``InvariantViolation`` when the id is in use."""
        if attempt.attempt_id in self._open:
            raise InvariantViolation(f"attempt {attempt.attempt_id} is open already")
        self._open[attempt.attempt_id] = attempt

    def get(self, attempt_id: str) -> Attempt | None:
        """The open attempt of that id, if there is one."""
        return self._open.get(attempt_id)

    def close(self, attempt_id: str) -> Attempt | None:
        """Takes the attempt out, the first time; ``None`` ever after."""
        return self._open.pop(attempt_id, None)
