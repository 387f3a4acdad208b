"""Two attempts of one request in virtual time, of which one computes the prompt.

The execution claim is kept on the first attempt's replica, which tests it at no cost. The second attempt's replica asks
for it and holds its next step back until the answer is there, a network delay there and one back. So both may be about
to begin at once, but never do both begin. When the first one begins the second one is told, and leaves its queue.
"""

from cluster.sim.event_queue import EventQueue, Rank
from cluster.sim.replica import SimAttempt, SimReplica
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

    # -- on the second attempt's replica ------------------------------------------------------------------------------

    def _ask(self, now_s: float) -> None:
        self._events.push(now_s + self._network_delay_s, Rank.TO_REPLICA, self._decide)

    def _lose(self, now_s: float, _: None) -> None:
        self._second_at.withdraw(now_s, self._second)

    def _win(self, now_s: float, _: None) -> None:
        self._second_at.grant(now_s, self._second)

    # -- on the first attempt's replica -------------------------------------------------------------------------------

    def _meet(self, now_s: float, _: None) -> None:
        if not self._first_at.share(self._first, self._tell_begun) and self._first_at.has_begun(self._first):
            self._tell_begun(now_s)

    def _tell_begun(self, now_s: float) -> None:
        self._events.push(now_s + self._network_delay_s, Rank.TO_REPLICA, self._lose)

    def _decide(self, now_s: float, _: None) -> None:
        """The execution claim is the first one's if it has begun. Where it is gone there is nobody to give way."""
        if self._first_at.has_begun(self._first):
            self._tell_begun(now_s)
        else:
            self._first_at.withdraw(now_s, self._first)
            answer_s = self._first_at.answers_s(now_s)
            self._events.push(answer_s + self._network_delay_s, Rank.TO_REPLICA, self._win)
