"""The OpenAI service of one gateway replica: whose a request is, which model it asks, and what belongs to no model."""

import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec
from fastapi import Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from ray.serve.handle import DeploymentHandle

from cluster.clock import MonotonicClock, unix_s
from cluster.latency_budget import LatencyBudget
from deployments.adapters.requests import LoadAdapterRequest, UnloadAdapterRequest
from deployments.config import USER_CONFIG, GatewayConfig, resolved
from deployments.configuration.models import Models
from deployments.configuration.reloading import laid_over
from deployments.export.exports import GatewayCounts, export_of
from deployments.front_end.choice import Kind
from deployments.gateway.egress import JSON
from deployments.gateway.live_page import page_for
from deployments.gateway.model_service import Asked, InGateway, ModelService
from deployments.gateway.tracing import tracer_for
from deployments.http.direct_request import DirectRequest
from deployments.http.hot_routes import Handler as RouteHandler
from deployments.http.json_body import declared_bytes, read_json, uncounted
from deployments.http.rate_limits import RateLimits
from deployments.openai.engine_limits import check_conversation
from deployments.openai.errors import ApiError, anthropic_body, internal_error, invalid, retry_after
from deployments.openai.identity import api_key_of, tenant_of
from deployments.openai.terms import TermsFields
from deployments.openai.token_requests import DetokenizeRequest, TokenizeRequest
from deployments.openai.validation import validated
from deployments.telemetry.refusals import RecentRefusals
from deployments.telemetry.service_metrics import ServiceMetrics
from deployments.tenants.audit_log import AuditEntry, open_audit_log
from deployments.tenants.tenants import Tenant, Tenants
from deployments.tenants.tenants_file import tenants_of
from deployments.wire.fleet_registry import REGISTRY
from engines.contract import NO_ADAPTER, Adapter
from policies.errors import ConfigError, RequestInvalid
from policies.views import Priority

LOGGER = logging.getLogger("ray.serve")

TEXT = "text/plain"
FOR_WHOM_IT_IS = (401, 403)
"""Statuses of what is refused for whose it is."""
ADAPTER_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
NAMES_SAID = 20
"""Of models and adapters that there are, to who has asked for another one."""
UNLIMITED = Tenant(name="", max_priority=Priority.CRITICAL)
"""Adapters are changed for all."""

P = ParamSpec("P")
Body = TypeVar("Body", bound=BaseModel)
Handler = Callable[Concatenate["OpenAIService", Request, P], Awaitable[Response]]


class Served(NamedTuple):
    """What a name in the API stands for.

    Args:
        model: A model.
        adapter: One of its LoRA adapters, if it is one.
    """

    model: ModelService
    adapter: Adapter = NO_ADAPTER

    @property
    def id(self) -> str:
        """What it is called, whichever alias was asked for."""
        return self.adapter.name or self.model.config.model.id

    def card(self) -> dict[str, Any]:
        """What clients are told of it."""
        return self.model.card(self.adapter)


def _counting_errors(handler: Handler[P]) -> Handler[P]:
    """Counts the error responses of a route."""

    @wraps(handler)
    async def counted(service: "OpenAIService", request: Request, /, *args: P.args, **kwargs: P.kwargs) -> Response:
        try:
            return await handler(service, request, *args, **kwargs)
        except ApiError as error:
            service.note_error(request, error)
            raise
        except Exception:
            service.count_error(500, "internal_error")
            raise

    return counted


def _answering(handler: Callable[[Request], Awaitable[Response]]) -> RouteHandler:
    """A handler that answers whatever happens, as FastAPI's error handlers would."""

    async def answering(request: DirectRequest) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            return error.response()
        except Exception as error:
            LOGGER.exception("a request failed inside the gateway")
            return await internal_error(request, error)

    return answering


