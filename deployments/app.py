"""Builds the Serve application from its configuration; ``serve run`` calls :func:`build` with the YAML's ``args``."""

import logging
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from cluster.scaled_pools import check_fallbacks
from cluster.scaler import scaling_policy
from cluster.seeds import Seeds
from deployments.adapters.store import check_place
from deployments.config import RANKS, AppConfig, GatewayConfig, PoolConfig
from deployments.configuration.models import Models, dumped, models_in, of_model
from deployments.configuration.reloading import GATEWAY
from deployments.coordination.coordinator_actor import coordinator_actors
from deployments.export.aggregator_actor import aggregator_actors
from deployments.gateway.gateway import Gateway
from deployments.packaging import check_single_root
from deployments.replica.emulation import check_engines
from deployments.replica.placement import placement_of, where
from deployments.replica.replicas import EngineReplica
from deployments.scaling.scaler_actor import scaler_actors
from deployments.tenants.tenants_file import tenants_of
from deployments.wire.cluster_authentication import check_cluster_authentication
from policies.catalog import CATALOG
from policies.errors import ConfigError
from policies.tenancy import NO_TERMS, TenantTermsByName
from policies.views import Role
from routing.assembly import build_dispatcher
from routing.config.combinations import losing
from routing.config.spec import NO_TRACKER, DispatcherSpec
from routing.lanes.access import LaneAccess

LOGGER = logging.getLogger(__name__)
REPORT_PERIOD_S = 0.5
"""How often replicas report their load; Serve's controller is one process, so much faster would load it."""
GATEWAY_MAX_ONGOING_REQUESTS = 100_000
"""No limit in practice: what is too much is the dispatcher's to say, with a reason."""


def build(args: dict[str, Any]) -> Application:
    """The application: pools of engine replicas behind gateways.

    Args:
        args: The configuration, as :func:`deployments.configuration.models.models_in` reads it.

    Raises:
        ConfigError: Field, value and what is allowed; a policy that does not exist, or one that needs a pool that is
            not there; an emulated engine's profile that does not exist, or arguments that it can't heed; tenants that
            can't be read; a Ray cluster without authentication.
    """
    check_single_root()
    models = models_in(args)
    check_models(models)
    check_cluster_authentication(is_allowed_without=models[0].allow_unauthenticated_cluster)
    pools = {name: bound for each in models for name, bound in _bind_pools(each).items()}
    config = models[0].gateway
    gateway = serve.deployment(
        Gateway,
        name=GATEWAY,
        num_replicas=config.replicas,
        max_ongoing_requests=GATEWAY_MAX_ONGOING_REQUESTS,
        ray_actor_options=_gateways_place(config),
        health_check_period_s=5,
        graceful_shutdown_timeout_s=config.graceful_shutdown_timeout_s,
        deployment_actors=[
            *coordinator_actors(config.load_coordinator),
            *aggregator_actors(config.replicas),
            *scaler_actors(models),
        ],
        user_config={},  # so that gateways are told, too, when the YAML has none any more
    )
    return gateway.bind(dumped(models), pools)


def _gateways_place(gateway: GatewayConfig) -> dict[str, Any]:
    return where(GATEWAY, gateway.resources, gateway.label_selector, num_cpus=gateway.num_cpus)


def check_models(models: Models) -> None:
    """Builds everything once and throws it away: wrong names and parameters must not wait for a replica's start.

    Raises:
        ConfigError: As :func:`check_policies`, :func:`deployments.replica.emulation.check_engines`,
            :func:`deployments.replica.placement.placement_of` and :func:`deployments.adapters.store.check_place`, of
            the first model that can't be served; or gateways that Ray can't place.
    """
    tenants = tenants_of(models).terms
    _gateways_place(models[0].gateway)
    for each in models:
        with of_model(each, models):
            check_policies(each, tenants)
            check_engines(each)
            for pool in each.pools:
                placement_of(pool, each.engine)
            if each.model.adapter_store is not None:
                check_place(each.model.adapter_store)


