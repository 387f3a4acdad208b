"""Which replicas may a request of a lane use now, and which queue does it wait in?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.catalog import Factory, PolicyChoice, make_policy
from policies.views import CandidateList, Candidates, ReplicaView, RequestView, Role
from routing.fleet import Fleet
from routing.lanes import Lane, one_lane
from routing.stages import NO_POOLS, PoolNames, pools_serving

NOBODY = CandidateList()
BY_PROGRESS = (Role.DECODE, Role.UNIFIED, Role.PREFILL)
"""A request that waits for its decode holds KV blocks on a prefill replica, so room goes there first."""


class LaneGuard(Protocol):
    """Answers: do lanes help now, or is everybody better off without them?"""

    def look(self, lanes: Sequence[Lane], fleet: Fleet, now_s: float) -> None:
        """Called when a request arrives."""
        ...

    def are_on(self, role: Role) -> bool:
        """Whether lanes are kept apart on the replicas of a role; if not, every lane uses all of them."""
        ...


class AlwaysOn:
    """Lanes stay as they are configured, whatever happens."""

    def look(self, lanes: Sequence[Lane], fleet: Fleet, now_s: float) -> None:
        """Nothing to see."""

    def are_on(self, role: Role) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Reach:
    """What a lane has for one role: pools of its own, pools that lend to it, all there are, and a queue."""

    own: PoolNames
    lenders: PoolNames
    all: PoolNames
    queue: str


class LaneAccess:
    """Lanes, pools and queues.

    A lane uses its own pools. When none of their replicas is idle, an idle one of a lender's is used instead; idle
    means that no prompt is waiting there. When none of its own is up, lenders serve it as their own. Lanes that share
    all that wait in one queue.

    Args:
        lanes: In the order of the configuration, checked by :func:`routing.lanes.check_lanes`.
        pools: Role of every pool, by name.
        guard: Turns lanes off when they lose.
        whole_request_pools: Prefill and decode pools whose replicas also take whole requests.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        pools: Mapping[str, Role],
        guard: LaneGuard | None = None,
        whole_request_pools: PoolNames = NO_POOLS,
    ) -> None:
        self.lanes = tuple(lanes)
        self.whole_request_pools = whole_request_pools
        self._guard = guard or AlwaysOn()
        by_name = {lane.name: lane for lane in lanes}
        lent = {lane.name: [p for lender in lane.borrows_from for p in by_name[lender].pools] for lane in lanes}
        self._reach: dict[tuple[Role, str], _Reach] = {}
        serving = {role: pools_serving(role, pools, whole_request_pools) for role in Role}
        for role, of_role in serving.items():
            for lane in lanes:
                own = tuple(name for name in of_role if name in lane.pools)
                lenders = tuple(name for name in of_role if name in lent[lane.name] and name not in own)
                queue = role.value if own == of_role else f"{role.value}:{'+'.join(own)}<{'+'.join(lenders)}"
                self._reach[role, lane.name] = _Reach(own, lenders, of_role, queue)
        self._waits_for = {reach.queue: place for place, reach in self._reach.items()}
        self._queues = {role: self._queues_of(role) for role in Role}
        self._sharing = {
            role: tuple(
                queue
                for other in BY_PROGRESS
                if other is role or set(serving[other]) & set(serving[role])
                for queue in self._queues[other]
            )
            for role in Role
        }

    @classmethod
    def without_lanes(cls, pools: Mapping[str, Role]) -> "LaneAccess":
        """Everything may go everywhere."""
        return cls(one_lane(pools), pools)

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Every queue that requests may have to wait in."""
        return tuple(name for role in Role for name in self._queues[role])

    def queue_of(self, role: Role, lane: str) -> str:
        """The queue of a lane's requests at a stage."""
        return self._reach[role, lane].queue

    def queues_of(self, role: Role) -> tuple[str, ...]:
        """All queues of a stage, and of the stages that some of its replicas serve as well."""
        return self._sharing[role]

    def view(self, request: RequestView, fleet: Fleet) -> "LaneFleet":
        """The fleet as a request meets it that has its lane."""
        return LaneFleet(self, request.lane, fleet)

    def look(self, fleet: Fleet, now_s: float) -> None:
        """A request has arrived: time for the guard to see how the lanes are doing."""
        if len(self.lanes) > 1:
            self._guard.look(self.lanes, fleet, now_s)

    def live(self, role: Role, lane: str, fleet: Fleet, now_s: float) -> Sequence[ReplicaView]:
        """Replicas that are worth waiting for, in order of id."""
        reach = self._reach[role, lane]
        return fleet.live_in(self._own(reach, role, fleet, now_s), now_s)

    def with_room(
        self, role: Role, lane: str, fleet: Fleet, now_s: float, excluding: frozenset[str] = frozenset()
    ) -> Candidates:
        """Replicas that may take a request now, in order of id."""
        reach = self._reach[role, lane]
        own = fleet.with_room(self._own(reach, role, fleet, now_s), now_s, excluding)
        if not reach.lenders or not self._guard.are_on(role) or (own and _is_idle(own.least_work_left())):
            return own
        lent = fleet.with_room(reach.lenders, now_s, excluding)
        if lent and _is_idle(idlest := lent.least_work_left()):
            return CandidateList([idlest])
        return own

    def can_move(self, queue: str, fleet: Fleet, now_s: float) -> bool:
        """Whether the head of a queue can be sent now, or has nobody left to wait for."""
        role, lane = self._waits_for[queue]
        return bool(self.with_room(role, lane, fleet, now_s)) or not self.live(role, lane, fleet, now_s)

    def _own(self, reach: _Reach, role: Role, fleet: Fleet, now_s: float) -> PoolNames:
        """The pools that count as the lane's own at the moment."""
        if not self._guard.are_on(role):
            return reach.all
        if reach.lenders and not fleet.live_in(reach.own, now_s):
            return reach.lenders
        return reach.own

    def _queues_of(self, role: Role) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._reach[role, lane.name].queue for lane in self.lanes))


class LaneFleet:
    """The fleet as the requests of one lane meet it.

    Args:
        access: Which replicas the lane may use.
        lane: Its name.
        fleet: All replicas.
    """

    __slots__ = ("_access", "_fleet", "_lane")

    def __init__(self, access: LaneAccess, lane: str, fleet: Fleet) -> None:
        self._access = access
        self._lane = lane
        self._fleet = fleet

    def live(self, stage: Role, now_s: float) -> Sequence[ReplicaView]:
        """Replicas that are worth waiting for at a stage, in order of id."""
        return self._access.live(stage, self._lane, self._fleet, now_s)

    def with_room(self, stage: Role, now_s: float) -> Candidates:
        """Replicas that would take the stage now, in order of id."""
        return self._access.with_room(stage, self._lane, self._fleet, now_s)


def _is_idle(replica: ReplicaView) -> bool:
    return replica.prefill_tokens == 0 and (replica.role is not Role.PREFILL or replica.num_ongoing_requests == 0)


GUARDS: Mapping[str, Factory] = {"always_on": AlwaysOn}


def build_guard(choice: PolicyChoice) -> LaneGuard:
    """Builds a lane guard: a key of ``GUARDS``, or ``package.module:factory``.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy`.
    """
    guard: LaneGuard = make_policy("lanes.guard", choice, GUARDS, ("look", "are_on"))
    return guard
