"""Requests that wait for one replica, because it has their prefix, each replica's in an order of their own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, cast

from policies.candidates import Candidates
from policies.contracts import PolicySet, QueueingPolicy
from policies.views import ReplicaView, RequestView, Role
from routing.fleet.first_token import FirstTokenEstimator
from routing.fleet.fleet import Fleet
from routing.request.request import Request

ANYWHERE = ""
"""The home of requests that wait for whichever replica has room first."""


class _HomeBalancer(Protocol):
    """A balancer for which some replicas are worth waiting for."""

    def home(
        self, request: RequestView, live: Sequence[ReplicaView], anywhere_tokens: int, now_s: float
    ) -> ReplicaView | None: ...


class HomeFinder:
    """Asks the balancers which replica a request is to wait for, where queues can be had for single replicas.

    Args:
        policies: The balancers among them, by stage; a queueing policy with signals to learn from has one queue.
        fleet: All replicas; those that are waited for know by how many tokens.
        first_tokens: Knows what a replica has cached of a prompt.
    """

    def __init__(self, policies: PolicySet, fleet: Fleet, first_tokens: FirstTokenEstimator) -> None:
        have_homes = {stage: each for stage, each in policies.balancers.items() if hasattr(each, "home")}
        if any(each.consumes for each in policies.queues.values()):
            have_homes = {}
        self._balancers = cast(Mapping[Role, _HomeBalancer], have_homes)
        self._fleet = fleet
        self._first_tokens = first_tokens

    def has_homes(self, stage: Role) -> bool:
        """Whether requests ever wait for one replica."""
        return stage in self._balancers

    def home_of(
        self, request: RequestView, stage: Role, live: Sequence[ReplicaView], anywhere_tokens: int, now_s: float
    ) -> str:
        """The replica that a request is to wait for, of those that are worth it; ``ANYWHERE``: none in particular."""
        balancer = self._balancers.get(stage)
        if balancer is None or not live:
            return ANYWHERE
        home = balancer.home(request, live, anywhere_tokens, now_s)
        return ANYWHERE if home is None else home.replica_id

    def wait_for(self, request: Request, live: Sequence[ReplicaView], anywhere_tokens: int, now_s: float) -> None:
        """Finds the home of a request that is about to be enqueued, and counts its prompt there."""
        view, failed = request.view, request.failed_replicas
        others = [each for each in live if each.replica_id not in failed] if failed else live
        home = self.home_of(view, request.stage, others, anywhere_tokens, now_s)
        if home:
            request.wait_for(home, self._first_tokens.uncached_tokens(view, home))
            self._count(home, request.home_tokens)

    def leave(self, request: Request) -> None:
        """A request does not wait for one replica any more."""
        if request.home:
            self._count(request.home, -request.home_tokens)
            request.wait_for(ANYWHERE, 0)

    def is_lost(self, home: str) -> bool:
        """Whether nothing is sent to that replica any more, or for a while."""
        replica = self._fleet.get(home)
        return replica is None or not replica.is_live

    def _count(self, home: str, tokens: int) -> None:
        replica = self._fleet.get(home)
        if replica is not None:
            replica.waiting_tokens += tokens


class Order:
    """Requests with the same home, as one policy puts them in order.

    Args:
        policy: The policy.

    Attributes:
        prefill_tokens: Prompt tokens that they would compute there.
    """

    def __init__(self, policy: QueueingPolicy) -> None:
        self.policy = policy
        self.prefill_tokens = 0
        self._work_s = 0.0
        self.is_ordered = hasattr(policy, "work_ahead_s")
        self._work_ahead_s: Callable[[RequestView], float] | None = getattr(policy, "work_ahead_s", None)

    def push(self, request: Request, work_s: float, now_s: float) -> None:
        """A request is enqueued."""
        self.prefill_tokens += _tokens_of(request)
        self._work_s += work_s
        self.policy.push(request.view, now_s)

    def leave(self, request: Request, work_s: float) -> None:
        """A request is not in the policy's order any more."""
        self.prefill_tokens -= _tokens_of(request)
        self._work_s = self._work_s - work_s if len(self.policy) else 0.0

    def ahead_s(self, request: RequestView) -> float:
        """Work of those that would go before a request: all, where the policy can't say, for the first of them too.

        Counted exactly, an order of arrival lets those with loose SLOs fill the queue and starves the tight ones.
        """
        return self._work_s if self._work_ahead_s is None else self._work_ahead_s(request)

    def tokens_ahead(self, request: RequestView) -> int:
        """Prompt tokens of those that would go before a request: as large a part of all as their work is."""
        if not self._work_s:
            return self.prefill_tokens
        return int(self.prefill_tokens * min(1.0, self.ahead_s(request) / self._work_s))


