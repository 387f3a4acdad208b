"""Makes room for those that wait: sheddable attempts are stopped, and their requests go on later."""

from collections.abc import Iterator, Sequence

from policies.attempt_views import InFlightView
from policies.contracts import PreemptionPolicy
from policies.errors import PolicyMisbehaved
from policies.views import Priority, ReplicaView
from routing.attempts.open_attempts import InFlight, Stoppable, StoppableAttempts
from routing.fleet.fleet import Fleet
from routing.lanes.access import LaneAccess
from routing.queues.queues import Line, WaitingLines


class Places:
    """A :class:`policies.attempt_views.PlacesView`; valid until the next event.

    Args:
        replicas: Those that the waiting request may use.
        fleet: Knows what would make room on them.
        stoppable: Who could be stopped.
        num_promised: How many have been told to give way to those in the same line and have not yet.
    """

    def __init__(
        self, replicas: Sequence[ReplicaView], fleet: Fleet, stoppable: StoppableAttempts, num_promised: int
    ) -> None:
        self._replicas = replicas
        self._fleet = fleet
        self._stoppable = stoppable
        self._num_promised = num_promised

    @property
    def num_places(self) -> int:
        return sum(each.max_ongoing_requests for each in self._replicas)

    @property
    def num_claimed(self) -> int:
        held = (each.num_ongoing_requests - self._stoppable.num_on(each.replica_id) for each in self._replicas)
        return sum(held) + self._num_promised

    def stoppable(self) -> Iterator[InFlightView]:
        here = self._stoppable.newest_first(each.replica_id for each in self._replicas)
        return (each for each in here if each.can_stop and self._makes_room(each))

    def _makes_room(self, stoppable: Stoppable) -> bool:
        replica = self._fleet.get(stoppable.replica_id)
        return replica is not None and replica.has_room_without(stoppable.attempt.prefill_tokens)


class Preemptor:
    """Asks the policy when somebody above sheddable waits and there is no room, and stops whom it names.

    Nobody is stopped twice for the same request: places that are about to be free count as found.

    Args:
        policy: Names them.
        lines: Where requests wait.
        access: Which replicas they may use.
        fleet: All replicas.
        in_flight: All attempts.
    """

    def __init__(
        self, policy: PreemptionPolicy, lines: WaitingLines, access: LaneAccess, fleet: Fleet, in_flight: InFlight
    ) -> None:
        self._policy = policy
        self._lines = lines
        self._access = access
        self._fleet = fleet
        self._in_flight = in_flight
        self._promised: dict[str, list[str]] = {}

    def make_room(self, line: Line, now_s: float) -> None:
        """For those in a line whose head finds no room.

        Raises:
            PolicyMisbehaved: The policy named what can't be stopped, or too many; nobody has been stopped.
        """
        request = line.peek(now_s).request
        if request.priority is Priority.SHEDDABLE:
            return
        promised = self._still_promised(line.name)
        num_wanted = line.num_at_least(request.priority) - len(promised)
        if num_wanted <= 0:
            return
        replicas = self._access.live_for(line.name, self._fleet, now_s)
        places = Places(replicas, self._fleet, self._in_flight.stoppable, len(promised))
        for attempt in self._checked(self._policy.victims(request, num_wanted, places, now_s), num_wanted):
            promised.append(attempt.attempt.attempt_id)
            self._in_flight.preempt(attempt.attempt)

    def _still_promised(self, line: str) -> list[str]:
        """Attempts that have been told to give way to those in a line and still hold their places."""
        promised = [each for each in self._promised.get(line, ()) if self._in_flight.get(each) is not None]
        self._promised[line] = promised
        return promised

    def _checked(self, victims: Sequence[InFlightView], num_wanted: int) -> list[Stoppable]:
        checked = [each for each in victims if isinstance(each, Stoppable) and each.can_stop]
        if (
            len(checked) != len(victims)
            or len(victims) > num_wanted
            or len({id(each) for each in victims}) < len(victims)
        ):
            wanted = f"at most {num_wanted} of places.stoppable(), each once"
            raise PolicyMisbehaved("preemption", self._policy, wanted, victims)
        return checked
