"""Attempts in flight: sent, stopped, and closed, each slot taken once and given back once."""

from policies import signals
from policies.contracts import PolicySet
from policies.errors import PolicyMisbehaved
from policies.views import Candidates, Priority
from routing.attempts import Attempt, AttemptLedger
from routing.door import Door
from routing.effects import Cancel, Effect
from routing.expectation import first_token_s
from routing.fleet import Fleet
from routing.life import RequestLife
from routing.prefix_tracking import PrefixTracker, note_prompt
from routing.stoppable import Stoppable, StoppableAttempts


class InFlight:
    """All attempts of one dispatcher that hold a slot.

    Args:
        fleet: Where the slots are.
        policies: The balancers among them pick replicas.
        door: Knows when an answer outgrows its lane.
        prefixes: Is told where prompts go.

    Attributes:
        effects: Where effects go; another list for each event.
        stoppable: The sheddable ones.
    """

    def __init__(self, fleet: Fleet, policies: PolicySet, door: Door, prefixes: PrefixTracker) -> None:
        self._fleet = fleet
        self.use(policies, door, prefixes)
        self._ledger = AttemptLedger()
        self.effects: list[Effect] = []
        self.stoppable = StoppableAttempts()

    def use(self, policies: PolicySet, door: Door, prefixes: PrefixTracker) -> None:
        """From here on attempts are sent by these; those in flight go on."""
        self._policies = policies
        self._heard = policies.heard
        self._door = door
        self._prefixes = prefixes

    def __len__(self) -> int:
        return len(self._ledger)

    def get(self, attempt_id: str) -> Attempt | None:
        """The open attempt of that id, if there is one."""
        return self._ledger.get(attempt_id)

    def send(self, life: RequestLife, candidates: Candidates, now_s: float, *, tied_to: str | None = None) -> Attempt:
        """Sends a request's next attempt to one of the candidates.

        Args:
            life: The request.
            candidates: Replicas with room; the balancer picks one.
            now_s: Now.
            tied_to: The attempt under way with which it shares a claim.

        Raises:
            PolicyMisbehaved: The balancer picked another; nothing has been sent.
        """
        balancer = self._policies.balancers[life.stage]
        replica = balancer.pick(life.request, candidates, now_s)
        if not candidates.has(replica):
            raise PolicyMisbehaved("balancing", balancer, f"one of the {len(candidates)} candidates", replica)
        cached_tokens = note_prompt(self._prefixes, life.request, life.stage, replica.replica_id)
        attempt = life.new_attempt(replica.replica_id, cached_tokens, now_s, tied_to=tied_to)
        self._ledger.open(attempt)
        self.effects.append(attempt.placement(len(candidates)))
        self.effects.append(attempt.send(replica.pool, self._door.outgrown_at(life.request, life.num_emitted)))
        self._fleet.take(attempt)  # from here on the candidates are others
        if life.request.priority is Priority.SHEDDABLE:
            self.stoppable.add(Stoppable(life, attempt))
        if signals.Started in self._heard and life.num_sent == 1:
            self._policies.observe(signals.Started(request=life.request, at_s=now_s))
        if signals.Dispatched in self._heard:
            expected_s = first_token_s(life.request, attempt, replica, self._door.rates)
            self._policies.observe(attempt.dispatched(expected_s))
        return attempt

    def move(self, attempt: Attempt, replica_id: str) -> None:
        """A replica took the attempt, perhaps another than the one that was picked."""
        if replica_id != attempt.replica_id:
            stoppable = self.stoppable.discard(attempt)
            self._fleet.move(attempt, replica_id)
            if stoppable is not None:
                self.stoppable.add(stoppable)

    def outgrow(self, life: RequestLife, attempt: Attempt, output_tokens: int) -> None:
        """An answer that is longer than its lane is for goes on, and counts for what it is."""
        output_tokens += life.num_emitted
        before, life.request = life.request, self._door.demote(life.request, output_tokens)
        self._fleet.grow(attempt, max(attempt.kv_tokens, life.request.kv_tokens))
        self.effects.append(attempt.demotion(before.lane, life.request.lane, output_tokens))

    def yields(self, life: RequestLife, attempt: Attempt, now_s: float) -> bool:
        """Takes note of an attempt that gave way to the one that it was tied to; whether that one is still under way.

        If it is not, it was stopped or lost; unless it was lost, neither of the two counts as a try.
        """
        attempt.is_superseded = True
        if signals.Superseded in self._heard:
            self._policies.observe(attempt.stopped(now_s))
        winner = life.active_attempt()
        if winner is None:
            life.num_free += life.lost_beside is None
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
        """Asks for an attempt's end so that another request gets its slot; its own request is to go on."""
        attempt.is_preempted = True
        self.cancel(attempt)

    def close(self, attempt_id: str) -> Attempt | None:
        """Gives the attempt's slot back, the first time."""
        attempt = self._ledger.close(attempt_id)
        if attempt is not None:
            self._fleet.give_back(attempt)
            self.stoppable.discard(attempt)
        return attempt
