"""Which formulas predict a scenario's fleet."""

from engines.model.profile import load_profile
from loadtests.plan.sizing.demand import demand_of
from loadtests.plan.sizing.engine import Engine
from loadtests.plan.sizing.prediction import Pools
from loadtests.plan.sizing.prefill_decode_pools import PrefillDecodePools
from loadtests.plan.sizing.unified_pool import UnifiedPool
from loadtests.scenario.scenario import Scenario
from policies.errors import ConfigError
from policies.views import Role

_KINDS: dict[tuple[Role, ...], type[UnifiedPool] | type[PrefillDecodePools]] = {
    (Role.UNIFIED,): UnifiedPool,
    (Role.PREFILL, Role.DECODE): PrefillDecodePools,
}


def pools_of(scenario: Scenario, *, dollars_per_h: float = 0.0, watts: float = 0.0) -> Pools:
    """What formulas say of a scenario's users on its kind of fleet, with the workload of its first seed.

    Args:
        scenario: The scenario.
        dollars_per_h: What a replica costs.
        watts: What it draws.

    Raises:
        ConfigError: It has pools, or users, that there are no formulas for.
    """
    roles = tuple(each.role for each in scenario.fleet.pools)
    if roles not in _KINDS:
        allowed = "a unified pool, or a prefill and a decode pool, in this order"
        raise ConfigError("fleet.pools", list(map(str, roles)), allowed)
    fleet, profile = scenario.fleet_spec(), load_profile(scenario.profile)
    engine = Engine(
        rates=fleet.rates,
        request_s=profile.overheads.request_s,
        token_s=profile.overheads.token_s,
        kv_capacity_tokens=fleet.pools[-1].kv_capacity_tokens or profile.kv.capacity_tokens,
        kv_block_tokens=profile.kv.block_tokens,
        max_num_seqs=fleet.pools[-1].limits.max_num_seqs,
        dollars_per_h=dollars_per_h,
        watts=watts,
    )
    return _KINDS[roles](demand_of(scenario, scenario.seeds[0]), engine)
