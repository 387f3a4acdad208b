"""One engine in one Serve replica: starts it, warms it up, runs attempts on it, says how busy and how well it is."""

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address

from cluster.clock import MonotonicClock
from cluster.kv_links import place_of
from deployments.adapters.local_copies import Copies, LocalCopies, NoCopies
from deployments.adapters.registry import AdapterRegistry
from deployments.config import USER_CONFIG, EngineConfig, ModelConfig, PoolConfig
from deployments.data_plane.attempt_server import AttemptServer, NoAttemptServer
from deployments.data_plane.endpoint import tls_contexts
from deployments.export.ray_mirror import RayMirror
from deployments.packaging import check_single_root
from deployments.replica.attempts import EngineAttempts
from deployments.replica.cache_changes import CacheChanges, NoCacheChanges
from deployments.replica.emulation import emulated_settings
from deployments.replica.engine_versions import versions_of, with_engine_args
from deployments.replica.engine_watch import Beats, EngineWatch, NoEngineWatch
from deployments.replica.isolation import claim_cores, claims_of_this_machine, lock_memory
from deployments.replica.placement import node_labels
from deployments.replica.replaceable_engine import ReplaceableEngine
from deployments.replica.served_pool import ServedPool
from deployments.replica.standby import Standby
from deployments.replica.work_account import WorkAccount
from deployments.telemetry.collectors import reported
from deployments.wire import inner_hop
from deployments.wire.attempt_call import NO_WORK, AttemptOrder, NamedTiedRequest
from deployments.wire.cluster_authentication import check_cluster_authentication
from deployments.wire.fleet_registry import SeenReplica
from deployments.wire.garbage import keep_what_is_there
from deployments.wire.serve_internals import own_user_config
from engines.contract import Adapter, Engine, EngineRequest, KvEvent, KvHandle, Sampling
from engines.emulated.engine import EmulatedEngine
from engines.faults import FaultKind
from engines.vllm.liveness import StallDetector
from policies.errors import ConfigError, EngineUnavailable, RequestInvalid
from policies.views import Role

LOGGER = logging.getLogger("ray.serve")
HANDOFF_WARM_UP_TOKENS = 64
PEER_PATIENCE_S = 30.0


