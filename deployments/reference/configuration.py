"""``configuration.md``: every field of a configuration."""

from collections.abc import Iterator

from pydantic import BaseModel

from cluster.config.lanes import LaneConfig, LanesConfig, TokenRangeConfig
from cluster.config.named_policy import PolicyConfig
from cluster.config.policies import PoliciesConfig
from cluster.config.terms import QuotaConfig
from deployments.config import (
    AdapterConfig,
    AppConfig,
    AutoscalingConfig,
    EmulationConfig,
    EngineConfig,
    GatewayConfig,
    IsolationConfig,
    KvConnectorConfig,
    KvLinkConfig,
    ModelConfig,
    PoolConfig,
    ResponseCacheConfig,
    TracingConfig,
    VllmFrontEndConfig,
)
from deployments.configuration.models import ModelEntry
from deployments.configuration.reloading import LIMITS, SECTIONS
from deployments.reference.docstrings import summary_of
from deployments.reference.markdown import code, from_docstring, page
from deployments.reference.schemas import Schema
from deployments.replica.emulation import EmulatedArgs
from deployments.replica.engine_versions import Canary, EngineVersions
from deployments.tenants.tenants_file import TenantEntry, TokensEntry

INTRODUCTION = """
What may stand under `args` of the application in a Serve config file; `deployments/configs/` has examples. All of
it is checked before anything starts: a field that does not exist or a value out of range is an error with field,
value and what is allowed. Nothing is clamped, and nothing falls back to a default in silence. Fractions go from 0
to 1.
"""
SECTIONS_OF_ARGS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("`args`", AppConfig),
    ("`model`", ModelConfig),
    ("`model.adapters`", AdapterConfig),
    ("`models`", ModelEntry),
    ("`engine`", EngineConfig),
    ("`engine.kv_connectors`", KvConnectorConfig),
    ("`engine.kv_links`", KvLinkConfig),
    ("`engine.emulation`", EmulationConfig),
    ("`engine.args`, for emulated engines", EmulatedArgs),
    ("`pools`", PoolConfig),
    ("`pools.autoscaling`", AutoscalingConfig),
    ("`pools.isolation`", IsolationConfig),
    ("`gateway`", GatewayConfig),
    ("`gateway.response_cache`", ResponseCacheConfig),
    ("`gateway.vllm_front_end`", VllmFrontEndConfig),
    ("`tracing`", TracingConfig),
    ("`policies`", PoliciesConfig),
    ("A policy", PolicyConfig),
    ("`policies.lanes`", LanesConfig),
    ("`policies.lanes.lanes`", LaneConfig),
    ("A range of tokens", TokenRangeConfig),
    ("The file of tenants", TenantEntry),
    ("Its `tokens`", TokensEntry),
    ("A tenant's `quota`", QuotaConfig),
)
FROM_POOLS = frozenset({"max_num_seqs"})


def configuration_page() -> str:
    """The page."""
    return page("Configuration", INTRODUCTION, *_sections(), _changes())


def _sections() -> Iterator[str]:
    for title, model in SECTIONS_OF_ARGS:
        yield f"## {title}"
        yield from_docstring(summary_of(model))
        yield Schema(model, FROM_POOLS if model is EmulatedArgs else frozenset()).table()


def _changes() -> str:
    of_pools = EngineVersions.model_fields, Canary.model_fields
    limits, sections, versions, canary = (
        ", ".join(code(each) for each in names) for names in (LIMITS, SECTIONS, *of_pools)
    )
    return (
        "## What may change while it runs\n\n"
        f"`user_config` of the deployment `gateway` may have {sections}, and of `gateway` {limits}; "
        "[how to reload](../how-to/operations.md#changing-policies-and-limits-while-it-runs).\n\n"
        f"`user_config` of a pool's deployment may have {versions}, and of `canary` {canary}; "
        "[how to roll out](../how-to/operations.md#other-engine-arguments-pool-by-pool)."
    )
