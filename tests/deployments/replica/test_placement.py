"""What Ray is asked to set aside for a replica."""

from typing import Any

import pytest

from deployments.config import EngineConfig, PoolConfig
from deployments.replica.placement import placement_of
from policies.errors import ConfigError
from policies.views import Role
from tests.tables import for_each

VLLM = EngineConfig()
FOUR_WORKERS = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}


def pool(**more: Any) -> PoolConfig:
    return PoolConfig.model_validate({"name": "decode", "role": Role.DECODE, "num_cpus": 4, **more})


def test_a_replica_is_one_actor_on_one_node_with_all_its_gpus() -> None:
    found = placement_of(pool(num_gpus=4, accelerator_type="H100", engine_args=FOUR_WORKERS), VLLM)
    expected = {"num_cpus": 4.0, "num_gpus": 4.0, "resources": {}, "accelerator_type": "H100"}
    assert found == {"ray_actor_options": expected}


def test_with_a_placement_group_each_worker_has_a_bundle_and_the_first_one_the_replica_itself() -> None:
    args = {"num_gpus": 4, "accelerator_type": "H100", "resources": {"rack_7": 0.01}, "engine_args": FOUR_WORKERS}
    found = placement_of(pool(placement_group_strategy="PACK", label_selector={"zone": "a"}, **args), VLLM)
    bundle = {"CPU": 1.0, "GPU": 1.0, "accelerator_type:H100": 0.001, "rack_7": 0.01}
    assert found == {
        "ray_actor_options": {"num_cpus": 1.0, "num_gpus": 0},
        "placement_group_bundles": [bundle] * 4,
        "placement_group_strategy": "PACK",
        "placement_group_bundle_label_selector": [{"zone": "a"}] * 4,
    }


def test_only_workers_that_may_be_elsewhere_are_rays() -> None:
    spread = pool(placement_group_strategy="SPREAD", num_gpus=2, engine_args={"tensor_parallel_size": 2})
    assert spread.args_over(VLLM)["distributed_executor_backend"] == "ray"
    assert "distributed_executor_backend" not in pool(num_gpus=4, engine_args=FOUR_WORKERS).args_over(VLLM)


def test_a_pools_own_parallel_sizes_count() -> None:
    engine = EngineConfig(args={"tensor_parallel_size": 8})
    assert pool(engine_args={"tensor_parallel_size": 2}).num_workers(engine) == 2
    assert pool().num_workers(engine) == 8


def test_ranks_are_workers_too_and_take_requests_each_for_itself() -> None:
    ranks = pool(num_gpus=4, max_num_seqs=8, engine_args={"tensor_parallel_size": 2, "data_parallel_size": 2})
    assert placement_of(ranks, VLLM)["ray_actor_options"]["num_gpus"] == 4
    assert ranks.max_ongoing_requests(VLLM) == 2 * pool(max_num_seqs=8).max_ongoing_requests(VLLM)
    with pytest.raises(ConfigError, match=r"pools\.decode\.engine_args\.data_parallel_size"):
        placement_of(ranks.model_copy(update={"placement_group_strategy": "PACK"}), VLLM)


@for_each("num_gpus", [1, 3, 8, 0.5])
def test_workers_that_would_share_a_gpu_or_leave_one_are_refused(num_gpus: float) -> None:
    with pytest.raises(ConfigError, match=r"pools\.decode\.num_gpus.*4: tensor_parallel_size x pipeline_parallel_size"):
        placement_of(pool(num_gpus=num_gpus, engine_args=FOUR_WORKERS), VLLM)


@for_each("size", [0, -1, 1.5, True, "2"])
def test_a_parallel_size_that_is_no_number_of_workers_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"pools\.decode\.engine_args\.tensor_parallel_size"):
        placement_of(pool(engine_args={"tensor_parallel_size": size}), VLLM)
