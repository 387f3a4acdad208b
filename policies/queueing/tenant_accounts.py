"""What each tenant has been given, as far as it matters for who is next."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from policies.queueing.tenant_queue import TenantQueue
from policies.signals import Ended


@dataclass(slots=True)
class Charge:
    """What a tenant was charged for a request that has left the queue, and how far the request has come."""

    tenant: str
    prompt: float
    output: float
    is_started: bool = False
    is_answering: bool = False

    def spent(self, ended: Ended, output_weight: float) -> float:
        """What the tenant is charged in the end; ``output_weight`` for each token."""
        if ended.is_completed:
            return self.prompt + output_weight * ended.output_tokens
        if self.is_answering:
            return self.prompt + self.output
        return self.prompt if self.is_started else 0.0


class Account(TenantQueue):
    """A tenant's queue, and its counter.

    Attributes:
        counter: What it was charged, over its weight; never less than what others had when it came.
        number: The higher, the later it began to wait.
        idle_since_s: When the last of its requests left the queue.
    """

    __slots__ = ("counter", "idle_since_s", "number")

    def __init__(self, weight: float, counter: float) -> None:
        super().__init__(weight)
        self.counter = counter
        self.number = 0
        self.idle_since_s = 0.0


class TenantAccounts:
    """Counters of the tenants of whom something waits, and of those who are ahead of them.

    Args:
        weights: Weight by tenant; 1 for all others.
        half_life_s: After how long of idleness half of a lead is forgotten.
        max_idle: How many tenants of whom nothing waits are remembered.

    Attributes:
        busy: Tenants of whom something waits.
        level: Where a tenant begins: the counter of the one that went last, as it was before, or of one before it that
            had more; when nothing waited any more, as it was afterwards.
    """

    def __init__(self, weights: Mapping[str, float], half_life_s: float, max_idle: int) -> None:
        self.busy: dict[str, Account] = {}
        self.level = 0.0
        self._idle: dict[str, Account] = {}  # the first one is looked at next
        self._weights = weights
        self._half_life_s = half_life_s
        self._max_idle = max_idle
        self._num_waits = 0
        self._heap: list[tuple[float, int, str]] = []

    def __len__(self) -> int:
        return len(self.busy) + len(self._idle)

    def weight(self, tenant: str) -> float:
        """A tenant's weight."""
        return self._weights.get(tenant, 1.0)

    def counter(self, tenant: str, now_s: float) -> float:
        """Where a tenant stands, or would if something of it came to wait now."""
        if tenant in self.busy:
            return self.busy[tenant].counter
        account = self._idle.get(tenant)
        if account is None or account.counter <= self.level:
            return self.level
        kept: float = 0.5 ** ((now_s - account.idle_since_s) / self._half_life_s)
        return self.level + (account.counter - self.level) * kept

    def waiting(self, tenant: str, now_s: float) -> Account:
        """The account of a tenant of whom something comes to wait."""
        account = self.busy.get(tenant)
        if account is None:
            counter = self.counter(tenant, now_s)
            account = self._idle.pop(tenant, None) or Account(self.weight(tenant), counter)
            account.counter = counter
            self._num_waits += 1
            account.number = self._num_waits
            self.busy[tenant] = account
            self._note(tenant, account)
        return account

    def least(self) -> Account:
        """Of those of whom something waits, the one with the smallest counter; among equals who waits longest.

        Raises:
            IndexError: Nothing waits.
        """
        if not self.busy:
            raise IndexError("no request waits")
        while True:
            counter, number, tenant = self._heap[0]
            account = self.busy.get(tenant)
            if account is not None and (account.counter, account.number) == (counter, number):
                return account
            heapq.heappop(self._heap)

    def goes(self, tenant: str) -> None:
        """A request of this tenant is next: nobody who comes to wait later may stand lower than it does."""
        self.level = max(self.level, self.busy[tenant].counter)

    def charge(self, tenant: str, amount: float) -> None:
        """Moves a counter up, or down; of a tenant that is forgotten there is none."""
        account = self.busy.get(tenant) or self._idle.get(tenant)
        if account is not None and amount:
            account.counter += amount / account.weight
            if tenant in self.busy:
                self._note(tenant, account)

    def rest(self, tenant: str, now_s: float) -> None:
        """Nothing waits of a tenant any more. Those who are not ahead, or too many, are forgotten, two at a time."""
        account = self._idle[tenant] = self.busy.pop(tenant)
        account.idle_since_s = now_s
        if not self.busy:  # nobody has been kept waiting by what it got
            self.level = max(self.level, account.counter)
        for _ in range(min(2, len(self._idle))):
            name = next(iter(self._idle))
            looked_at = self._idle.pop(name)
            if looked_at.counter > self.level and len(self._idle) < self._max_idle:
                self._idle[name] = looked_at

    def _note(self, tenant: str, account: Account) -> None:
        heapq.heappush(self._heap, (account.counter, account.number, tenant))
        if len(self._heap) > 4 * len(self.busy) + 64:
            self._heap = [(each.counter, each.number, name) for name, each in self.busy.items()]
            heapq.heapify(self._heap)