class EngineReplica:
    """A Serve deployment class: one replica, one engine.

    Args:
        pool: Its pool.
        engine: How engines run.
        model_path: Folder of the checkpoint.
        flush_interval_s: Longest time that a token waits for company.
        prefill: For a decode replica, the prefill pool, to warm the handoff up with.
        model: What it serves; ``model_path`` is a pool's own where that has one.
        takes_connections: Whether gateways reach it over the data plane.
        prefix_block_tokens: Tokens in a block of gateways' prefix indices.
        stall_after_s: How long its engine has requests and makes no step before gateways hear of it; 0: they never do.
        allow_unauthenticated_cluster: Whether it also starts on a Ray cluster that wants no token.
    """

    async def __init__(  # type: ignore[misc]
        self,
        pool: dict[str, Any],
        engine: dict[str, Any],
        model_path: str,
        flush_interval_s: float,
        prefill: DeploymentHandle | None = None,
        *,
        model: dict[str, Any],
        takes_connections: bool,
        prefix_block_tokens: int,
        stall_after_s: float = 0.0,
        allow_unauthenticated_cluster: bool = False,
    ) -> None:
        check_single_root()
        check_cluster_authentication(is_allowed_without=allow_unauthenticated_cluster)
        self._pool = PoolConfig.model_validate(pool)
        self._engine_config = engine_config = EngineConfig.model_validate(engine)
        self._model, self._model_path = ModelConfig.model_validate(model), model_path
        self._adapters = AdapterRegistry(self._model.listed_adapters)
        self._copies: Copies = LocalCopies() if engine_config.kind == "vllm" else NoCopies()
        self._prefill_pool = prefill
        self._clock = MonotonicClock()
        self._stall = StallDetector(engine_config.stall_after_s)
        self._work = WorkAccount()
        self._mirror, self._said = RayMirror(), dict[str, Any]()
        self._place = place_of(node_labels(), engine_config.links)
        await self._isolate()
        self._version, self._is_canary = _own_version()
        self._replaceable = ReplaceableEngine(await self._started())
        self._standby = Standby(lambda: self._engine, self._is_idle)
        self._serves = ServedPool(self._pool.name, self._has_finished)
        self._cache = NoCacheChanges()
        if engine_config.kv_events:
            self._cache = CacheChanges(self._take_kv_events, prefix_block_tokens)
        parts = (self._replaceable, self._standby, self._cache, self._work, self._copies)
        self._attempts = attempts = EngineAttempts(*parts, flush_interval_s=flush_interval_s)
        self._server = await _attempt_server(attempts) if takes_connections else NoAttemptServer()
        self._begin_to_beat(stall_after_s)
        self._tell_ready()

    def _begin_to_beat(self, stall_after_s: float) -> None:
        """Gateways hear twice a second that it lives, and whether its engine moves."""
        watch = EngineWatch(lambda: self._engine, stall_after_s, self._clock) if stall_after_s else NoEngineWatch()
        self._watch = watch

        def beat() -> None:
            if self._replaceable.is_there and not self._standby.is_warm:
                watch.look()
            self._server.beat(watch.is_stalled)

        self._beats = Beats(beat)

    def _tell_ready(self) -> None:
        keep_what_is_there()
        LOGGER.info("pool %s: replica is ready, %s", self._pool.name, self._engine.info)
        if self._pool.keeps_warm and not self._engine.info.can_sleep:
            LOGGER.info("pool %s: this engine can't sleep, so that replicas that are warm are idle", self._pool.name)

    @property
    def _engine(self) -> Engine:
        return self._replaceable.now

    def _take_kv_events(self) -> Sequence[KvEvent]:
        return self._engine.take_kv_events()

    async def _started(self) -> Engine:
        """An engine of its version, warm."""
        pool = with_engine_args(self._pool, self._version)
        model = self._model.at(self._model_path)
        engine = await _start_engine(pool, self._engine_config, model, self._place)
        LOGGER.info("pool %s: engine is up, warming up", self._pool.name)
        await engine.warm_up()
        for name in self._adapters.names[: engine.info.max_adapters]:
            await engine.load_adapter(await self._copies.local(self._adapters.get(name)))
        if self._prefill_pool is not None:
            await self._warm_up_handoff(engine, self._prefill_pool)
        return engine

    async def reconfigure(self, user_config: dict[str, Any] | None, rank: Any) -> None:
        """Called by Serve with the pool's ``user_config``, a fifth of its replicas at a time: where that says that this
        one is to run with other arguments, another engine takes the place of its own.

        Raises:
            ConfigError: It holds something else than :class:`deployments.replica.engine_versions.EngineVersions`.
            Exception: The engine does not start; Serve starts another replica then, or gives up.
        """
        versions = versions_of(user_config, USER_CONFIG)
        version, self._is_canary = versions.engine_args_of(rank.rank), versions.is_canary(rank.rank)
        if version == self._version:
            return
        self._version, before = version, self._engine.info
        LOGGER.info("pool %s: another engine, %s", self._pool.name, version)
        async with self._standby.undisturbed():
            await self._replaceable.replace(self._started, self._has_finished, self._pool.graceful_shutdown_timeout_s)
        self._cache.clear()
        LOGGER.info("pool %s: the other engine is ready, %s", self._pool.name, self._engine.info)
        if self._engine.info != before:
            LOGGER.warning("pool %s: until they start anew gateways go by %s", self._pool.name, before)

    def _has_finished(self) -> bool:
        """Whether no request is left, and no KV that another engine may still pull."""
        stats = self._engine.stats()
        return not (self._work.num_open or stats.num_requests_unfinished or stats.kv_cache_usage)

    async def _isolate(self) -> None:
        """Takes what it has of its node for itself, before there is an engine that would have to be moved."""
        self._claims = claims_of_this_machine()
        isolation = self._pool.isolation
        if isolation.cpu_cores:
            cores = await claim_cores(isolation.cpu_cores, self._claims)
            LOGGER.info("pool %s: cores %s of this node are this replica's", self._pool.name, list(cores))
        if isolation.lock_memory:
            lock_memory()

    async def generate(
        self,
        request: bytes,
        *,
        attempt_id: str,
        work: tuple[int, int] = NO_WORK,
        priority: int = 0,
        tied_to: NamedTiedRequest | None = None,
        target: str = "",
    ) -> AsyncIterator[bytes]:
        """Runs a whole request; yields encoded chunks."""
        order = AttemptOrder(attempt_id, Role.UNIFIED, request, work=work, priority=priority, tied_to=tied_to)
        async with aclosing(self._attempts.run(order)) as items:
            async for item in items:
                yield inner_hop.encode(item)

    async def decode(
        self,
        request: bytes,
        handle: bytes,
        *,
        attempt_id: str,
        work: tuple[int, int] = NO_WORK,
        priority: int = 0,
        target: str = "",
    ) -> AsyncIterator[bytes]:
        """Pulls the KV blocks that ``handle`` names and runs the rest of the request."""
        order = AttemptOrder(attempt_id, Role.DECODE, request, handle, work, priority)
        async with aclosing(self._attempts.run(order)) as items:
            async for item in items:
                yield inner_hop.encode(item)

    async def prefill(
        self,
        request: bytes,
        *,
        attempt_id: str,
        work: tuple[int, int] = NO_WORK,
        priority: int = 0,
        tied_to: NamedTiedRequest | None = None,
        target: str = "",
    ) -> bytes:
        """Runs the prompt; returns an encoded KV handle or failure."""
        order = AttemptOrder(attempt_id, Role.PREFILL, request, work=work, priority=priority, tied_to=tied_to)
        async with aclosing(self._attempts.run(order)) as items:
            return inner_hop.encode(await anext(items))

    async def change_adapter(self, name: str, path: str, at_unix_s: float, *, target: str) -> str:
        """The model has an adapter from now on, or none of that name where the path is empty; why not, if it can't."""
        if self._own_id == target:
            try:
                if path:
                    await self._engine.load_adapter(await self._copies.local(Adapter(name, path)))
                else:
                    await self._engine.unload_adapter(name)
            except RequestInvalid as error:
                return error.message
            self._adapters.say(name, path, at_unix_s)
        return ""

    async def enter_service(self, *, target: str) -> None:
        """It takes requests again; a call that was meant for another replica changes nothing."""
        if self._own_id == target:
            self._standby.enter_service()

    async def leave_service(self, *, target: str) -> None:
        """It is to be warm: it takes no more requests, and its engine sleeps when it has none. Likewise."""
        if self._own_id == target:
            self._standby.leave_service()

    async def serve_pool(self, pool: str, *, target: str) -> None:
        """It is to serve another pool, or its own again, when it has finished what it has. Likewise."""
        if self._own_id == target:
            self._serves.change_to(pool)

    @property
    def _own_id(self) -> str:
        own_id: str = serve.get_replica_context().replica_id.unique_id
        return own_id

    def _is_idle(self) -> bool:
        """Whether it has no request, and holds no KV for others that its engine would give up."""
        stats = self._engine.stats()
        holds_kv = self._engine.info.can_sleep and stats.kv_cache_usage > 0
        return not (self._work.num_open or stats.num_requests_unfinished or holds_kv)

    async def inject_fault(self, kind: str, *, factor: float = 1.0, for_s: float | None = None, target: str) -> None:
        """Switches a fault on; see :meth:`engines.emulated.engine.EmulatedEngine.inject_fault`."""
        self._emulated(target).inject_fault(FaultKind(kind), factor=factor, for_s=for_s)

    async def clear_faults(self, *, target: str) -> None:
        """Switches every fault off that can be."""
        for kind in FaultKind:
            self._emulated(target).clear_fault(kind)

    def _emulated(self, target: str) -> EmulatedEngine:
        """The engine, if it has faults to switch on, and if the call has come to the replica that it was meant for."""
        if self._own_id != target:
            raise ConfigError("target", target, "a replica that is there")
        if not isinstance(self._engine, EmulatedEngine):
            raise ConfigError("engine.kind", "vllm", "emulated, for faults")
        return self._engine

    def record_replica_metadata(self) -> dict[str, Any]:
        """Read once by Serve when the replica is ready."""
        own = {"role": self._pool.role, "pid": os.getpid(), "place": list(self._place)}
        return {**own, **self._server.to_metadata(), **msgspec.structs.asdict(self._engine.info)}

    def record_routing_stats(self) -> dict[str, Any]:
        """Read by Serve several times a second; unchanged values are not passed on."""
        if not self._replaceable.is_there:
            return {**self._said, "is_warm": 1}
        stats = msgspec.structs.asdict(self._engine.stats())
        stats["kv_cache_usage"] = round(stats["kv_cache_usage"], 4)
        del stats["num_steps"], stats["num_requests_unfinished"]
        work = {"prefill_tokens": self._work.prefill_tokens, "kv_tokens": self._work.kv_tokens}
        is_warm = self._standby.is_warm or self._replaceable.is_leaving or self._serves.is_changing
        own = {"is_warm": int(is_warm), "is_canary": int(self._is_canary)}
        said = {**work, **own, "attempts_total": self._work.attempts_total, **stats}
        self._export(said)
        said |= self._serves.said()
        if known := self._adapters.said():
            said["adapter_registry"] = known
        self._said = said
        return said

    def _export(self, said: dict[str, Any]) -> None:
        """Ray's metrics agent gets what gateways get."""
        context = serve.get_replica_context()
        own = SeenReplica(replica_id=context.replica_id.unique_id, node_id="", max_ongoing_requests=0, stats=said)
        self._mirror.show({self._model.id: reported(self._pool.name, own)})

    def check_health(self) -> None:
        """Raises when the engine is dead or has stalled; Serve then replaces the replica."""
        if not self._replaceable.is_there:
            return
        self._engine.check_health()
        stats = self._engine.stats()
        if self._stall.is_stalled(stats.num_steps, stats.num_requests_unfinished, self._clock.now_s()):
            raise EngineUnavailable(f"pool {self._pool.name}: requests wait and the engine makes no step")

    async def __del__(self) -> None:
        """Serve awaits this when it takes the replica away, and has waited for what came over handles."""
        if server := getattr(self, "_server", None):
            await server.drained()
            await server.close()
        for changes in ("_standby", "_serves", "_beats", "_watch"):
            if changing := getattr(self, changes, None):
                changing.close()
        if replaceable := getattr(self, "_replaceable", None):
            await replaceable.now.shutdown()
        if claims := getattr(self, "_claims", None):
            claims.give_back()

    async def _warm_up_handoff(self, engine: Engine, prefill: DeploymentHandle) -> None:
        """The first transfer between two engines costs a handshake; it is paid here, not by a client."""
        request = inner_hop.encode(_warm_up_request(""))
        caller = prefill.options(_by_reference=False)
        for number in itertools.count():
            answer = caller.prefill.remote(request, attempt_id=f"warm-up-{self._own_id}-{number}")
            try:
                item = inner_hop.decode_item(await asyncio.wait_for(answer, PEER_PATIENCE_S))
            except TimeoutError:
                LOGGER.info("pool %s: still waiting for a prefill replica to warm the handoff up", self._pool.name)
                continue
            if isinstance(item, KvHandle):
                break
            raise EngineUnavailable(f"the prefill pool could not warm the handoff up: {item}")
        async for _ in engine.decode(_warm_up_request("warm-up-decode"), item):
            pass


