"""Which arguments each of a pool's engines runs with, while they are being changed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.config import AppConfig
from deployments.replica.engine_versions import EngineVersions, check_versions, versions_of, with_engine_args
from policies.errors import ConfigError
from tests.deployments.live_cluster import emulated_args
from tests.tables import for_each

CANARY = {"engine_args": {"slowdown": 1.0}, "canary": {"engine_args": {"slowdown": 2.0}, "replicas": 2}}


@given(st.integers(0, 100))
def test_so_many_replicas_are_canaries_as_are_asked_for_whichever_replicas_these_are(rank: int) -> None:
    versions = versions_of(CANARY, "user_config")
    assert versions.is_canary(rank) == (rank < 2)
    assert versions.engine_args_of(rank) == {"slowdown": 2.0 if rank < 2 else 1.0}


@for_each("user_config", [None, {}])
def test_without_user_config_a_pool_has_its_own(user_config: object) -> None:
    assert versions_of(user_config, "user_config") == EngineVersions()
    assert not versions_of(user_config, "user_config").is_canary(0)


def test_arguments_are_laid_over_the_pools_own() -> None:
    pool = args().pools[0].model_copy(update={"engine_args": {"seed": 1, "slowdown": 1.5}})
    assert with_engine_args(pool, {"slowdown": 2.0}).engine_args == {"seed": 1, "slowdown": 2.0}


def args(**more: Any) -> AppConfig:
    return AppConfig.model_validate({**emulated_args(), **more})


@for_each(
    ("user_config", "named"),
    [
        ({"engine_arg": {}}, "deployments.unified.user_config.engine_arg"),
        ({"canary": {"engine_args": {}, "replicas": 0}}, "deployments.unified.user_config.canary.replicas"),
        ({"canary": {"replicas": 1}}, "deployments.unified.user_config.canary.engine_args"),
        ({"engine_args": {"slowdown": -1}}, "pools.unified.engine_args.slowdown"),
        ({"canary": {"engine_args": {"block": 1}, "replicas": 1}}, "pools.unified.engine_args.block"),
    ],
)
def test_what_no_engine_can_have_is_named_before_it_is_deployed(user_config: dict[str, Any], named: str) -> None:
    config = args()
    with pytest.raises(ConfigError) as caught:
        check_versions(user_config, config.pools[0], config)
    assert caught.value.field == named


def test_another_number_of_workers_takes_other_replicas() -> None:
    config = args()
    pool = config.pools[0].model_copy(update={"placement_group_strategy": "PACK"})
    with pytest.raises(ConfigError, match="another number takes other replicas"):
        check_versions({"engine_args": {"tensor_parallel_size": 2}}, pool, config)
    check_versions(CANARY, pool, config)
