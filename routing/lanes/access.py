"""Which replicas may a request of a lane use now, and which queue does it wait in?"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from policies.candidates import CandidateList, Candidates
from policies.views import ReplicaView, RequestView, Role
from routing.fleet.fleet import Fleet
from routing.lanes.guard import AlwaysOn, LaneGuard
from routing.lanes.lanes import Lane, chosen_among
from routing.request.stages import DISAGGREGATED, NO_POOLS, UNIFIED, Plan, PoolNames, pools_serving

PLANS = (UNIFIED, DISAGGREGATED)
BY_PROGRESS = (Role.DECODE, Role.UNIFIED, Role.PREFILL)
"""A request that waits for its decode holds KV blocks on a prefill replica, so room goes there first."""


class _Loan(NamedTuple):
    """Pools of one lender, and how many idle replicas of theirs stay with it."""

    pools: PoolNames
    reserve: int


@dataclass(frozen=True, slots=True)
class _Reach:
    """What a lane has for one role: pools of its own, what lenders have for it, all there are, a queue, and who stands
    in where none of them has a replica: the first of several sides that has one.
    """

    own: PoolNames
    loans: tuple[_Loan, ...]
    all: PoolNames
    queue: str
    stand_ins: tuple[PoolNames, ...]

    @property
    def lenders(self) -> PoolNames:
        """Pools of all lenders."""
        return tuple(dict.fromkeys(pool for loan in self.loans for pool in loan.pools))


class LaneAccess:
    """Lanes, pools and queues.

    A lane uses its own pools. When none of their replicas is idle, an idle one of a lender's is used instead, if the
    lender has more of them than its reserve; idle means that no prompt is waiting there. What a lender's own requests
    wait for is never lent: they are sent first. When none of a lane's own replicas is up, lenders serve it as their
    own. Whole requests can run on any engine: where none that is for them is up, the lane's decode replicas take them,
    and where none of those is, its prefill replicas. Lanes that share all that wait in one queue.

    Args:
        lanes: In the order of the configuration, checked by :func:`routing.lanes.lanes.check_lanes`.
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
        self._choices = chosen_among(lanes)
        chosen_pools = {pool for lane in self._choices for pool in lane.pools}
        self.whole_request_pools = whole_request_pools
        self._guard = guard or AlwaysOn()
        self._are_always_on = isinstance(self._guard, AlwaysOn)
        by_name = {lane.name: lane for lane in lanes}
        self._reach: dict[tuple[Role, str], _Reach] = {}
        serving = {role: pools_serving(role, pools, whole_request_pools) for role in Role}
        for role, of_role in serving.items():
            of_all = _stand_ins(role, of_role, pools, pools)
            for lane in lanes:
                own = tuple(name for name in of_role if name in lane.pools)
                loans = tuple(_loans(own, of_role, [by_name[lender] for lender in lane.borrows_from]))
                everything = own if lane.fallback else tuple(name for name in of_role if name in chosen_pools)
                stand_ins = _stand_ins(role, of_role, pools, lane.pools)
                has_all = own == of_role and stand_ins == of_all
                queue = role.value if has_all else _queue_name(role, own, loans, stand_ins)
                self._reach[role, lane.name] = _Reach(own, loans, everything, queue, stand_ins)
            serving[role] = (*of_role, *(name for side in of_all for name in side))
        self._borrowers = {role: self._borrowers_of(role) for role in Role}
        self._waits_for = {reach.queue: place for place, reach in self._reach.items()}
        longest_first = sorted(lanes, key=lambda lane: (-lane.prompt_tokens.at_least, -lane.output_tokens.at_least))
        self._queues = {role: self._queues_of(role, self.lanes) for role in Role}
        self._lenders_first = {role: self._queues_of(role, longest_first) for role in Role}
        self._sharing = {
            role: tuple(each for each in BY_PROGRESS if each is role or set(serving[each]) & set(serving[role]))
            for role in Role
        }

    @property
    def queues(self) -> Mapping[str, Role]:
        """Every queue that requests may have to wait in, and the stage that they wait for."""
        return {name: role for role in Role for name in self._queues[role]}

    def stage_of(self, queue: str) -> Role:
        """What the requests in a queue wait for."""
        return self._waits_for[queue][0]

    def queue_of(self, role: Role, lane: str) -> str:
        """The queue of a lane's requests at a stage."""
        return self._reach[role, lane].queue

    def parts_of(self, role: Role, lane: str) -> Mapping[str, float]:
        """A lane's own pools for a role, and which part of its requests each has: all the same."""
        own = self._reach[role, lane].own
        return dict.fromkeys(own, 1.0 / len(own)) if own else {}

    def instead_of(self, pool: str) -> Sequence[PoolNames]:
        """For each lane and stage that a pool is for: the others that serve it where this one has no replica."""
        reaches = (reach for reach in self._reach.values() if pool in reach.own)
        return [tuple(name for name in (*reach.own, *reach.lenders) if name != pool) for reach in reaches]

    def parts_of_queue(self, queue: str) -> Mapping[str, float]:
        """The same of the requests that wait in a queue."""
        return self.parts_of(*self._waits_for[queue])

    def queues_of(self, role: Role, fleet: Fleet, now_s: float) -> Iterable[str]:
        """All queues of a stage, and of the stages that some of its replicas serve as well, as they may move.

        Lenders come before those who borrow from them, so that nothing is lent that somebody at home waits for. When
        lanes are off, or one lives on its lenders alone, the order is that of the configuration: longer requests that
        never stop coming would else keep the shorter ones waiting for ever.
        """
        if len(self._sharing[role]) == 1:
            return self._in_order(role, fleet, now_s)
        return [name for each in self._sharing[role] for name in self._in_order(each, fleet, now_s)]

    def view(self, request: RequestView, fleet: Fleet) -> "LaneFleet":
        """The fleet as a request meets it that has its lane."""
        return LaneFleet(self, request.lane, fleet)

    def look(self, request: RequestView, stage: Role, fleet: Fleet, now_s: float) -> Sequence[Role]:
        """A request has arrived that begins with a stage: time for the guard to see how the lanes are doing.

        Returns:
            Roles whose lanes it has turned on or off; those who wait may have another replica to go to.
        """
        if len(self._choices) == 1:
            return ()
        were_on = [self._guard.are_on(role) for role in Role]
        self._guard.look(request, stage, self._choices, fleet, now_s)
        return [role for role, was_on in zip(Role, were_on, strict=True) if self._guard.are_on(role) is not was_on]

    def gauges(self) -> Mapping[str, float]:
        """What the guard has to say for metrics, by name; empty for one that says nothing."""
        gauges: Callable[[], Mapping[str, float]] = getattr(self._guard, "gauges", dict)
        return gauges()

    def live(self, role: Role, lane: str, fleet: Fleet, now_s: float) -> Sequence[ReplicaView]:
        """Replicas that are worth waiting for, in order of id."""
        reach = self._reach[role, lane]
        live = fleet.live_in(self._own(reach, role, fleet, now_s), now_s)
        return live if live or not reach.stand_ins else fleet.live_in(_side(reach, fleet, now_s), now_s)

    def is_expecting(self, role: Role, lane: str, fleet: Fleet, now_s: float) -> bool:
        """Whether replicas are worth waiting for though none is live, or none of those that would do."""
        return fleet.is_expecting(self._awaited(role, lane, fleet, now_s), now_s)

    def returns_in_s(self, role: Role, lane: str, fleet: Fleet, now_s: float) -> float:
        """When a lane that has lost its last replica will have one again; 0 where nothing is known."""
        return fleet.returns_in_s(self._awaited(role, lane, fleet, now_s), now_s)

    def possible(
        self, plan: Plan, lane: str, fleet: Fleet, now_s: float, excluding: frozenset[str] = frozenset()
    ) -> Plan:
        """A plan as it is; or, where a stage of it has no replica, the other one; or whole, by those who stand in.

        Args:
            plan: What is left of one.
            lane: Whose request it is for.
            fleet: All replicas.
            now_s: Now.
            excluding: Replicas that won't do.
        """
        for each in (plan, DISAGGREGATED if plan == UNIFIED else UNIFIED):
            if all(self._is_served(stage, lane, fleet, now_s, excluding) for stage in each):
                return each
        return UNIFIED if self.live(Role.UNIFIED, lane, fleet, now_s) else plan

    def does_without(self, pool: str, fleet: Fleet, now_s: float) -> bool:
        """Whether requests of every lane would have such a plan if a pool had no replica."""
        return all(
            any(all(fleet.live_in(self._others(stage, lane.name, pool), now_s) for stage in plan) for plan in PLANS)
            for lane in self.lanes
        )

    def _others(self, role: Role, lane: str, pool: str) -> PoolNames:
        """All pools but one that would serve a lane's stage, be it in another's place."""
        reach = self._reach[role, lane]
        stand_ins = (name for side in reach.stand_ins for name in side)
        return tuple(name for name in (*reach.own, *reach.lenders, *stand_ins) if name != pool)

    def serves_all(self, fleet: Fleet, now_s: float) -> bool:
        """Whether requests of every lane have a plan whose stages have replicas, be it by those who stand in."""
        return all(
            any(all(self.live(stage, lane.name, fleet, now_s) for stage in plan) for plan in PLANS)
            for lane in self.lanes
        )

    def _is_served(self, role: Role, lane: str, fleet: Fleet, now_s: float, excluding: frozenset[str]) -> bool:
        """Whether a stage has a replica that is for it."""
        live = fleet.live_in(self._own(self._reach[role, lane], role, fleet, now_s), now_s)
        return any(each.replica_id not in excluding for each in live) if excluding else bool(live)

    def with_room(
        self, role: Role, lane: str, fleet: Fleet, now_s: float, excluding: frozenset[str] = frozenset()
    ) -> Candidates:
        """Replicas that may take a request now, in order of id."""
        reach = self._reach[role, lane]
        pools = self._own(reach, role, fleet, now_s)
        own = fleet.with_room(pools, now_s, excluding)
        if reach.stand_ins and not own and not fleet.live_in(pools, now_s):
            return fleet.with_room(_side(reach, fleet, now_s), now_s, excluding)
        if not reach.loans or not self._guard.are_on(role) or (own and _is_idle(own.least_work_left())):
            return own
        for loan in reach.loans:
            lent = fleet.with_room(loan.pools, now_s, excluding)
            if lent and _is_idle(idlest := lent.least_work_left()) and _has_idle(lent, beyond=loan.reserve):
                return CandidateList([idlest])
        return own

    def room_for(self, queue: str, fleet: Fleet, now_s: float) -> Candidates | None:
        """Replicas that would take the head of a queue now: none if there is nobody left to wait for.

        ``None``: it has to wait.
        """
        role, lane = self._waits_for[queue]
        room = self.with_room(role, lane, fleet, now_s)
        if room:
            return room
        if self.live(role, lane, fleet, now_s):
            return None
        can_wait = self.is_expecting(role, lane, fleet, now_s) and self.possible((role,), lane, fleet, now_s) == (role,)
        return None if can_wait else room

    def live_for(self, queue: str, fleet: Fleet, now_s: float) -> Sequence[ReplicaView]:
        """Replicas that those in a queue wait for, in order of id."""
        role, lane = self._waits_for[queue]
        return self.live(role, lane, fleet, now_s)

    def _own(self, reach: _Reach, role: Role, fleet: Fleet, now_s: float) -> PoolNames:
        """The pools that count as the lane's own at the moment."""
        if not self._are_always_on and not self._guard.are_on(role):
            return reach.all
        if reach.loans and not fleet.live_in(reach.own, now_s):
            return reach.lenders
        return reach.own

    def _awaited(self, role: Role, lane: str, fleet: Fleet, now_s: float) -> PoolNames:
        """The pools of which a replica would do."""
        reach = self._reach[role, lane]
        own = self._own(reach, role, fleet, now_s)
        return (*own, *(name for side in reach.stand_ins for name in side)) if reach.stand_ins else own

    def _in_order(self, role: Role, fleet: Fleet, now_s: float) -> tuple[str, ...]:
        """The queues of one stage."""
        if len(self._queues[role]) == 1 or not self._guard.are_on(role):
            return self._queues[role]
        all_have_their_own = all(fleet.live_in(reach.own, now_s) for reach in self._borrowers[role])
        return self._lenders_first[role] if all_have_their_own else self._queues[role]

    def _borrowers_of(self, role: Role) -> tuple[_Reach, ...]:
        return tuple(reach for (its_role, _), reach in self._reach.items() if its_role is role and reach.loans)

    def _queues_of(self, role: Role, lanes: Sequence[Lane]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._reach[role, lane.name].queue for lane in lanes))


