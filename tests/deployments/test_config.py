import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from cluster import Seeds
from deployments import launch
from deployments.app import read_config
from deployments.config import ROOT, AppConfig, GatewayConfig, PoolConfig
from policies import Need, Role, build
from policies.errors import ConfigError
from routing import build_planner

SHIPPED = sorted((ROOT / "deployments" / "configs").glob("*.yaml"))
UNIFIED = {
    "model": {"id": "tiny", "path": ".models/tiny-llama"},
    "pools": [{"name": "unified", "role": "unified"}],
    "policies": {"planning": "always_unified"},
}


def args(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(UNIFIED), **changes}


def pools(*pairs: tuple[str, str]) -> dict[str, Any]:
    return args(pools=[{"name": name, "role": role} for name, role in pairs])


def error_in(document: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_config(document)
    return caught.value


def put(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The document with one value at a dotted path."""
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = document
    for part in way:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    place[last] = value
    return document


def test_what_is_left_out_has_a_default() -> None:
    config = read_config(args())

    assert config.gateway == GatewayConfig()
    assert config.policies.balancing.name == "least_work_left"
    assert config.roles == {Role.UNIFIED}


def test_a_config_survives_the_way_into_a_replica() -> None:
    config = read_config(args(gateway={"seed": 7}, policies={"planning": "always_unified", "balancing": "random"}))

    assert AppConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "path",
    [
        "speed",
        "model.speed",
        "engine.speed",
        "pools.0.speed",
        "gateway.speed",
        "policies.speed",
        "policies.hedging.speed",
    ],
)
def test_an_unknown_field_is_refused_and_named(path: str) -> None:
    document = put(args(policies={"planning": "always_unified", "hedging": {"name": "no_hedge"}}), path, 7)

    error = error_in(document)

    assert (error.field, error.value) == (path, 7)
    assert "not permitted" in error.allowed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.id", ""),
        ("model.path", ""),
        ("engine.kind", "abacus"),
        ("engine.kv_buffer_device", "tape"),
        ("engine.kv_lease_s", 5),
        ("engine.kv_lease_s", 3601),
        ("engine.kv_poll_interval_s", 0.2),
        ("engine.stall_after_s", 0),
        ("pools", []),
        ("pools.0.name", "1st"),
        ("pools.0.name", ""),
        ("pools.0.role", "spare"),
        ("pools.0.replicas", 0),
        ("pools.0.replicas", 4097),
        ("pools.0.max_num_seqs", 0),
        ("pools.0.num_cpus", -1),
        ("pools.0.num_gpus", -0.1),
        ("pools.0.health_check_period_s", 0),
        ("gateway.replicas", 0),
        ("gateway.max_body_bytes", 1023),
        ("gateway.request_timeout_s", 0),
        ("gateway.request_timeout_s", 86_401),
        ("gateway.flush_interval_s", 1.1),
        ("gateway.max_attempts", 1),
        ("gateway.max_attempts", 17),
        ("gateway.suspect_s", -1),
        ("gateway.retry_after_s", 0),
        ("gateway.seed", "lucky"),
        ("policies.planning", 7),
    ],
)
def test_a_value_out_of_range_is_refused_and_told_what_is_allowed(path: str, value: object) -> None:
    error = error_in(put(args(), path, value))

    assert (error.field, error.value) == (path, value)
    assert error.allowed
    assert str(error).startswith(f"{path}: got {value!r}; allowed: ")


@pytest.mark.parametrize("name", ["model", "pools", "policies"])
def test_a_missing_section_is_named(name: str) -> None:
    document = args()
    del document[name]

    assert error_in(document).field == name


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (pools(("a", "prefill"), ("a", "decode")), "the names ['a', 'a']; allowed: each name once"),
        (pools(("a", "unified"), ("b", "unified")), "['unified', 'unified']; allowed: one pool for each role"),
        (pools(("a", "prefill")), "one side of the handoff alone; allowed: prefill and decode, both or neither"),
        (pools(("a", "decode"), ("b", "unified")), "one side of the handoff alone"),
    ],
    ids=["same_name", "same_role", "prefill_alone", "decode_alone"],
)
def test_pools_that_do_not_fit_together_are_refused(document: dict[str, Any], words: str) -> None:
    assert words in str(error_in(document))


def test_three_roles_fit_together() -> None:
    assert read_config(pools(("p", "prefill"), ("d", "decode"), ("u", "unified"))).roles == set(Role)


def test_a_policys_name_alone_is_short_for_a_policy_without_parameters() -> None:
    short = read_config(args(policies={"planning": "always_unified", "balancing": "random"}))
    long = read_config(args(policies={"planning": "always_unified", "balancing": {"name": "random", "params": {}}}))

    assert short == long


@pytest.mark.parametrize(("num_seqs", "ongoing"), [(1, 2), (4, 5), (128, 160), (3, 4)])
def test_a_replica_takes_a_quarter_more_than_fits_into_a_step(num_seqs: int, ongoing: int) -> None:
    assert PoolConfig(name="p", role=Role.UNIFIED, max_num_seqs=num_seqs).max_ongoing_requests == ongoing


def test_a_folder_of_the_application_is_found_from_everywhere_and_another_name_is_left_alone() -> None:
    there = read_config(args(model={"id": "m", "path": "deployments/configs"}))
    elsewhere = read_config(args(model={"id": "m", "path": "organisation/model"}))

    assert there.model.resolved_path() == str(ROOT / "deployments" / "configs")
    assert elsewhere.model.resolved_path() == "organisation/model"


# -- what is shipped --------------------------------------------------------------------------------------------------

shipped = pytest.mark.parametrize("path", SHIPPED, ids=lambda each: each.stem)
Check = Callable[[AppConfig], None]


def builds_its_policies(config: AppConfig) -> None:
    build(config.policies.spec(), rng_for=Seeds(0).stream, provided=frozenset(Need))
    build_planner(config.policies.planning, config.roles)


@shipped
def test_a_shipped_configuration_is_valid_and_builds_its_policies(path: Any) -> None:
    (application,) = launch.load(path)["applications"]

    builds_its_policies(read_config(application["args"]))


@shipped
def test_a_shipped_configuration_starts_this_application(path: Any) -> None:
    document = yaml.safe_load(path.read_text())

    assert [each["import_path"] for each in document["applications"]] == ["deployments.app:build"]
    assert path.read_text().startswith("# ")


def test_there_is_something_shipped() -> None:
    assert {"local-vllm", "unified-vllm"} <= {path.stem for path in SHIPPED}
