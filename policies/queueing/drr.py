"""Tenants take turns, and each turn is worth the same work."""

import math
from collections.abc import Mapping
from typing import ClassVar

from policies.contracts import Need
from policies.errors import ConfigError
from policies.queueing.tenant_queue import TenantQueue, checked_weights, sum_of_few
from policies.signals import Signal
from policies.views import RequestView, Role


class _Tenant(TenantQueue):
    __slots__ = ("deficit_s",)

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.deficit_s = 0.0

    def fits(self) -> bool:
        return self.first()[1] <= self.deficit_s

    def turns_missing(self, quantum_s: float) -> int:
        """Turns until its first request fits."""
        return math.ceil((self.first()[1] - self.deficit_s) / (quantum_s * self.weight))


class Drr:
    """Which of the waiting requests goes next? The next of the tenant whose turn it is, while its deficit lasts.

    Rule: tenants with waiting requests take turns. A turn adds ``quantum_s * weight`` service-seconds to what the
        tenant may spend, and its requests go in order of arrival until the next one costs more than is left; the rest
        is kept for its next turn, and lost when nothing of it waits any more. Of two tenants who wait throughout,
        neither gets more than ``quantum_s + W / weight + W' / weight'`` service-seconds a weight over the other, W
        being the largest request of each.
    State: who waits, by tenant, and a deficit for each tenant of whom something waits; no other is known.
    Consumes: nothing.
    Complexity: O(1) amortized where no request costs more than a quantum, else O(tenants) at most. ``work_ahead_s``
        looks at 64 tenants, and of the tenant's own requests at those before one that waits here already.
    Failure mode: work is what was expected at dispatch: a tenant whose answers are longer than predicted gets more.
        A quantum well above the usual request makes turns long, and short requests of others wait for their end. Each
        gateway takes turns by itself. Who has many names has many turns.
    Source: Shreedhar and Varghese, Efficient Fair Queuing Using Deficit Round Robin, SIGCOMM 1995.

    Args:
        stage: What its requests wait for.
        quantum_s: What a turn is worth at weight 1, service-seconds; the largest usual request is a good choice.
        weights: Weight by tenant; 1 for all others.

    Raises:
        ConfigError: A quantum below 0.001 s, or a weight out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(
        self, *, stage: Role = Role.UNIFIED, quantum_s: float = 0.5, weights: Mapping[str, float] | None = None
    ) -> None:
        if not 0.001 <= quantum_s < math.inf:
            raise ConfigError("policies.queueing.params.quantum_s", quantum_s, "a finite number from 0.001 on")
        self._stage = stage
        self._quantum_s = quantum_s
        self._weights = checked_weights(weights)
        self._ring: dict[str, _Tenant] = {}  # the first one has its turn
        self._num_waiting = 0

    def push(self, request: RequestView, now_s: float) -> None:
        tenant = self._ring.get(request.tenant)
        if tenant is None:
            tenant = self._ring[request.tenant] = _Tenant(self._weights.get(request.tenant, 1.0))
            if len(self._ring) == 1:
                self._begin_turn()
        self._num_waiting += 1
        work_s = request.geometry.work_s(self._stage)
        tenant.push(request, work_s, work_s)

    def peek(self, now_s: float) -> RequestView:
        if not self._ring:
            raise IndexError("no request waits")
        return self._whose_turn().first()[0]

    def pop(self, now_s: float) -> RequestView:
        request = self.peek(now_s)
        tenant = self._ring[request.tenant]
        tenant.deficit_s -= tenant.first()[1]
        self.remove(request)
        return request

    def remove(self, request: RequestView) -> bool:
        name = request.tenant
        tenant = self._ring.get(name)
        if tenant is None or not tenant.remove(request.request_id):
            return False
        self._num_waiting -= 1
        if not tenant:
            had_its_turn = next(iter(self._ring)) == name
            del self._ring[name]
            if had_its_turn and self._ring:
                self._begin_turn()
        return True

    def work_ahead_s(self, request: RequestView) -> float:
        """An estimate: the tenant's own work before the request, and of each other as much as its weight allows.

        Off by what the fairness bound says for each tenant that waits, if all looked at are like those that are not.
        """
        own = self._ring.get(request.tenant)
        if own is not None and own is next(iter(self._ring.values())) and own.fits() and own.first()[0] is request:
            return 0.0
        _, own_s = own.before(request.request_id) if own is not None else (0.0, 0.0)
        share_s = (own_s + request.geometry.work_s(self._stage)) / self._weights.get(request.tenant, 1.0)
        others = (each.work_for_s(share_s * each.weight) for each in self._ring.values() if each is not own)
        return own_s + sum_of_few(others, len(self._ring) - (own is not None))

    def __len__(self) -> int:
        return self._num_waiting

    def _whose_turn(self) -> _Tenant:
        while True:
            for _ in range(len(self._ring) + 1):
                name, tenant = next(iter(self._ring.items()))
                if tenant.fits():
                    return tenant
                self._ring[name] = self._ring.pop(name)
                self._begin_turn()
            rounds = min(each.turns_missing(self._quantum_s) for each in self._ring.values()) - 1
            for each in self._ring.values():
                each.deficit_s += max(0, rounds) * self._quantum_s * each.weight

    def _begin_turn(self) -> None:
        tenant = next(iter(self._ring.values()))
        tenant.deficit_s += self._quantum_s * tenant.weight
