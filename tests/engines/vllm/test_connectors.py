"""KV connectors by name: what an engine is started with."""

import pytest

from engines.vllm.connectors import (
    BOTH_SIDES,
    CONNECTORS,
    HANDOFF,
    KV_ROLES,
    NEITHER_SIDE,
    Connector,
    check_connectors,
    transfer_config,
)
from policies.errors import ConfigError
from policies.views import Role
from tests.tables import for_each

NIXL, IN_FILES = Connector(HANDOFF), Connector("ExampleConnector", {"shared_storage_path": "/shared"})


@for_each("kv_role", [KV_ROLES[Role.PREFILL], KV_ROLES[Role.DECODE], BOTH_SIDES])
def test_the_connector_that_hands_over_is_where_there_is_a_handoff(kv_role: str) -> None:
    config = transfer_config([NIXL], kv_role, "cpu", 30)

    assert config["kv_role"] == kv_role
    assert config["kv_connector_extra_config"] == {"kv_lease_duration": 30}
    assert transfer_config([NIXL], NEITHER_SIDE, "cpu", 30) == {}


def test_several_are_the_parts_of_one_in_their_order() -> None:
    config = transfer_config([NIXL, IN_FILES], KV_ROLES[Role.DECODE], "cuda", 7)

    assert (config["kv_connector"], config["kv_buffer_device"]) == ("MultiConnector", "cuda")
    nixl, in_files = config["kv_connector_extra_config"]["connectors"]
    assert (nixl["kv_connector"], nixl["kv_role"]) == (HANDOFF, "kv_consumer")
    assert nixl["kv_connector_extra_config"] == {"kv_lease_duration": 7}
    assert (in_files["kv_connector"], in_files["kv_role"]) == ("ExampleConnector", "kv_both")
    assert in_files["kv_connector_extra_config"] == {"shared_storage_path": "/shared"}


def test_a_unified_engine_has_what_keeps_kv_and_nothing_that_hands_it_over() -> None:
    assert transfer_config([NIXL, IN_FILES], NEITHER_SIDE, "cpu", 30)["kv_connector"] == "ExampleConnector"


@for_each("names", [["NixlConnectr"], ["ExampleConnector"], [HANDOFF, HANDOFF], []])
def test_what_hands_nothing_over_is_not_there_twice_or_is_not_known_is_refused(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="kv_connectors"):
        check_connectors([Connector(name) for name in names])


@pytest.mark.vllm
@for_each("name", [*CONNECTORS, "MultiConnector"])
def test_vllm_has_a_connector_of_that_name(name: str) -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    assert name in KVConnectorFactory._registry
