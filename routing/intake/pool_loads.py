"""What one gateway has for each pool, for the policy that says how many replicas it is to have."""

from collections.abc import Mapping, Sequence

from policies.pool_views import Demand, PoolLoad
from policies.views import Role
from routing.fleet.fleet import Fleet
from routing.intake.demand import DemandMeter
from routing.intake.slo_meter import SloMeter
from routing.lanes.access import LaneAccess
from routing.queues.queues import Queues


def pool_loads(
    meters: Sequence[DemandMeter | SloMeter], access: LaneAccess, queues: Queues, fleet: Fleet, now_s: float
) -> Mapping[str, PoolLoad]:
    """The loads by pool; of a lane with several pools of a role each has an equal part.

    Args:
        meters: What was asked, and how much of that was in time.
        access: Which pools a lane has.
        queues: What waits.
        fleet: All replicas.
        now_s: Now.
    """
    demands: dict[str, Demand] = dict.fromkeys(fleet.pool_names, Demand())
    for role in Role:
        for lane in access.lanes:
            for pool, part in access.parts_of(role, lane.name).items():
                if pool in demands:
                    demands[pool] += sum((each.of(role, lane.name) for each in meters), Demand()).times(part)
    waiting = {name: [0.0, 0.0, 0.0] for name in demands}
    for queue in queues.loads(now_s):
        for pool, part in access.parts_of_queue(queue.name).items():
            if pool in waiting:
                requests, work_s, oldest_s = waiting[pool]
                longest_s = max(oldest_s, queue.oldest_wait_s)
                waiting[pool] = [requests + part * queue.num_waiting, work_s + part * queue.work_s, longest_s]
    return {name: _load(name, demands[name], waiting[name], fleet) for name in demands}


def _load(pool: str, demand: Demand, waiting: list[float], fleet: Fleet) -> PoolLoad:
    replicas = fleet.here(pool)
    return PoolLoad(
        demand=demand,
        num_waiting=round(waiting[0]),
        waiting_s=waiting[1],
        oldest_wait_s=waiting[2],
        num_ongoing=sum(each.num_ongoing_requests for each in replicas),
        kv_tokens=sum(each.work_here.kv_tokens for each in replicas),
        kv_capacity_tokens=max((each.kv_capacity_tokens for each in replicas), default=0),
    )
