"""Small fleets and plain traffic for tests of the simulator."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.sim.topology import FleetSpec, PoolSpec
from cluster.sim.traffic import Arrival, PlannedRequest
from engines.model.cost_model import StepCoefficients
from engines.model.profile import EngineProfile, KvCache, Provenance
from policies.catalog import PolicyChoice, PolicySpec
from policies.views import Role
from routing.config.spec import DispatcherSpec
from routing.request.effects import Outcome

PROFILE = EngineProfile(
    name="test",
    provenance=Provenance(kind="analytic", model="none", machine="none", date="2026-01-01", method="made up"),
    step=StepCoefficients(step_s=0.004, new_token_s=3e-5, attention_pair_s=1e-9, sequence_s=1e-5, context_token_s=5e-8),
    kv=KvCache(block_tokens=16, capacity_tokens=65_536, bytes_per_token=100_000, bandwidth_bytes_per_s=1e10),
    context_tokens=8_192,
    max_num_seqs=32,
    max_num_batched_tokens=2_048,
    start_s=10.0,
)
UNIFIED = frozenset({Role.UNIFIED})


def fleet(
    replicas: int = 2, *, is_disaggregated: bool = False, profile: EngineProfile = PROFILE, **settings: Any
) -> FleetSpec:
    """Pools of equal size."""
    roles = (Role.PREFILL, Role.DECODE) if is_disaggregated else (Role.UNIFIED,)
    pools = tuple(PoolSpec(role=role, replicas=replicas, profile=profile, limits=profile.limits()) for role in roles)
    num_gateways = int(settings.pop("num_gateways", 1))
    return FleetSpec(pools=pools, num_gateways=num_gateways, **settings)


def dispatcher(spec: FleetSpec, balancing: str = "least_work_left", planner: str = "") -> DispatcherSpec:
    """All policies off, and the planner that the fleet's pools call for, unless another is named."""
    planner = planner or ("always_disaggregated" if Role.PREFILL in spec.roles_by_pool.values() else "always_unified")
    return DispatcherSpec(
        planner=PolicyChoice(name=planner),
        pools=spec.roles_by_pool,
        whole_request_pools=spec.whole_request_pools,
        policies=PolicySpec(balancing=PolicyChoice(name=balancing)),
        rates=spec.rates,
        prefixes=PolicyChoice(name="block_hash"),
    )


@dataclass
class PlainTraffic:
    """A list of requests; remembers how each ended."""

    plan: Sequence[Arrival]
    ended: list[tuple[str, Outcome, float]] = field(default_factory=list)

    def arrivals(self) -> Iterator[Arrival]:
        return iter(self.plan)

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        self.ended.append((request.request_id, outcome, now_s))
        return ()


def planned(logical_request: int = 0, **terms: Any) -> PlannedRequest:
    """The first request of a request that is as long as its limit; other terms by their names."""
    usual = {"scheduled_s": 0.0, "prompt_tokens": 20, "output_tokens": 3, "timeout_s": 30.0}
    values = {"request_id": f"{logical_request}-0", **usual, **terms}
    return PlannedRequest(logical_request=logical_request, **{"max_output_tokens": values["output_tokens"], **values})


def request(number: int, at_s: float, prompt_tokens: int = 100, output_tokens: int = 20, **more: float) -> Arrival:
    """One arrival."""
    terms = {"max_output_tokens": max(output_tokens, 256), "timeout_s": 60.0, **more}
    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return Arrival(at_s, planned(number, request_id=f"r{number}", scheduled_s=at_s, **lengths, **terms))


def poisson(num_requests: int, rate_per_s: float, seed: int) -> PlainTraffic:
    """A ragged mix at random times."""
    rng = random.Random(seed)
    at_s, plan = 0.0, []
    for number in range(num_requests):
        at_s += rng.expovariate(rate_per_s)
        prompt_tokens = 4_000 if rng.random() < 0.1 else rng.randrange(1, 200)
        plan.append(request(number, at_s, prompt_tokens, rng.choice([1, 2, 16, 120])))
    return PlainTraffic(plan)