async def _attempt_server(attempts: EngineAttempts) -> AttemptServer:
    """Where gateways reach a replica: at its node's address, encrypted where Ray is."""
    tls = tls_contexts()
    return await AttemptServer.start(
        attempts.run, attempts.release_kv, get_node_ip_address(), None if tls is None else tls[0]
    )


def _own_version() -> tuple[dict[str, Any], bool]:
    """Engine arguments that this replica is to begin with, and whether it is a canary."""
    user_config, rank = own_user_config()
    versions = versions_of(user_config, USER_CONFIG)
    return versions.engine_args_of(rank), versions.is_canary(rank)


async def _start_engine(pool: PoolConfig, engine: EngineConfig, model: ModelConfig, place: tuple[str, ...]) -> Engine:
    if engine.kind == "emulated":
        settings = emulated_settings(pool, engine, model.path, get_node_ip_address(), place)
        return await EmulatedEngine.start(settings)
    from engines.vllm.engine import VllmEngine, VllmSettings  # noqa: PLC0415 - only an engine's process loads vLLM

    return await VllmEngine.start(
        VllmSettings(
            model=model.path,
            role=pool.stage,
            changes_roles=pool.changes_roles,
            engine_args=pool.args_over(engine),
            kv_connectors=[each.connector() for each in engine.kv_connectors],
            kv_buffer_device=engine.kv_buffer_device,
            kv_lease_s=engine.kv_lease_s,
            kv_poll_interval_s=engine.kv_poll_interval_s,
            name=model.id,
            log_to_ray=engine.log_engine_metrics,
            kv_events=engine.kv_events,
            sleeps=pool.keeps_warm,
            host=get_node_ip_address(),
        )
    )


def _warm_up_request(request_id: str) -> EngineRequest:
    prompt = [1 + position % 7 for position in range(HANDOFF_WARM_UP_TOKENS)]
    sampling = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)
