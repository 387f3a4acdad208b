"""A light model of a fleet: how much of their SLOs would requests lose waiting, if prompts were all there is?"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush

from policies.contracts import QueueingPolicy
from policies.views import RequestView, Role
from routing.fleet.fleet import Fleet
from routing.lanes.access import LaneAccess
from routing.lanes.lanes import Lane
from routing.request.events import ReplicaInfo
from routing.request.stages import NO_POOLS, PoolNames

NewQueue = Callable[[Role], QueueingPolicy]
"""Makes the configured policy of a queue that waits for a stage."""
TOKEN_S = 1e-4
"""What a prompt token takes where nobody knows the engines' rates."""
SLOWDOWN = 30.0
"""A first token is late that takes so many times what its prompt does, where it has no SLO."""


class QueueModel:
    """Replicas that compute the prompts that they have been given one after the other, and the queues in front of them.

    A request waits in its lane's queue, which the configured policy puts in order, for a replica that its lane may use
    then and that has room in its window; of those it takes the one with the least to compute. When its turn comes too
    late it is given up: by its SLO where an admission policy refuses what is hopeless, else by its client's time-out.
    Answers take no time.

    A request costs ``(ttft / slo)**2`` when its turn comes, and 1 as soon as it is late, or where no replica is up:
    those in a queue that grows would else be in no account.

    Args:
        lanes: Never turned off.
        pools: Role of every pool, by name.
        whole_request_pools: Prefill and decode pools whose replicas also take whole requests.
        new_queue: Makes the policy of one of its queues.
        prefill_window_tokens: Prompt tokens that a replica is given at a time; 0: no bound.
        refuses_late: Whether an admission policy refuses what can't be in time.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        pools: Mapping[str, Role],
        whole_request_pools: PoolNames = NO_POOLS,
        *,
        new_queue: NewQueue,
        prefill_window_tokens: int = 0,
        refuses_late: bool = True,
    ) -> None:
        self._pools = pools
        self._refuses_late = refuses_late
        self._access = LaneAccess(lanes, pools, whole_request_pools=whole_request_pools)
        self._fleet = Fleet(whole_request_pools, prefill_window_tokens)
        self._queues = {name: new_queue(role) for name, role in self._access.queues.items()}
        self._computed: list[tuple[float, int, str, Role]] = []
        self._idle_s: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._late: list[tuple[float, str]] = []
        self._in_time: set[str] = set()

    def follow(self, pool: str, replica_ids: Iterable[str]) -> None:
        """The replicas of a pool are these from now on; prompts of those that have gone are taken to end in time."""
        role = self._pools[pool]
        infos = [
            ReplicaInfo(replica_id=each, role=role, pool=pool, max_ongoing_requests=1, kv_capacity_tokens=0)
            for each in replica_ids
        ]
        self._fleet.replace(pool, role, infos)

    def arrive(self, request: RequestView, lane: str, stage: Role, now_s: float) -> Iterator[float]:
        """A request comes in: what all those cost that have begun or become late since the one before, from 0 to 1.

        Args:
            request: The request, with its cost estimate and its SLO.
            lane: The model's lane for it.
            stage: Whose replicas compute its prompt.
            now_s: Now.
        """
        while self._computed and self._computed[0][0] <= now_s:
            done_s, tokens, replica_id, role = heappop(self._computed)
            self._give(replica_id, -tokens)
            yield from self._start(role, done_s)
        while self._late and self._late[0][0] <= now_s:
            yield from self._count(heappop(self._late)[1], 1.0)
        if not self._access.live(stage, lane, self._fleet, now_s):
            yield 1.0
            return
        self._in_time.add(request.request_id)
        heappush(self._late, (request.arrival_s + _slo_s(request), request.request_id))
        self._queues[self._access.queue_of(stage, lane)].push(request, now_s)
        yield from self._start(stage, now_s)

    def _start(self, stage: Role, now_s: float) -> Iterator[float]:
        """Those whose turn it is on replicas of a stage."""
        for name in self._access.queues_of(stage, self._fleet, now_s):
            queue, role = self._queues[name], self._access.stage_of(name)
            while len(queue) and (room := self._access.room_for(name, self._fleet, now_s)):
                request, replica_id = queue.pop(now_s), room.least_work_left().replica_id
                first_token_s = max(now_s, self._idle_s.get(replica_id, 0.0)) + _prompt_s(request)
                yield from self._count(request.request_id, _cost(request, first_token_s))
                if first_token_s <= (request.first_token_by_s if self._refuses_late else request.deadline_s):
                    tokens = request.geometry.uncached_tokens or request.prompt_tokens
                    self._idle_s[replica_id] = first_token_s
                    self._give(replica_id, tokens)
                    heappush(self._computed, (first_token_s, tokens, replica_id, role))

    def _give(self, replica_id: str, tokens: int) -> None:
        """A replica has so many prompt tokens more to compute; one that has none is in no record."""
        self._tokens[replica_id] = left = self._tokens.get(replica_id, 0) + tokens
        self._fleet.report(replica_id, left, 0, 0.0)
        if not left:
            del self._tokens[replica_id], self._idle_s[replica_id]

    def _count(self, request_id: str, cost: float) -> Iterator[float]:
        """A request's cost counts once."""
        if request_id in self._in_time:
            self._in_time.discard(request_id)
            yield cost


def _prompt_s(request: RequestView) -> float:
    """What the prompt of a classified request takes by itself, by the engines' rates where they are known."""
    return request.geometry.prefill_s or (request.geometry.uncached_tokens or request.prompt_tokens) * TOKEN_S


def _slo_s(request: RequestView) -> float:
    """The SLO of a classified request, or what stands for it."""
    has_slo = request.first_token_by_s < request.deadline_s
    return request.first_token_by_s - request.arrival_s if has_slo else SLOWDOWN * _prompt_s(request)


def _cost(request: RequestView, first_token_s: float) -> float:
    """Of a first token at that time."""
    share = (first_token_s - request.arrival_s) / max(_slo_s(request), 1e-9)
    return min(1.0, share * share)
