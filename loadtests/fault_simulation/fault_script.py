"""One run as data: a small fleet, its policies, its traffic, and everything that goes wrong. A seed says it all.

Swarm testing (Groce et al., 2012): each script draws which kinds of faults it has at all, so that some have one kind
alone and many times, and not all of them a little of everything.
"""

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from cluster.clock import ClockSkew
from cluster.seeds import Seeds
from cluster.sim.faults import (
    AnyFault,
    CoordinatorOutage,
    Fault,
    GatewayDeath,
    GatewayPause,
    Partition,
    Reconfiguration,
    SlowNetwork,
)
from cluster.sim.topology import FleetSpec, PoolSpec
from engines.faults import FaultKind
from engines.model.profile import EngineProfile, load_profile
from policies.catalog import PolicyChoice, PolicySpec
from policies.views import Role
from routing.config.spec import DispatcherParams, DispatcherSpec, LeaderFirst
from routing.intake.slos import Slo, Slos

NAMES: Mapping[str, Sequence[str]] = {
    "admission": ("always_admit", "bounded_queue", "deadline"),
    "preemption": ("never_preempt", "newest_sheddable"),
    "hedging": ("no_hedge", "fixed_delay", "slowdown", "tied"),
    "retrying": ("backoff", "at_once", "never_retry"),
    "ejection": ("never_eject", "outlier"),
    "queueing": ("fcfs", "edf", "priority", "drr"),
    "balancing": ("least_work_left", "power_of_two", "least_delay", "prefix_affinity", "random", "scored"),
}
"""Policies that a script draws from, each with its own defaults."""
PARAMS: Mapping[str, Mapping[str, float]] = {"fixed_delay": {"wait_s": 0.3}, "bounded_queue": {"max_wait_s": 2.0}}
START_S = 2.0
"""A replica that dies is back soon: a run is short."""
KV_LEASE_S = 10.0
KV_TOKENS = 40_000
"""Room for some ten requests: memory is short now and then."""
RATES_PER_REPLICA_S = (4.0, 12.0, 40.0)
"""Idle, busy, and more than there is room for."""
LONGEST_FAULT_S = 8.0
MOST_DRIFT_FRACTION = 0.001
"""Twenty times what a quartz does that nobody corrects."""


class DrawnFault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong.

    Args:
        kind: A :class:`engines.faults.FaultKind`, ``coordinator``, ``pause``, ``death``, ``partition``,
            ``slow_network``, ``reload`` or ``poison``.
        at_s: When.
        for_s: For how long.
        gateway: Where, if it is a gateway's.
        side: Which of the pools, if it is a replica's.
        replica: Which of its replicas.
        policies: For ``reload``: what is used from then on.
    """

    kind: str
    at_s: float
    for_s: float
    gateway: int = 0
    side: int = 0
    replica: int = 0
    policies: dict[str, str] = {}


class FaultScript(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        seed: Of traffic and policies.
        num_requests: Logical requests.
        rate_per_s: How many of them come in a second.
        num_gateways: Gateways.
        num_replicas: Of each pool.
        is_disaggregated: Whether prompts and answers have pools of their own.
        policies: A name for each question.
        max_requests: What a client sends for a logical request at the most.
        faults: What goes wrong.
        clocks: Of the gateways; none: they all show the run's time.
        leader_first: When requests with one prompt go one at a time.
    """

    seed: int
    num_requests: int
    rate_per_s: float
    num_gateways: int
    num_replicas: int
    is_disaggregated: bool
    policies: dict[str, str]
    max_requests: int
    faults: tuple[DrawnFault, ...]
    clocks: tuple[ClockSkew, ...] = ()
    leader_first: LeaderFirst = LeaderFirst.SUSPECT

    @property
    def sides(self) -> Sequence[Role]:
        """Roles of the pools."""
        return (Role.PREFILL, Role.DECODE) if self.is_disaggregated else (Role.UNIFIED,)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last, about."""
        return self.num_requests / self.rate_per_s

    @property
    def fleet(self) -> FleetSpec:
        """Gateways and pools."""
        profile = _profile()
        pools = tuple(
            PoolSpec(role=role, replicas=self.num_replicas, profile=profile, limits=profile.limits())
            for role in self.sides
        )
        return FleetSpec(pools=pools, num_gateways=self.num_gateways, kv_lease_s=KV_LEASE_S, gateway_clocks=self.clocks)

    def dispatcher(self, policies: Mapping[str, str]) -> DispatcherSpec:
        """What gateways decide by."""
        fleet = self.fleet
        choices = {
            question: PolicyChoice(name=name, params=PARAMS.get(name, {})) for question, name in policies.items()
        }
        return DispatcherSpec(
            planner=PolicyChoice(name="always_disaggregated" if self.is_disaggregated else "always_unified"),
            pools=fleet.roles_by_pool,
            policies=PolicySpec(**choices),
            slos=Slos(default=Slo(ttft_s=5.0)),
            prefixes=PolicyChoice(name="block_hash"),
            rates=fleet.rates,
            kv_lease_s=KV_LEASE_S,
            params=DispatcherParams(waiting_room_s=15.0, leader_first=self.leader_first),
            num_gateways=self.num_gateways,
            has_load_coordinator=self.num_gateways > 1,
        )

    @property
    def all_faults(self) -> Sequence[AnyFault]:
        """What goes wrong, as the simulator takes it; poison comes with the traffic."""
        return [self._fault(each) for each in self.faults if each.kind != "poison"]

    @property
    def poison_at_s(self) -> Sequence[float]:
        """When prompts come that kill their replicas, with one request each or with several."""
        return [each.at_s for each in self.faults if each.kind == "poison"]

    def _fault(self, drawn: DrawnFault) -> AnyFault:
        at_s, for_s, role = drawn.at_s, drawn.for_s, self.sides[drawn.side]
        match drawn.kind:
            case "coordinator":
                return CoordinatorOutage(at_s=at_s, for_s=for_s)
            case "pause" | "death":
                kind_of = GatewayPause if drawn.kind == "pause" else GatewayDeath
                return kind_of(at_s=at_s, for_s=for_s, gateway=drawn.gateway)
            case "partition":
                return Partition(at_s=at_s, for_s=for_s, gateway=drawn.gateway, role=role, replica=drawn.replica)
            case "slow_network":
                return SlowNetwork(at_s=at_s, for_s=for_s, gateway=drawn.gateway, extra_s=0.05 * (1 + drawn.replica))
            case "reload":
                return Reconfiguration(at_s=at_s, dispatcher=self.dispatcher(drawn.policies))
            case kind:
                slower = 5.0 if kind == FaultKind.SLOW else 1.0
                return Fault(
                    kind=FaultKind(kind), at_s=at_s, for_s=for_s, role=role, replica=drawn.replica, factor=slower
                )


OF_REPLICAS = tuple(kind.value for kind in FaultKind)
KINDS = (*OF_REPLICAS, "coordinator", "pause", "death", "partition", "slow_network", "reload", "poison")
"""All that can go wrong at a time."""
CLOCKS = "clock"
"""What is wrong from the beginning to the end: a gateway's clock."""


