"""A dispatcher in the middle of its work, one request after another, for a clock around each arrival."""

from collections import deque
from dataclasses import dataclass
from itertools import count

from cluster.seeds import Seeds
from policies.catalog import CATALOG, PolicyChoice, PolicySpec
from policies.contracts import Need
from policies.views import RequestView, Role
from routing.assembly import build_dispatcher
from routing.config.spec import DispatcherSpec, LanesSpec
from routing.lanes.lanes import Lane, TokenRange
from routing.request.events import (
    Arrived,
    AttemptFinished,
    FirstTokenReceived,
    FleetChanged,
    ReplicaInfo,
    ReplicaReported,
)
from routing.sizing.geometry import ServiceRates

INDEX = "block_hash"
"""The prefix tracker, where one is needed."""
OPEN_PER_REPLICA = 4
PROMPT_TOKENS = 8192
SHORT_PROMPT_TOKENS = 200
BLOCK_TOKENS = 64
NUM_BLOCKS = PROMPT_TOKENS // BLOCK_TOKENS
NUM_SESSIONS = 500
ARRIVALS_PER_REPORT = 5
SHORT = TokenRange(below=512)
LONG = TokenRange(at_least=512)


@dataclass(frozen=True, slots=True)
class DecisionCase:
    """What is measured.

    Args:
        balancer: Its name in the catalog.
        replicas: In all pools together.
        lanes: One for everything, or two with a pool of their own each.
    """

    balancer: str
    replicas: int
    lanes: int

    @property
    def needs_prefixes(self) -> bool:
        """Whether the balancer goes by the prefix index."""
        return Need.PREFIXES in self._requires or self.needs_rates

    @property
    def needs_rates(self) -> bool:
        """Whether the balancer reckons in seconds."""
        return Need.SERVICE_RATES in self._requires

    @property
    def _requires(self) -> frozenset[Need]:
        requires: frozenset[Need] = getattr(CATALOG["balancing"][self.balancer], "requires", frozenset())
        return requires


class BusyDispatcher:
    """Every replica has a few attempts; one request ends whenever another arrives, and replicas report.

    Where the prefix index is used every prompt is 8,192 tokens long, half of them shared with earlier prompts of its
    session; else every other prompt is short.

    Args:
        case: What is measured.
    """

    def __init__(self, case: DecisionCase) -> None:
        self._with_prefixes = case.needs_prefixes
        pools = ("short", "long")[: case.lanes]
        spec = DispatcherSpec(
            planner=PolicyChoice(name="always_unified"),
            pools=dict.fromkeys(pools, Role.UNIFIED),
            policies=PolicySpec(balancing=PolicyChoice(name=case.balancer)),
            lanes=LanesSpec(lanes=_two_lanes() if case.lanes == 2 else ()),
            prefixes=PolicyChoice(name=INDEX if self._with_prefixes else "none"),
            rates=ServiceRates(step_s=0.007, new_token_s=2e-5) if case.needs_rates else ServiceRates(),
        )
        self._dispatcher = build_dispatcher(spec, rng_for=Seeds(1).stream, provided=frozenset(Need))
        self._numbers = count()
        self._now_s = 0.0
        self._open: deque[str] = deque()
        self._replica_ids: list[str] = []
        for pool in pools:
            self._start(pool, case.replicas // len(pools))
        for _ in range(OPEN_PER_REPLICA * case.replicas):
            self.handle(*self.next_arrival(ends=False))

    @property
    def num_open_requests(self) -> int:
        """Requests that are not answered."""
        return self._dispatcher.num_open_requests

    def handle(self, event: Arrived, now_s: float) -> None:
        """What is measured: one arrival."""
        self._dispatcher.handle(event, now_s)

    def next_arrival(self, *, ends: bool = True) -> tuple[Arrived, float]:
        """What :meth:`handle` is called with next; everything else that happens meanwhile happens here."""
        number = next(self._numbers)
        self._now_s += 0.001
        if ends:
            self._tell(AttemptFinished(attempt_id=f"{self._open.popleft()}.0", output_tokens=100))
        if number % ARRIVALS_PER_REPORT == 0:
            self._report(self._replica_ids[number % len(self._replica_ids)])
        if self._open:
            self._tell(FirstTokenReceived(attempt_id=f"{self._open[-1]}.0"))
        request = self._request(number)
        self._open.append(request.request_id)
        return Arrived(request=request), self._now_s

    def _request(self, number: int) -> RequestView:
        session = number % NUM_SESSIONS
        prompt_tokens = PROMPT_TOKENS if self._with_prefixes or number % 2 else SHORT_PROMPT_TOKENS
        blocks: tuple[int, ...] = ()
        if self._with_prefixes:
            shared, own = range(NUM_BLOCKS // 2), range(NUM_BLOCKS // 2, NUM_BLOCKS)
            blocks = *((session << 40) + each for each in shared), *((number << 20) + each for each in own)
        return RequestView(
            request_id=f"q{number}",
            prompt_tokens=prompt_tokens,
            max_output_tokens=256,
            arrival_s=self._now_s,
            deadline_s=self._now_s + 600.0,
            session_id=f"session-{session}",
            prefix_blocks=blocks,
            prefix_block_tokens=BLOCK_TOKENS if blocks else 0,
        )

    def _report(self, replica_id: str) -> None:
        replica = self._dispatcher.fleet.get(replica_id)
        assert replica is not None
        tokens, kv_tokens = replica.prefill_tokens, replica.kv_tokens
        self._tell(
            ReplicaReported(replica_id=replica_id, prefill_tokens=tokens, kv_tokens=kv_tokens, kv_cache_usage=0.5)
        )

    def _start(self, pool: str, num_replicas: int) -> None:
        infos = tuple(
            ReplicaInfo(
                replica_id=f"{pool}-{number:04}",
                role=Role.UNIFIED,
                pool=pool,
                max_ongoing_requests=256,
                kv_capacity_tokens=400_000,
            )
            for number in range(num_replicas)
        )
        self._replica_ids += [each.replica_id for each in infos]
        self._tell(FleetChanged(pool=pool, role=Role.UNIFIED, replicas=infos))

    def _tell(self, event: FleetChanged | ReplicaReported | FirstTokenReceived | AttemptFinished) -> None:
        self._dispatcher.handle(event, self._now_s)


def _two_lanes() -> tuple[Lane, ...]:
    return (
        Lane(name="short", prompt_tokens=SHORT, pools=("short",), borrows_from=("long",)),
        Lane(name="long", prompt_tokens=LONG, pools=("long",)),
    )
