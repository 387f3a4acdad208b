"""KV connectors of vLLM by name: which one hands KV over between engines, and which keep it beside the engine's cache.

vLLM has one connector in an engine; where there are several, it is ``MultiConnector`` with these as its parts, which
loads from the first one that has a prompt's KV and saves to all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.errors import ConfigError
from policies.views import Role

HANDOFF = "NixlConnector"
KV_ROLES: Mapping[Role, str] = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
"""vLLM's names of the sides of the handoff."""
BOTH_SIDES, NEITHER_SIDE = "kv_both", ""

CONNECTORS = (
    HANDOFF,
    "OffloadingConnector",
    "SimpleCPUOffloadConnector",
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "MooncakeStoreConnector",
    "ExampleConnector",
)
"""By vLLM's names; docs/how-to/engines.md says what each keeps where, and what it needs. Others hand KV over in ways
that a gateway would have to take part in.
"""


@dataclass(frozen=True, slots=True)
class Connector:
    """One that an engine is to have.

    Args:
        name: One of ``CONNECTORS``.
        extra_config: Its own settings, vLLM's ``kv_connector_extra_config``.
    """

    name: str
    extra_config: Mapping[str, Any] = field(default_factory=dict)


def check_connectors(connectors: Sequence[Connector]) -> None:
    """Raises ``ConfigError`` unless these are known, each there once, and one of them hands over."""
    names = [each.name for each in connectors]
    for name in names:
        if name not in CONNECTORS:
            raise ConfigError("kv_connectors", name, f"some of {list(CONNECTORS)}")
    if len(set(names)) != len(names) or HANDOFF not in names:
        raise ConfigError("kv_connectors", names, f"each name once, {HANDOFF} among them, which hands KV over")


def transfer_config(
    connectors: Sequence[Connector], kv_role: str, kv_buffer_device: str, kv_lease_s: int
) -> dict[str, Any]:
    """vLLM's ``KVTransferConfig`` as keywords; empty for an engine that has no connector.

    Args:
        connectors: Those of all engines; an engine on neither side hands nothing over.
        kv_role: The engine's side of the handoff, or both of them, or neither.
        kv_buffer_device: Where transferred blocks live.
        kv_lease_s: How long a prefill engine holds blocks that nobody pulls.
    """
    parts = [_part(each, kv_role, kv_buffer_device, kv_lease_s) for each in connectors if _has_use(each, kv_role)]
    if len(parts) < 2:
        return parts[0] if parts else {}
    shared = {"kv_role": BOTH_SIDES, "kv_buffer_device": kv_buffer_device}
    return {"kv_connector": "MultiConnector", **shared, "kv_connector_extra_config": {"connectors": parts}}


def _has_use(connector: Connector, kv_role: str) -> bool:
    return connector.name != HANDOFF or kv_role != NEITHER_SIDE


def _part(connector: Connector, kv_role: str, kv_buffer_device: str, kv_lease_s: int) -> dict[str, Any]:
    hands_over = connector.name == HANDOFF
    lease = {"kv_lease_duration": kv_lease_s} if hands_over else {}
    return {
        "kv_connector": connector.name,
        "kv_role": kv_role if hands_over else BOTH_SIDES,
        "kv_buffer_device": kv_buffer_device,
        "kv_connector_extra_config": {**lease, **connector.extra_config},
    }
