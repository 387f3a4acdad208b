from dataclasses import replace

import pytest

from cluster.sim.topology import FleetSpec, PoolSpec
from engines.model.profile import load_profile
from policies.errors import ConfigError
from policies.views import Role
from tests.tables import for_each

PROFILE = load_profile("h100-llama3-8b")


def pool(role: Role, max_num_seqs: int) -> PoolSpec:
    return PoolSpec(role=role, replicas=1, profile=PROFILE, limits=PROFILE.limits(max_num_seqs=max_num_seqs))


def test_a_token_of_an_answer_costs_its_share_of_a_step_where_answers_are_given() -> None:
    """Not where prompts are computed: there a step may have room for two sequences."""
    fleet = FleetSpec(pools=(pool(Role.PREFILL, 2), pool(Role.DECODE, 128)))

    assert fleet.rates.decode_batch == 32
    unified = FleetSpec(pools=(pool(Role.UNIFIED, 128),)).rates
    assert replace(fleet.rates, step_tokens=unified.step_tokens) == unified


@for_each("role", [Role.PREFILL, Role.DECODE])
def test_one_side_of_the_handoff_alone_is_no_fleet(role: Role) -> None:
    with pytest.raises(ConfigError, match="both or neither"):
        FleetSpec(pools=(pool(role, 8),))
