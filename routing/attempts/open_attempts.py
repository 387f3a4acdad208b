"""Open attempts: sent, stopped, and closed, each slot taken once and given back once."""

from collections.abc import Iterable, Iterator
from heapq import merge

from policies import signals
from policies.candidates import Candidates
from policies.contracts import MOST_PLACE, PolicySet
from policies.engine_order import ByArrival
from policies.errors import PolicyMisbehaved
from policies.views import Priority, ReplicaView, RequestView, Role
from routing.fleet.first_token import FirstTokenEstimator
from routing.fleet.fleet import Fleet
from routing.intake.intake import RequestClassifier
from routing.prefixes.prefix_tracking import PrefixTracker, note_prompt
from routing.request.effects import Effect, SharePrompt
from routing.request.news import SentPrompt
from routing.request.request import Attempt, Request
from routing.request.states import UNDER_WAY, AttemptState

FIRST_PLACE = {priority: priority.rank * (MOST_PLACE + 1) for priority in Priority}
"""Inside an engine: those of a class that matters more go before all others."""


class Stoppable:
    """A sheddable attempt in flight, as policies see it: a :class:`policies.attempt_views.InFlightView`.

    Args:
        request: Its request.
        attempt: The attempt.
    """

    __slots__ = ("_request", "attempt")

    def __init__(self, request: Request, attempt: Attempt) -> None:
        self._request = request
        self.attempt = attempt

    @property
    def request(self) -> RequestView:
        return self._request.view

    @property
    def replica_id(self) -> str:
        return self.attempt.replica_id

    @property
    def sent_at_s(self) -> float:
        return self.attempt.sent_at_s

    @property
    def num_preemptions(self) -> int:
        return self._request.num_preemptions

    @property
    def can_stop(self) -> bool:
        """Whether nothing is lost but time: no KV is on its way, and what has been emitted can be resumed."""
        attempt, request = self.attempt, self._request
        if attempt.state not in UNDER_WAY or request.is_truncated:
            return False
        if attempt.stage is Role.DECODE and attempt.state is AttemptState.SENT:
            return False
        return request.view.is_resumable or not request.is_answering


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
    """All attempts of one dispatcher that hold a slot, each opened once and closed once.

    A late or doubled event finds nothing.

    Args:
        fleet: Where the slots are.
        policies: The balancers among them pick replicas.
        request_classifier: Knows when an answer exceeds its lane's length.
        first_tokens: Is told how long first tokens took.

    Attributes:
        stoppable: The sheddable ones.
    """

    def __init__(
        self,
        fleet: Fleet,
        policies: PolicySet,
        request_classifier: RequestClassifier,
        prefixes: PrefixTracker,
        *,
        first_tokens: FirstTokenEstimator,
    ) -> None:
        self._fleet = fleet
        self.use(policies, request_classifier, prefixes, first_tokens)
        self._open: dict[str, Attempt] = {}
        self.stoppable = StoppableAttempts()

    def use(
        self,
        policies: PolicySet,
        request_classifier: RequestClassifier,
        prefixes: PrefixTracker,
        first_tokens: FirstTokenEstimator,
        *,
        shares_prompts: bool = False,
    ) -> None:
        """From here on attempts are sent by these; those in flight stay as they are."""
        self._policies = policies
        self._subscribed = policies.subscribed
        self._has_engine_order = not isinstance(policies.engine_order, ByArrival)
        self._request_classifier = request_classifier
        self._prefixes = prefixes
        self._first_tokens = first_tokens
        self._shares_prompts = shares_prompts

    def __len__(self) -> int:
        return len(self._open)

    def get(self, attempt_id: str) -> Attempt | None:
        """The open attempt of that id, if there is one."""
        return self._open.get(attempt_id)

    def under_way(self) -> Iterator[Attempt]:
        """Those whose end has not been asked for; nobody may be sent or closed meanwhile."""
        return (each for each in self._open.values() if each.state in UNDER_WAY)

    def send(
        self, request: Request, candidates: Candidates, now_s: float, *, tied_to: str | None = None
    ) -> tuple[Attempt, tuple[Effect, ...]]:
        """Sends a request's next attempt to one of the candidates.

        Args:
            request: The request.
            candidates: Replicas with room; the balancer picks one.
            now_s: Now.
            tied_to: The attempt under way with which it shares an execution claim.

        Returns:
            The attempt, and what starts it.

        Raises:
            PolicyMisbehaved: The balancer picked another; nothing has been sent.
        """
        view, balancer = request.view, self._policies.balancers[request.stage]
        replica = balancer.pick(view, candidates, now_s)
        if not candidates.has(replica):
            raise PolicyMisbehaved("balancing", balancer, f"one of the {len(candidates)} candidates", replica)
        cached_tokens = 0
        if view.prefix_blocks:
            cached_tokens = note_prompt(self._prefixes, view, request.stage, replica.replica_id)
        is_loaded = not view.adapter or replica.has_loaded(view.adapter)
        load_tokens = None if is_loaded else self._first_tokens.rates.load_tokens
        attempt = request.send(replica.replica_id, cached_tokens, now_s, tied_to=tied_to, load_tokens=load_tokens)
        self._open[attempt.attempt_id] = attempt
        limits_tokens = self._request_classifier.lane_limits_tokens(view, request.num_emitted)
        sent = attempt.sent(replica.pool, limits_tokens, self._engine_priority(attempt, view))
        effects: tuple[Effect, ...] = attempt.placement(len(candidates)), sent
        if self._shares_prompts and view.prefix_blocks and request.stage is not Role.DECODE:
            effects += (SharePrompt(prompt=SentPrompt(replica.replica_id, view.prefix_blocks)),)
        self._fleet.take(attempt)  # from here on the candidates are others
        if view.priority is Priority.SHEDDABLE:
            self.stoppable.add(Stoppable(request, attempt))
        if signals.Started in self._subscribed and request.num_sent == 1:
            self._policies.observe_request(signals.Started(request=view, at_s=now_s), request.permits)
        self._expect(attempt, view, replica)
        return attempt, effects

    def _engine_priority(self, attempt: Attempt, view: RequestView) -> int:
        """Its class first, and within that what the policy says."""
        first_place = FIRST_PLACE[view.priority]
        if not self._has_engine_order:
            return first_place
        return first_place + self._policies.engine_order.place(view, attempt.prefill_tokens)

    def _expect(self, attempt: Attempt, view: RequestView, replica: ReplicaView) -> None:
        """When its first token should come, and a word of it to the policies."""
        if attempt.stage is not Role.DECODE and self._first_tokens.rates.are_known:
            attempt.expect(self._first_tokens.by_profile_s(attempt, view.prompt_tokens, replica))
        if signals.Dispatched in self._subscribed:
            expected_s = self._first_tokens.corrected_s(attempt.by_profile_s) if attempt.by_profile_s else 0.0
            self._policies.observe(attempt.dispatched(expected_s))

    def first_token(self, attempt: Attempt, now_s: float) -> None:
        """An attempt's prompt is computed, and how long that took is known."""
        self._fleet.end_prefill(attempt)
        attempt.first_token()
        if attempt.by_profile_s:
            self._first_tokens.learn(attempt.by_profile_s, now_s - attempt.sent_at_s, now_s)

    def move(self, attempt: Attempt, replica_id: str) -> None:
        """A replica took the attempt, perhaps another than the one that was picked."""
        if replica_id != attempt.replica_id:
            stoppable = self.stoppable.discard(attempt)
            self._fleet.move(attempt, replica_id)
            if stoppable is not None:
                self.stoppable.add(stoppable)

    def exceed_lane_length(self, request: Request, attempt: Attempt, output_tokens: int) -> Effect:
        """An answer that is longer than its lane is for continues, and counts for what it is."""
        output_tokens += request.num_emitted
        before = request.view
        request.revise(self._request_classifier.demote(before, output_tokens))
        self._fleet.grow(attempt, max(attempt.kv_tokens, request.view.kv_tokens))
        return attempt.demotion(before.lane, request.view.lane, output_tokens)

    def close(self, request: Request, attempt: Attempt) -> None:
        """Gives the attempt's slot back."""
        del self._open[attempt.attempt_id]
        request.close(attempt)
        self._fleet.give_back(attempt)
        if self.stoppable:
            self.stoppable.discard(attempt)