class OpenAIService:
    """Everything behind the gateway's routes. Lives on the gateway's event loop.

    Args:
        models: The configuration of each model; what they say of gateways is the same.
        pools: Each pool's handle, by name.
        replica_id: This gateway replica's own id; mixed into its random streams when there are several gateways.

    Raises:
        ConfigError: The tenants can't be read on this node, the event log can't be written there, or vLLM knows no such
            parser.
    """

    def __init__(self, models: Models, pools: Mapping[str, DeploymentHandle], replica_id: str) -> None:
        self._base = models
        self._has_started = False
        gateway, clock = models[0].gateway, MonotonicClock()
        self._clock = clock
        self._tenants = tenants_of(models)
        self._limits = RateLimits(self._clock.now_s)
        self._metrics = ServiceMetrics()
        self._audit_log = open_audit_log(gateway.audit_log, replica_id)
        self._refusals = RecentRefusals(clock.now_s)
        self._tracer = tracer_for(models[0].tracing, replica_id)
        self._models = tuple(self._serving(models, pools, replica_id))
        self._by_name = {name: each for each in self._models for name in each.config.model.names}
        counts = GatewayCounts(self._metrics, {each.config.model.id: each.metrics for each in self._models})
        self._export = export_of(counts, replica_id, gateway.replicas)
        self.page = page_for(replica_id, self._models, self._export, refusals=self._refusals, clock=clock)
        for each in self._models:
            REGISTRY.listen(each.host)

    def _serving(
        self, models: Models, pools: Mapping[str, DeploymentHandle], replica_id: str
    ) -> Iterator[ModelService]:
        own_name, numbers = uuid.uuid4().hex[:8], itertools.count()
        for number, config in enumerate(models):
            in_gateway = InGateway(
                replica_id=replica_id,
                suffix=f"-{number}" if len(models) > 1 else "",
                clock=self._clock,
                new_id=lambda: f"{own_name}-{next(numbers)}",
                tracer=self._tracer,
                refusals=self._refusals,
                terms=self._tenants.terms,
            )
            yield ModelService(config, {pool.name: pools[pool.name] for pool in config.pools}, in_gateway)

    def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Goes on with ``user_config`` laid over what this gateway was made from; no request is dropped.

        The first call belongs to the start. Later ones raise nothing: Serve would stop a gateway that did, with all
        its streams. What can't be is logged and counted, and the gateway goes on as it was.

        Raises:
            ConfigError: At the start, what can't be laid over it
                (:func:`deployments.configuration.reloading.laid_over`), or what a dispatcher can't take.
        """
        try:
            configs = laid_over(self._base, user_config)
            tenants = tenants_of(configs)
            self._reconfigure(configs, tenants)
        except ConfigError as error:
            if not self._has_started:
                raise
            self._metrics.count_reload(is_applied=False)
            self._audit_log.note(AuditEntry(did=USER_CONFIG, status=400, what=str(error)))
            LOGGER.error("the configuration stays as it was: %s", str(error))
            return
        self._tenants = tenants
        if self._has_started:
            self._metrics.count_reload(is_applied=True)
            self._audit_log.note(AuditEntry(did=USER_CONFIG, status=200, what=", ".join(sorted(user_config))))
            LOGGER.info("reconfigured: %s", dict(user_config))
        self._has_started = True

    def _reconfigure(self, configs: Models, tenants: Tenants) -> None:
        """All models, or none."""
        former = [each.config for each in self._models]
        try:
            for each, config in zip(self._models, configs, strict=True):
                each.reconfigure(config, tenants.terms)
        except ConfigError:
            for each, config in zip(self._models, former, strict=True):
                each.reconfigure(config, self._tenants.terms)
            raise

    # -- OpenAI -------------------------------------------------------------------------------------------------------

    @_counting_errors
    async def completions(self, request: Request) -> Response:
        """Completes a text or a list of token ids."""
        model, asked = await self._asked_for(await self._read(request))
        return await model.complete(request, asked)

    @_counting_errors
    async def chat_completions(self, request: Request) -> Response:
        """Answers a conversation."""
        model, asked = await self._asked_for(await self._read(request))
        return await model.chat(request, asked)

    @_counting_errors
    async def responses(self, request: Request) -> Response:
        """Answers in the way of OpenAI's newer API; it is vLLM's layer's alone, and nothing is stored."""
        model, asked = await self._asked_for(await self._read(request))
        return await model.through_front_end("response", request, asked)

    async def messages(self, request: Request) -> Response:
        """Answers in the way of Anthropic's API; it is vLLM's layer's alone."""
        return await self._as_anthropic("message", request)

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens such a conversation has."""
        return await self._as_anthropic("count_tokens", request)

    async def _as_anthropic(self, kind: Kind, request: Request) -> Response:
        try:
            model, asked = await self._asked_for(await self._read(request))
            return await model.through_front_end(kind, request, asked)
        except ApiError as error:
            self.note_error(request, error)
            return error.response(anthropic_body(error))

    async def embeddings(self, request: Request) -> Response:
        """A vector of each text, of models whose pools have the role ``pooling``; it is vLLM's layer's alone."""
        return await self._pooled(request, "embedding")

    async def score(self, request: Request) -> Response:
        """How well texts go together, likewise."""
        return await self._pooled(request, "score")

    async def rerank(self, request: Request) -> Response:
        """The texts that go best with a query, likewise."""
        return await self._pooled(request, "rerank")

    @_counting_errors
    async def _pooled(self, request: Request, kind: Kind) -> Response:
        model, asked = await self._asked_for(await self._read(request))
        return await model.through_front_end(kind, request, asked)

    @_counting_errors
    async def models(self, request: Request) -> Response:
        """The models that the tenant may use."""
        tenant = tenant_of(request, self._tenants)
        for each in self._models:
            await each.look_for_adapters()
        cards = [self._named(name, tenant).card() for name in self._usable(tenant)]
        return Response(msgspec.json.encode({"object": "list", "data": cards}), media_type=JSON)

    @_counting_errors
    async def model(self, request: Request, name: str) -> Response:
        """One model's card."""
        tenant = tenant_of(request, self._tenants)
        await self._look_for(name)
        found = self._named(name, tenant)
        return Response(msgspec.json.encode(found.card()), media_type=JSON)

    @_counting_errors
    async def load_lora_adapter(self, request: Request) -> Response:
        """Has all replicas of a model load an adapter, which is a model of its own from then on."""
        body = await self._read_as_loader(request, LoadAdapterRequest)
        model = self._named_or_only(body.model, UNLIMITED).model
        there = self._found(body.lora_name)
        if there is not None and (there.model is not model or not there.adapter):
            raise invalid(f"{body.lora_name!r} is another model's name", "lora_name")
        adapter = Adapter(body.lora_name, resolved(body.lora_path))
        try:
            await model.load_adapter(adapter)
        except RequestInvalid as error:
            raise invalid(error.message, error.param) from error
        LOGGER.info("adapter %s of %s: loaded from %s", adapter.name, model.config.model.id, adapter.path)
        self._note(request, 200, what=f"{adapter.name} of {model.config.model.id} from {adapter.path}")
        return Response(f"Success: LoRA adapter '{adapter.name}' added successfully.", media_type=TEXT)

    @_counting_errors
    async def unload_lora_adapter(self, request: Request) -> Response:
        """Has all replicas of a model forget an adapter; requests that have it finish."""
        body = await self._read_as_loader(request, UnloadAdapterRequest)
        found = self._named(body.lora_name, UNLIMITED)
        if not found.adapter:
            raise invalid(f"{body.lora_name!r} is a model and no adapter", "lora_name")
        await found.model.unload_adapter(body.lora_name)
        LOGGER.info("adapter %s of %s: unloaded", body.lora_name, found.model.config.model.id)
        self._note(request, 200, what=f"{body.lora_name} of {found.model.config.model.id}")
        return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", media_type=TEXT)

    @_counting_errors
    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a conversation, as the engine would get them."""
        asked = await self._read(request)
        check_conversation(asked.fields)
        body, tenant = validated(TokenizeRequest, asked.fields), asked.tenant
        asked.body.let_go()
        return await self._named_or_only(body.model, tenant).model.tokenize(body, tenant)

    @_counting_errors
    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        asked = await self._read(request)
        body, tenant = validated(DetokenizeRequest, asked.fields), asked.tenant
        return await self._named_or_only(body.model, tenant).model.detokenize(body)

    def hot_routes(self) -> dict[str, RouteHandler]:
        """The routes that tokens go out through, with nothing between them and the connection."""
        return {
            "/v1/completions": _answering(self.completions),
            "/v1/chat/completions": _answering(self.chat_completions),
            "/v1/responses": _answering(self.responses),
            "/v1/messages": _answering(self.messages),
            "/v1/embeddings": _answering(self.embeddings),
            "/v1/score": _answering(self.score),
            "/v1/rerank": _answering(self.rerank),
        }

    # -- operations ---------------------------------------------------------------------------------------------------

    async def health(self) -> Response:
        """Live: this gateway answers."""
        return Response(b'{"status":"ok"}', media_type=JSON)

    async def ready(self) -> Response:
        """Ready: every pool has a replica that takes requests, but for those that may have none, and those that have
        lost theirs while others run their requests.
        """
        live = {pool: number for each in self._models for pool, number in each.host.live_replicas().items()}
        may_have_none = {pool.name for each in self._models for pool in each.config.pools if pool.may_have_none}
        hosts = {pool: each.host for each in self._models for pool in each.host.live_replicas()}
        missing = [pool for pool, number in live.items() if not (number or pool in may_have_none)]
        status = 200 if all(hosts[pool].goes_on_without(pool) for pool in missing) else 503
        headers = {} if status == 200 else {"retry-after": retry_after(self._config.retry_after_s)}
        body = msgspec.json.encode({"status": "ready" if status == 200 else "not ready", "replicas": live})
        return Response(body, status_code=status, media_type=JSON, headers=headers)

    async def metrics(self) -> Response:
        """What all gateways count, for Prometheus."""
        return Response(await self._export.page(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def close(self) -> None:
        """Ends reports, traces and event logs; called once this gateway has served its last request."""
        self._export.close()
        self._audit_log.close()
        for each in self._models:
            each.close()
        self._tracer.close()

    def note_error(self, request: Request, error: ApiError) -> None:
        """One request is refused, or has failed."""
        self.count_error(error.status, error.code)
        if error.status in FOR_WHOM_IT_IS or request.url.path in ADAPTER_PATHS:
            self._note(request, error.status, code=error.code)

    def _note(self, request: Request, status: int, **more: str) -> None:
        """What somebody has done, where that is kept."""
        if not self._audit_log:
            return
        tenant = self._tenants.of_key(api_key_of(request), unix_s())
        client = request.client.host if request.client else ""
        who = tenant.name if tenant else ""
        self._audit_log.note(AuditEntry(did=request.url.path, status=status, tenant=who, client=client, **more))

    def count_error(self, status: int, code: str) -> None:
        """One request got an error response."""
        self._metrics.count_error(status, code)
        self._refusals.note_error(status, code)

    # -- one request --------------------------------------------------------------------------------------------------

    @property
    def _config(self) -> GatewayConfig:
        """What is in force now of what concerns the gateway, whatever the model."""
        return self._models[0].config.gateway

    async def _read(self, request: Request) -> Asked:
        """Whose request it is and what its body says, of which nothing is read without a key that is known here, nor
        where its tenant has asked for too much.
        """
        budget = LatencyBudget(self._clock.now_s)
        tenant = tenant_of(request, self._tenants)
        account = self._limits.account_of(tenant, self._config.replicas)
        config = self._config
        account.check_in(declared := declared_bytes(request, config.max_body_bytes))
        came = uncounted if declared else account.take_bytes
        try:
            body = await read_json(request, config.max_body_bytes, came, limit_s=config.request_timeout_s)
        finally:
            account.has_come()
        return Asked(body=body, tenant=tenant, budget=budget, account=account)

    async def _read_as_loader(self, request: Request, body: type[Body]) -> Body:
        """The body of a request that only those may send who may load adapters."""
        if not tenant_of(request, self._tenants).may_load_adapters:
            message = "adapters are loaded by tenants with may_load_adapters alone (gateway.tenants)"
            raise ApiError(403, message, "adapters_not_allowed")
        return validated(body, (await read_json(request, self._config.max_body_bytes)).fields)

    async def _asked_for(self, asked: Asked) -> tuple[ModelService, Asked]:
        """The model that a request is for, and the request with the adapter that it names.

        Raises:
            ApiError: 400, the body names none; 404, there is no such model for its tenant; 503, a store can't be read.
        """
        name = asked.fields.get("model") if isinstance(asked.fields, dict) else None
        if not isinstance(name, str):
            name = validated(TermsFields, asked.fields).model
        await self._look_for(name)
        model, adapter = self._named(name, asked.tenant)
        return model, replace(asked, adapter=adapter) if adapter else asked

    async def _look_for(self, name: str) -> None:
        """An adapter that this gateway has not seen may be in a model's store."""
        if name not in self._by_name:
            for each in self._models:
                await each.look_for_adapter(name)

    def _named_or_only(self, name: str | None, tenant: Tenant) -> Served:
        """Without a name, the only model that there is."""
        if name is not None:
            return self._named(name, tenant)
        if len(self._models) > 1:
            raise invalid("this deployment serves several models; say which", "model")
        return self._named(self._models[0].config.model.id, tenant)

    def _named(self, name: str, tenant: Tenant) -> Served:
        """The model or adapter of that name. That there is one which the tenant may not use is not said."""
        found = self._found(name)
        if found is None or not tenant.may_use(found.id):
            usable = self._usable(tenant)
            more = f" and {len(usable) - NAMES_SAID} more" if len(usable) > NAMES_SAID else ""
            said = f"this deployment serves {', '.join(map(repr, usable[:NAMES_SAID]))}{more}"
            raise ApiError(404, f"the model {name[:256]!r} does not exist; {said}", "model_not_found", "model")
        return found

    def _found(self, name: str) -> Served | None:
        model = self._by_name.get(name)
        if model is not None:
            return Served(model)
        of_adapters = (Served(each, each.adapter_named(name)) for each in self._models)
        return next((each for each in of_adapters if each.adapter), None)

    def _usable(self, tenant: Tenant) -> list[str]:
        """Ids of the models and adapters that a tenant may use."""
        ids = (name for each in self._models for name in (each.config.model.id, *each.adapters))
        return [name for name in ids if tenant.may_use(name)]
