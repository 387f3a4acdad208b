"""Two attempts of one request in virtual time, of which one computes the prompt.

The engine of the first attempt keeps the execution claim and tests it at no cost. That of the second attempt asks for
it and holds its next step back until the answer is there, a network delay there and one back. So both may be about to
begin at once, but never do both begin. When the first one begins the second one is told, and leaves its queue.
"""

from cluster.sim.attempt import SimAttempt
from cluster.sim.event_queue import EventQueue, Rank
from cluster.sim.replica import SimReplica
from engines.model.messages import AskClaim, Begun, GrantClaim, Meet
from engines.model.sequences import ExecutionClaim

Placed = tuple[SimAttempt, SimReplica]
"""An attempt and where it is."""


class SimTiedAttempts:
    """What two replicas say to each other about one prompt.

    Args:
        first: The attempt whose replica keeps the execution claim.
        second: The other one, which has not been sent yet.
        events: Where messages go.
        network_delay_s: Of a message between two replicas.
    """

    def __init__(self, first: Placed, second: Placed, events: EventQueue, network_delay_s: float) -> None:
        self._first, self._first_at = first
        self._second, self._second_at = second
        self._events = events
        self._network_delay_s = network_delay_s

    def tie(self, now_s: float) -> None:
        """The second attempt is being sent; its replica tells the first one's."""
        self._second.sequence.claim = ExecutionClaim.WANTED
        self._second.on_turn = self._ask
        self._events.push(now_s + 2 * self._network_delay_s, Rank.TO_REPLICA, self._meet)

    # -- on the first attempt's replica -------------------------------------------------------------------------------

    def _meet(self, now_s: float, _: None) -> None:
        first_id = self._first.attempt_id
        if Begun(first_id) in self._first_at.tell(now_s, Meet(first_id)):
            self._tell_begun(now_s)
        else:
            self._first.on_turn = self._tell_begun

    def _decide(self, now_s: float, _: None) -> None:
        """A replica that is dead says nothing, and the second one may begin when that is known."""
        first_id = self._first.attempt_id
        if Begun(first_id) in self._first_at.tell(now_s, AskClaim(first_id)):
            self._tell_begun(now_s)
        else:
            answer_s = self._first_at.answers_s(now_s) + self._network_delay_s
            granted = GrantClaim(self._second.attempt_id)
            self._events.push(answer_s, Rank.TO_REPLICA, self._second_at.tell, granted)

    # -- on their way to the other one --------------------------------------------------------------------------------

    def _ask(self, now_s: float) -> None:
        self._events.push(now_s + self._network_delay_s, Rank.TO_REPLICA, self._decide)

    def _tell_begun(self, now_s: float) -> None:
        begun = Begun(self._second.attempt_id)
        self._events.push(now_s + self._network_delay_s, Rank.TO_REPLICA, self._second_at.tell, begun)
