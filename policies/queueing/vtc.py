"""The tenant that has been given the fewest tokens goes first."""

import math
from collections.abc import Mapping
from typing import ClassVar

from policies.contracts import Need
from policies.errors import ConfigError
from policies.queueing.tenant_accounts import Charge, TenantAccounts
from policies.queueing.tenant_queue import checked_weights, sum_of_few
from policies.signals import Answering, Ended, RequestSignal, Signal, Started
from policies.views import RequestView, Role


class Vtc:
    """Which of the waiting requests goes next? The first one of the tenant that has been given the fewest tokens.

    Rule: a counter for each tenant goes up by ``prompt_weight * prompt + output_weight * expected answer``, over the
        tenant's weight, when a request of it leaves the queue. The answer's part is put right when the request ends: by
        its length if it is complete; what broke off or was given up after its first token stays as expected; what was
        not spent, or is enqueued again, is given back. A tenant of whom nothing waited comes back with at least the
        counter of who went last, so that idleness is not saved up, and with what it was ahead halved for every
        ``half_life_s`` in between. Of two tenants who wait throughout, neither gets more than ``2 * max(prompt_weight *
        L, output_weight * M)`` over the other: L the longest prompt, M KV tokens that all requests which left the queue
        and have not ended may hold; for weights of 1, ``prompt_weight <= output_weight`` and expected answers that are
        never too short (``max_tokens``). Other predictors add twice what they may be wrong by, all open requests
        together.
    State: who waits, by tenant; a charge for each request that left and has not ended; counters of at most
        ``max_tenants`` of whom nothing waits, and only of those who are ahead.
    Consumes: Started, Answering, Ended; of the requests that left this queue.
    Complexity: O(log tenants) amortized. ``work_ahead_s`` looks at 64 tenants, and of the tenant's own requests at
        those before one that waits here already.
    Failure mode: tokens are not seconds: what is cached counts in full, and requests that are dear by token are cheap
        here. Each line of each gateway counts by itself. Who has many names has many shares.
    Source: Sheng et al., Fairness in Serving Large Language Models (VTC), OSDI 2024.

    Args:
        stage: What its requests wait for.
        prompt_weight: What a prompt token counts.
        output_weight: What a token of the answer counts.
        half_life_s: After how long of idleness half of a lead is forgotten; ``inf``: never.
        max_tenants: Idle tenants that are remembered.
        weights: Weight by tenant; 1 for all others.

    Raises:
        ConfigError: A value out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Started, Answering, Ended})

    def __init__(
        self,
        *,
        stage: Role = Role.UNIFIED,
        prompt_weight: float = 1.0,
        output_weight: float = 2.0,
        half_life_s: float = 60.0,
        max_tenants: int = 1000,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        for name, value in (("prompt_weight", prompt_weight), ("output_weight", output_weight)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"policies.queueing.params.{name}", value, "a finite number from 0 on")
        if not 0 < half_life_s <= math.inf:
            raise ConfigError("policies.queueing.params.half_life_s", half_life_s, "more than 0; .inf: never")
        if not 1 <= max_tenants < math.inf:
            raise ConfigError("policies.queueing.params.max_tenants", max_tenants, "1 or more")
        self._stage = stage
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._accounts = TenantAccounts(checked_weights(weights), half_life_s, max_tenants)
        self._num_waiting = 0
        self._charges: dict[str, Charge] = {}
        self._now_s = 0.0

    @property
    def num_tenants(self) -> int:
        """Tenants that it knows of."""
        return len(self._accounts)

    def push(self, request: RequestView, now_s: float) -> None:
        self._now_s = now_s
        back = self._charges.pop(request.request_id, None)
        if back is not None:
            self._accounts.charge(back.tenant, -back.prompt - back.output)
        self._num_waiting += 1
        work_s = request.geometry.work_s(self._stage)
        self._accounts.waiting(request.tenant, now_s).push(request, sum(self._costs(request)), work_s)

    def peek(self, now_s: float) -> RequestView:
        return self._accounts.least().first()[0]

    def pop(self, now_s: float) -> RequestView:
        self._now_s = now_s
        request = self.peek(now_s)
        charge = Charge(request.tenant, *self._costs(request))
        self._charges[request.request_id] = charge
        self._accounts.goes(request.tenant)
        self._accounts.charge(request.tenant, charge.prompt + charge.output)
        self.remove(request)
        return request

    def remove(self, request: RequestView) -> bool:
        queue = self._accounts.busy.get(request.tenant)
        if queue is None or not queue.remove(request.request_id):
            return False
        self._num_waiting -= 1
        if not queue:
            self._accounts.rest(request.tenant, self._now_s)
        return True

    def observe(self, signal: RequestSignal) -> None:
        self._now_s = signal.at_s
        request_id = signal.request.request_id
        charge = self._charges.get(request_id)
        if charge is None:
            return
        if isinstance(signal, Ended):
            del self._charges[request_id]
            spent = charge.spent(signal, self._output_weight)
            self._accounts.charge(charge.tenant, spent - charge.prompt - charge.output)
        elif isinstance(signal, Started):
            charge.is_started = True
        else:
            charge.is_answering = True

    def work_ahead_s(self, request: RequestView) -> float:
        """An estimate: the tenant's own work before the request, and of others until their counters are where its is.

        Off by a request for each tenant that waits, by what expected answers are off by, and by what comes to wait in
        the meantime, if all looked at are like those that are not.
        """
        busy = self._accounts.busy
        own = busy.get(request.tenant)
        cost, own_s = own.before(request.request_id) if own is not None else (0.0, 0.0)
        weight = self._accounts.weight(request.tenant)
        until = self._accounts.counter(request.tenant, self._now_s) + cost / weight
        others = (each.work_for_s((until - each.counter) * each.weight) for each in busy.values() if each is not own)
        return own_s + sum_of_few(others, len(busy) - (own is not None))

    def __len__(self) -> int:
        return self._num_waiting

    def _costs(self, request: RequestView) -> tuple[float, float]:
        answer_tokens = request.geometry.output_tokens or request.max_output_tokens
        return self._prompt_weight * request.prompt_tokens, self._output_weight * answer_tokens
