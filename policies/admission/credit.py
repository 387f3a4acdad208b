"""No prefill is begun whose decode would find no KV."""

from dataclasses import dataclass
from typing import Any, ClassVar

from policies.contracts import Need
from policies.decisions import ADMIT, WAIT, Admit, Wait
from policies.params import ADMISSION
from policies.signals import Ended, Signal, Started
from policies.views import BacklogView, RequestView


@dataclass(slots=True)
class _Held:
    """The KV tokens of a request that was sent."""

    tokens: int = 0


class Credit:
    """May this request start? If there is credit for the KV tokens of its whole answer.

    Rule: everybody comes in. At the head of the queue a request waits until its KV tokens at their longest fit into
        what is left of ``overcommit`` times the capacity of the replicas that will answer it; the credit is taken when
        its prefill is sent, not when it arrives, and given back with its verdict. A request that alone is more than
        all there is starts when nobody else holds any.
    State: the credit that is held in all; each request's own is its permit.
    Consumes: ``Started`` and ``Ended``.
    Complexity: O(1), and a look at each replica of the last stage.
    Failure mode: credit lies idle while a prefill runs, hence ``overcommit``; answers shorter than predicted waste
        some, longer ones take what nobody gave. A request that waits for credit holds up those behind it, and where
        nothing else bounds the queue it waits until its deadline: put ``deadline`` beside it in a ``chain``. Each
        gateway deals in its own share of the capacity.
    Source: Breakwater (OSDI 2020), credits by the server; in KV tokens, because that is what a decode waits for.

    Args:
        overcommit: Credit given out over the capacity.
        num_gateways: Among which the capacity is divided evenly.

    Raises:
        ConfigError: A number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Started, Ended})

    def __init__(self, *, overcommit: float = 1.1, num_gateways: int = 1) -> None:
        ADMISSION.check_positive("overcommit", overcommit)
        ADMISSION.check_number("num_gateways", num_gateways, 1)
        self._share = overcommit / num_gateways
        self._num_holders = 0
        self._num_held_tokens = 0

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit:
        return Admit(_Held())

    def start(self, request: RequestView, backlog: BacklogView, now_s: float, permit: Any) -> Admit | Wait:
        wanted = self._num_held_tokens + request.kv_tokens
        fits = not self._num_holders or wanted <= self._share * backlog.kv_capacity_tokens
        return ADMIT if fits else WAIT

    def observe(self, signal: Started | Ended) -> None:
        held: _Held | None = signal.permit
        if held is None:
            return
        if isinstance(signal, Started):
            held.tokens = signal.request.kv_tokens
            self._num_holders += 1
            self._num_held_tokens += held.tokens
        elif held.tokens:
            self._num_holders -= 1
            self._num_held_tokens -= held.tokens