def _side(reach: _Reach, fleet: Fleet, now_s: float) -> PoolNames:
    """The first pools of those that stand in that have a replica."""
    return next((side for side in reach.stand_ins if fleet.live_in(side, now_s)), NO_POOLS)


def _loans(own: PoolNames, of_role: PoolNames, lenders: Sequence[Lane]) -> Iterator[_Loan]:
    """What lenders have that the borrower does not have itself."""
    for lender in lenders:
        pools = tuple(name for name in of_role if name in lender.pools and name not in own)
        if pools:
            yield _Loan(pools, lender.reserve)


def _stand_ins(
    role: Role, serving: PoolNames, pools: Mapping[str, Role], among: Collection[str]
) -> tuple[PoolNames, ...]:
    """Who takes whole requests where nobody is left that is for them: those that also decode, then the others, who have
    the least KV and so look idle beside them.
    """
    if role is not Role.UNIFIED:
        return ()
    of_side = {
        side: tuple(name for name in pools if pools[name] is side and name in among and name not in serving)
        for side in reversed(DISAGGREGATED)
    }
    return tuple(filter(None, of_side.values()))


def _queue_name(role: Role, own: PoolNames, loans: Sequence[_Loan], stand_ins: Sequence[PoolNames]) -> str:
    """The same for lanes that may use the same replicas under the same conditions."""
    lent = "".join(f"<{'+'.join(loan.pools)}" + (f"-{loan.reserve}" if loan.reserve else "") for loan in loans)
    instead = "".join(f"~{'+'.join(side)}" for side in stand_ins)
    return f"{role.value}:{'+'.join(own)}{lent or '<'}{instead}"


def _has_idle(replicas: Candidates, *, beyond: int) -> bool:
    """Whether more than so many are idle."""
    return beyond == 0 or sum(_is_idle(each) for each in replicas) > beyond


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
