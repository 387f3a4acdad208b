"""Makes room for those that wait: sheddable attempts are stopped, and their requests are resumed later."""

from collections.abc import Iterator, Sequence

from policies.attempt_views import InFlightView
from policies.contracts import PreemptionPolicy
from policies.errors import PolicyMisbehaved
from policies.views import Priority, ReplicaView
from routing.attempts.open_attempts import InFlight, Stoppable, StoppableAttempts
from routing.fleet.fleet import Fleet
from routing.lanes.access import LaneAccess
from routing.queues.queues import Queue, Queues
from routing.request.effects import Effect


class Slots:
    """A :class:`policies.attempt_views.SlotsView`; valid until the next event.

    Args:
        replicas: Those that the waiting request may use.
        fleet: Knows what would make room on them.
        stoppable: Who could be stopped.
        num_preempting: How many attempts are being preempted for the same queue.
    """

    def __init__(
        self, replicas: Sequence[ReplicaView], fleet: Fleet, stoppable: StoppableAttempts, num_preempting: int
    ) -> None:
        self._replicas = replicas
        self._fleet = fleet
        self._stoppable = stoppable
        self._num_preempting = num_preempting

    @property
    def num_slots(self) -> int:
        return sum(each.max_ongoing_requests for each in self._replicas)

    @property
    def num_taken(self) -> int:
        held = (each.num_ongoing_requests - self._stoppable.num_on(each.replica_id) for each in self._replicas)
        return sum(held) + self._num_preempting

    def stoppable(self) -> Iterator[InFlightView]:
        here = self._stoppable.newest_first(each.replica_id for each in self._replicas)
        return (each for each in here if each.can_stop and self._makes_room(each))

    def _makes_room(self, stoppable: Stoppable) -> bool:
        replica = self._fleet.get(stoppable.replica_id)
        return replica is not None and replica.has_room_without(stoppable.attempt.prefill_tokens)


class Preemptor:
    """Asks the policy when somebody above sheddable waits and there is no room, and stops whom it names.

    Nobody is stopped twice for the same request: slots that are about to be free count as found.

    Args:
        policy: Names them.
        queues: Where requests wait.
        access: Which replicas they may use.
        fleet: All replicas.
        in_flight: All attempts.
    """

    def __init__(
        self, policy: PreemptionPolicy, queues: Queues, access: LaneAccess, fleet: Fleet, in_flight: InFlight
    ) -> None:
        self._policy = policy
        self._queues = queues
        self._access = access
        self._fleet = fleet
        self._in_flight = in_flight
        self._preempting: dict[str, list[str]] = {}

    def make_room(self, queue: Queue, now_s: float) -> Sequence[Effect]:
        """For those in a queue whose head finds no room: what stops attempts.

        Raises:
            PolicyMisbehaved: The policy named what can't be stopped, or too many; nobody has been stopped.
        """
        request = queue.head(now_s).view
        if request.priority is Priority.SHEDDABLE:
            return ()
        preempting = self._still_preempting(queue.name)
        num_wanted = queue.num_at_least(request.priority) - len(preempting)
        if num_wanted <= 0:
            return ()
        replicas = self._access.live_for(queue.name, self._fleet, now_s)
        slots = Slots(replicas, self._fleet, self._in_flight.stoppable, len(preempting))
        victims = self._checked(self._policy.victims(request, num_wanted, slots, now_s), num_wanted)
        preempting += [each.attempt.attempt_id for each in victims]
        return [each.attempt.preempt() for each in victims]

    def _still_preempting(self, queue: str) -> list[str]:
        """Attempts that are being preempted for a queue and still hold their slots."""
        preempting = [each for each in self._preempting.get(queue, ()) if self._in_flight.get(each) is not None]
        self._preempting[queue] = preempting
        return preempting

    def _checked(self, victims: Sequence[InFlightView], num_wanted: int) -> list[Stoppable]:
        checked = [each for each in victims if isinstance(each, Stoppable) and each.can_stop]
        if (
            len(checked) != len(victims)
            or len(victims) > num_wanted
            or len({id(each) for each in victims}) < len(victims)
        ):
            wanted = f"at most {num_wanted} of slots.stoppable(), each once"
            raise PolicyMisbehaved("preemption", self._policy, wanted, victims)
        return checked
