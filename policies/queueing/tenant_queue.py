"""What waits of one tenant, and what there is to say about tenants who take turns."""

from collections.abc import Iterable, Mapping
from itertools import islice

from policies.errors import ConfigError
from policies.views import RequestView

MOST_LOOKED_AT = 64
"""Tenants that an estimate of the work ahead looks at; they stand for the others."""


class TenantQueue:
    """Requests of one tenant, in order of arrival.

    Args:
        weight: The tenant's share, in relation to those of others.

    Attributes:
        cost: What the tenant will be charged for them.
        work_s: Their work, service-seconds.
    """

    __slots__ = ("_waiting", "cost", "weight", "work_s")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.cost = 0.0
        self.work_s = 0.0
        self._waiting: dict[str, tuple[RequestView, float, float]] = {}

    def push(self, request: RequestView, cost: float, work_s: float) -> None:
        """One more."""
        self._waiting[request.request_id] = request, cost, work_s
        self.cost += cost
        self.work_s += work_s

    def first(self) -> tuple[RequestView, float]:
        """The one that came first, and its cost."""
        return next(iter(self._waiting.values()))[:2]

    def remove(self, request_id: str) -> bool:
        """One less; ``False`` when it does not wait here."""
        if request_id not in self._waiting:
            return False
        _, cost, work_s = self._waiting.pop(request_id)
        self.cost = self.cost - cost if self._waiting else 0.0
        self.work_s = self.work_s - work_s if self._waiting else 0.0
        return True

    def before(self, request_id: str) -> tuple[float, float]:
        """Cost and work of those before one of them; of all, for one that does not wait here."""
        if request_id not in self._waiting:
            return self.cost, self.work_s
        cost_before = work_before_s = 0.0
        for its_id, (_, cost, work_s) in self._waiting.items():
            if its_id == request_id:
                break
            cost_before += cost
            work_before_s += work_s
        return cost_before, work_before_s

    def work_for_s(self, cost: float) -> float:
        """Work of so many that the tenant is charged so much for them."""
        if cost <= 0.0:
            return 0.0
        return self.work_s if cost >= self.cost else self.work_s * cost / self.cost

    def __len__(self) -> int:
        return len(self._waiting)


def sum_of_few(works_s: Iterable[float], num_works: int) -> float:
    """The sum of works of which only the first ``MOST_LOOKED_AT`` are looked at and stand for the others."""
    looked_at = list(islice(works_s, MOST_LOOKED_AT))
    return sum(looked_at) * num_works / len(looked_at) if looked_at else 0.0


def checked_weights(weights: Mapping[str, float] | None) -> Mapping[str, float]:
    """Weights by tenant, as a policy's parameter gives them.

    Raises:
        ConfigError: One is not a number from 0.001 to 1000.
    """
    for tenant, weight in (weights or {}).items():
        if not isinstance(weight, int | float) or not 0.001 <= weight <= 1000:
            raise ConfigError(f"policies.queueing.params.weights.{tenant}", weight, "a number from 0.001 to 1000")
    return dict(weights or {})