def draw(seed: int, num_requests: int) -> FaultScript:
    """The script of a seed."""
    rng = Seeds(seed).stream("fault script")
    num_gateways, num_replicas = rng.choice((1, 2, 3)), rng.choice((2, 3, 5))
    script = FaultScript(
        seed=seed,
        num_requests=num_requests,
        rate_per_s=num_replicas * rng.choice(RATES_PER_REPLICA_S),
        num_gateways=num_gateways,
        num_replicas=num_replicas,
        is_disaggregated=rng.random() < 0.5,
        policies=_draw_policies(rng),
        max_requests=rng.choice((1, 3)),
        faults=(),
    )
    kinds = [kind for kind in KINDS if rng.random() < 0.4] or [rng.choice(KINDS)]
    num_faults = max(1, int(script.duration_s / rng.choice((1.0, 3.0, 10.0))))
    faults = sorted(
        (_draw_fault(rng, script, rng.choice(kinds)) for _ in range(num_faults)), key=lambda each: each.at_s
    )
    clocks, leader_first = _draw_clocks(rng, num_gateways), rng.choice(list(LeaderFirst))
    return msgspec.structs.replace(script, faults=tuple(faults), clocks=clocks, leader_first=leader_first)


def _draw_policies(rng: Random) -> dict[str, str]:
    return {question: rng.choice(names) for question, names in NAMES.items()}


def _draw_clocks(rng: Random, number: int) -> tuple[ClockSkew, ...]:
    """Every other script has gateways whose clocks agree in nothing: nodes that were started days apart, and drift."""
    if rng.random() < 0.5:
        return ()
    return tuple(
        ClockSkew(
            ahead_s=round(rng.choice((0.0, 100.0, 1_000_000.0)) * rng.random(), 3),
            rate=round(1.0 + rng.uniform(-MOST_DRIFT_FRACTION, MOST_DRIFT_FRACTION), 6),
        )
        for _ in range(number)
    )


def _draw_fault(rng: Random, script: FaultScript, kind: str) -> DrawnFault:
    if kind == FaultKind.DROP_KV and not script.is_disaggregated:
        kind = FaultKind.CRASH.value
    return DrawnFault(
        kind=kind,
        at_s=round(rng.random() * script.duration_s, 3),
        for_s=round(0.05 + rng.random() ** 2 * LONGEST_FAULT_S, 3),
        gateway=rng.randrange(script.num_gateways),
        side=0 if kind == FaultKind.DROP_KV else rng.randrange(len(script.sides)),
        replica=rng.randrange(script.num_replicas),
        policies=_draw_policies(rng) if kind == "reload" else {},
    )


def _profile() -> EngineProfile:
    profile = load_profile("h100-llama3-8b")
    kv = msgspec.structs.replace(profile.kv, capacity_tokens=KV_TOKENS)
    return msgspec.structs.replace(profile, start_s=START_S, kv=kv)