def check_policies(args: AppConfig, tenants: TenantTermsByName = NO_TERMS) -> None:
    """Builds the dispatcher of a model once and throws it away.

    It warns of choices that are worse together than one of them alone.

    Raises:
        ConfigError: A policy that does not exist, or one whose parameters or needs don't fit; terms of tenants that
            don't fit the policies.
    """
    spec = args.dispatcher_spec(tenants)
    dispatcher = build_dispatcher(spec, rng_for=Seeds(0).stream, provided=args.provided)
    scaling_policy(spec, args.provided, args.gateway.seed)
    _check_scaling(args, spec, dispatcher.access)
    _warn(args, spec)


def _check_scaling(args: AppConfig, spec: DispatcherSpec, access: LaneAccess) -> None:
    scaled = args.scaled_pools()
    check_fallbacks(scaled, access)
    if spec.policies.is_scaled and not scaled:
        allowed = f"one with autoscaling at least, for policies.scaling: {spec.policies.scaling.name}"
        raise ConfigError("pools", [pool.name for pool in args.pools], allowed)
    for name, pool in scaled.items() if not spec.policies.is_scaled else ():
        bounds = pool.autoscaling
        if bounds.warm_replicas:
            allowed = "0 without policies.scaling, which says when they are needed"
            raise ConfigError(f"pools.{name}.autoscaling.warm_replicas", bounds.warm_replicas, allowed)
        if bounds.changes_roles:
            allowed = "false without policies.scaling, which says when one is"
            raise ConfigError(f"pools.{name}.autoscaling.changes_roles", bounds.changes_roles, allowed)


def _warn(args: AppConfig, spec: DispatcherSpec) -> None:
    """Says what can be, and is worse than it looks."""
    for warning in losing(spec):
        LOGGER.warning("%s", warning)
    for pool in args.pools:
        if args.engine.profile is not None and pool.num_ranks(args.engine) > 1:
            LOGGER.warning("pools.%s: %s: estimates take a replica for one rank of the profile", pool.name, RANKS)
    balancing = spec.policies.balancing.name
    if args.engine.kv_links and balancing in CATALOG["balancing"] and balancing != "least_delay":
        LOGGER.warning("engine.kv_links: policies.balancing: %s does not go by them, least_delay does", balancing)
    if args.engine.kv_events and spec.prefixes == NO_TRACKER:
        LOGGER.warning(
            "engine.kv_events: nobody goes by what engines say without policies.prefixes, such as block_hash"
        )


def _bind_pools(args: AppConfig) -> dict[str, Application]:
    """The pools of one model."""
    pools: dict[str, Application] = {}
    for pool in sorted(args.pools, key=lambda each: each.stage is Role.DECODE):
        prefill = pools[_pool_of(args, Role.PREFILL).name] if pool.stage is Role.DECODE else None
        pools[pool.name] = _bind_pool(args, pool, prefill)
    return pools


def _bind_pool(args: AppConfig, pool: PoolConfig, prefill: Application | None) -> Application:
    placement = placement_of(pool, args.engine)
    placement["ray_actor_options"]["runtime_env"] = {"env_vars": {**args.engine.env, **pool.env}}
    deployment = serve.deployment(
        EngineReplica,
        name=pool.name,
        num_replicas=pool.replicas + pool.num_warm_at_first,
        max_ongoing_requests=pool.max_ongoing_requests(args.engine),
        **placement,
        request_router_config=RequestRouterConfig(
            request_router_class="deployments.wire.pinned_router.PinnedRouter",
            request_routing_stats_period_s=REPORT_PERIOD_S,
        ),
        health_check_period_s=pool.health_check_period_s,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=pool.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
    )
    return deployment.bind(
        pool.model_dump(mode="json"),
        args.engine.model_dump(mode="json"),
        args.model.at(pool.model_path).resolved_path(),
        args.gateway.flush_interval_s,
        prefill,
        model=args.model.model_dump(mode="json"),
        takes_connections=args.gateway.inner_hop == "connection",
        prefix_block_tokens=args.gateway.prefix_block_tokens,
        stall_after_s=args.engine_stall_s(pool),
        allow_unauthenticated_cluster=args.allow_unauthenticated_cluster,
    )


def _pool_of(args: AppConfig, role: Role) -> PoolConfig:
    for pool in args.pools:
        if pool.stage is role:
            return pool
    raise ConfigError("pools", sorted(args.roles), f"a pool with the role {role}")