def _tokens_of(request: Request) -> int:
    """Prompt tokens that it would compute where it waits."""
    return request.home_tokens if request.home else request.view.geometry.uncached_tokens


class Orders:
    """The orders of one queue: that of requests which may go anywhere, and one for each replica that some wait for.

    Args:
        anywhere: Of those that may go anywhere.
        another: Makes one more policy that is like it.
    """

    def __init__(self, anywhere: QueueingPolicy, another: Callable[[], QueueingPolicy]) -> None:
        self.anywhere = Order(anywhere)
        self._another = another
        self._at_home: dict[str, Order] = {}
        self._spare: list[Order] = []

    def homes(self) -> list[str]:
        """Replicas that requests wait for."""
        return list(self._at_home)

    def at(self, home: str) -> Order:
        """The order of those that wait for a replica; one that has none yet gets one."""
        if home == ANYWHERE:
            return self.anywhere
        if home not in self._at_home:
            self._at_home[home] = self._spare.pop() if self._spare else Order(self._another())
        return self._at_home[home]

    def num_at(self, home: str) -> int:
        """How many wait for a replica."""
        return len(self._at_home[home].policy) if home in self._at_home else 0

    def tokens_at(self, home: str) -> int:
        """Prompt tokens of all who wait for a replica."""
        return self._at_home[home].prefill_tokens if home in self._at_home else 0

    def push(self, request: Request, work_s: float, now_s: float) -> None:
        """A request is enqueued with those that have the same home."""
        self.at(request.home).push(request, work_s, now_s)

    def leave(self, request: Request, work_s: float) -> None:
        """A request has left its order: one that nobody is in is kept for another replica."""
        home = request.home
        self.at(home).leave(request, work_s)
        if home != ANYWHERE and not self.num_at(home):
            self._spare.append(self._at_home.pop(home))

    def with_room(self, room: Candidates) -> Iterator[tuple[str, QueueingPolicy]]:
        """Orders whose first request may go to one of these replicas; all of them where there is none."""
        if len(self.anywhere.policy):
            yield ANYWHERE, self.anywhere.policy
        for home, order in self._at_home.items():
            if not room or room.find(home) is not None:
                yield home, order.policy

    def ahead_s(self, request: RequestView, home: str, num_replicas: int) -> float:
        """Work of all replicas until the turn of a request comes that waits there.

        A replica that some wait for does their work, and its share of what may go anywhere.
        """
        ahead_s = self.anywhere.ahead_s(request)
        if home == ANYWHERE:
            return ahead_s + sum(each.ahead_s(request) for each in self._at_home.values())
        return ahead_s + (self._at_home[home].ahead_s(request) * num_replicas if home in self._at_home else 0.0)

    def fraction_ahead(self, request: RequestView) -> float:
        """Of all prompt tokens, those that would go before a request; 1 where none waits."""
        orders = [self.anywhere, *self._at_home.values()]
        tokens = sum(each.prefill_tokens for each in orders)
        return sum(each.tokens_ahead(request) for each in orders) / tokens if tokens else 1.0

    def tokens_ahead(self, request: RequestView, home: str) -> int:
        """Prompt tokens of those with the same home that would go before a request."""
        return self.at(home).tokens_ahead(request) if home == ANYWHERE or home in self._at_home else 0
