"""The OpenAI service of one gateway replica: parses, tokenizes, hands requests to the host, streams the answers."""

import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from fastapi import Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from ray.serve.handle import DeploymentHandle

from cluster.clock import MonotonicClock, unix_s
from cluster.event_log.frames import LogHeader
from cluster.latency_budget import LatencyBudget
from cluster.seeds import GatewayStreams
from deployments.config import AppConfig
from deployments.data_plane.connections import Connections, NoConnections
from deployments.data_plane.endpoint import tls_contexts
from deployments.export.exports import export_of
from deployments.front_end.choice import Kind, OwnKind, front_end_of
from deployments.front_end.exchange import Answering, Exchange
from deployments.gateway.egress import JSON, Egress, error_for
from deployments.gateway.event_logs import open_event_log
from deployments.gateway.live_page import page_for
from deployments.gateway.open_request import ServeOpenRequest
from deployments.gateway.reloading import laid_over
from deployments.gateway.response_cache import NoResponseCache, ResponseCache
from deployments.gateway.serve_host import ServeHost
from deployments.gateway.tracing import tracer_for
from deployments.http.direct_request import DirectRequest
from deployments.http.hot_routes import Handler as RouteHandler
from deployments.openai.body import read_body, read_json, validated
from deployments.openai.errors import ApiError, anthropic_body, internal_error, invalid, retry_after
from deployments.openai.identity import Terms, tenant_of, terms_of, wants_latency_budget
from deployments.openai.requests import (
    ChatRequest,
    CompletionRequest,
    SamplingFields,
)
from deployments.openai.responses import OpenAiAnswer
from deployments.openai.terms import TermsFields
from deployments.openai.token_requests import DetokenizeRequest, TokenizeRequest
from deployments.openai.tokenization import PromptTokenizer
from deployments.scaling.scaler_client import NoScaler, ScalerClient
from deployments.telemetry.metrics import GatewayMetrics
from deployments.tenants import Tenant, load_tenants, terms_in
from deployments.wire.fleet_registry import REGISTRY
from engines.contract import EngineRequest, Sampling
from policies.errors import ConfigError
from policies.views import RequestView
from routing.assembly import build_dispatcher
from routing.config.spec import NO_TRACKER
from routing.prefixes.block_hashes import block_hashes
from routing.sizing.prompt_ngrams import hashed_ngrams

LOGGER = logging.getLogger("ray.serve")
GATEWAY_HEADER = "x-spillway-gateway"
"""Which gateway has answered, or refused."""

PROMPT_FIELDS: dict[Kind, str] = {"completion": "prompt", "response": "input"}
"""Where a prompt is not in ``messages``."""
ID_PREFIXES: dict[Kind, str] = {"completion": "cmpl", "chat": "chatcmpl", "response": "resp", "message": "msg"}

P = ParamSpec("P")
Body = TypeVar("Body", bound=TermsFields)
Handler = Callable[Concatenate["OpenAIService", Request, P], Awaitable[Response]]


def _counting_errors(handler: Handler[P]) -> Handler[P]:
    """Counts the error responses of a route."""

    @wraps(handler)
    async def counted(service: "OpenAIService", request: Request, /, *args: P.args, **kwargs: P.kwargs) -> Response:
        try:
            return await handler(service, request, *args, **kwargs)
        except ApiError as error:
            service.count_error(error.status, error.code)
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


def _connections(config: AppConfig, replica_id: str) -> NoConnections:
    """To all replicas, encrypted where Ray is."""
    if config.gateway.inner_hop == "ray_handle":
        return NoConnections()
    tls = tls_contexts()
    return Connections(replica_id, None if tls is None else tls[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as it has come in.

    Args:
        fields: What its body says.
        digest: A hash of that.
        tenant: Whose it is.
        budget: The account of its time.
    """

    fields: Any
    digest: str
    tenant: Tenant
    budget: LatencyBudget


class OpenAIService:
    """Everything behind the gateway's routes. Lives on the gateway's event loop.

    Args:
        config: The application's configuration.
        pools: Each pool's handle, by name.
        replica_id: This gateway replica's own id; mixed into its random streams when there are several gateways.

    Raises:
        ConfigError: The tenants can't be read on this node, or the event log can't be written there.
    """

    def __init__(self, config: AppConfig, pools: Mapping[str, DeploymentHandle], replica_id: str) -> None:
        self._base = self._config = config
        self._has_started = False
        self._replica_id = replica_id
        self._tokenizer = PromptTokenizer(self._config.model.resolved_path())
        self._tenants = load_tenants(config.gateway.tenants)
        self._clock = MonotonicClock()
        self._metrics = GatewayMetrics(config.service_rates(), self._clock)
        self._cache = self._response_cache()
        self._started_at = int(unix_s())
        self._ids = itertools.count()
        self._name = uuid.uuid4().hex[:8]
        self._host = self._make_host(pools, replica_id)
        self._export = export_of(self._metrics, replica_id, config.gateway.replicas)
        self._tracer = tracer_for(config.tracing, replica_id)
        self._egress = Egress(self._host, self._metrics, self._tracer)
        self._front_end = front_end_of(config)
        self.page = page_for(
            replica_id,
            lambda: self._config,
            self._export,
            self._host,
            lambda: self._scaler.targets,
            clock=self._clock,
        )
        REGISTRY.listen(self._host)

    def _response_cache(self) -> ResponseCache | NoResponseCache:
        wanted = self._config.gateway.response_cache
        if wanted is None:
            return NoResponseCache()
        count = self._metrics.count_cache_lookup
        cache = ResponseCache(wanted.max_bytes, wanted.ttl_s, now_s=self._clock.now_s, count_lookup=count)
        self._metrics.watch_cache(lambda: cache.num_bytes)
        return cache

    def _make_host(self, pools: Mapping[str, DeploymentHandle], replica_id: str) -> ServeHost:
        config = self._config
        spec = self._spec = config.dispatcher_spec(terms_in(self._tenants))
        streams = GatewayStreams(seed=config.gateway.seed, suffix=replica_id if config.gateway.replicas > 1 else "")
        dispatcher = build_dispatcher(spec, rng_for=streams.stream, provided=config.provided)
        header = LogHeader(gateway=replica_id, streams=streams, dispatcher=spec)
        self._event_log = open_event_log(config.gateway.event_log, header)
        roles = {pool.name: pool.role for pool in config.pools}
        for handle in pools.values():
            handle._init()
        host = ServeHost(
            dispatcher,
            pools,
            roles,
            self._clock,
            self._metrics,
            gateway=replica_id,
            listener=self._event_log,
            connections=_connections(config, replica_id),
        )
        self._metrics.watch(
            host.seen_replicas, lambda: dispatcher.num_open_requests, lambda: dispatcher.num_waiting_requests
        )
        self._scaler: ScalerClient | NoScaler = NoScaler()
        if spec.policies.is_scaled:
            self._scaler = ScalerClient(
                replica_id, lambda: dispatcher.pool_loads(self._clock.now_s()), self._metrics.bounds.of_late_s
            )
        slos = dispatcher.request_classifier.slos
        self._metrics.watch_lanes(
            dispatcher.access.lanes, slos, lambda: {**dispatcher.gauges(self._clock.now_s()), **self._scaler.gauges()}
        )
        return host

    def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Goes on with ``user_config`` laid over what this gateway was made from; no request is dropped.

        The first call belongs to the start. Later ones raise nothing: Serve would stop a gateway that did, with all
        its streams. What can't be is logged and counted, and the gateway goes on as it was.

        Raises:
            ConfigError: At the start, what :func:`deployments.gateway.reloading.laid_over` or the dispatcher can't
                take.
        """
        try:
            config = laid_over(self._base, user_config)
            tenants = load_tenants(config.gateway.tenants)
            spec = config.dispatcher_spec(terms_in(tenants))
            if spec != self._spec:
                self._host.reconfigure(spec)
        except ConfigError as error:
            if not self._has_started:
                raise
            self._metrics.count_reload(is_applied=False)
            LOGGER.error("the configuration stays as it was: %s", error)
            return
        self._config, self._tenants, self._spec = config, tenants, spec
        if self._has_started:
            self._metrics.count_reload(is_applied=True)
            LOGGER.info("reconfigured: %s", dict(user_config))
        self._has_started = True

    # -- OpenAI -------------------------------------------------------------------------------------------------------

    @_counting_errors
    async def completions(self, request: Request) -> Response:
        """Completes a text or a list of token ids."""
        asked = await self._read(request)
        if self._front_end.takes("completion", asked.fields):
            return await self._through_front_end("completion", request, asked)
        body, terms = self._take_in(request, asked, CompletionRequest)
        prompt = body.single_prompt()
        token_ids = await self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        asked.budget.tokenized()
        answer = self._answer("completion", body, token_ids, body.logprobs or 0)
        sampling = self._sampling(body, token_ids, body.max_tokens, body.logprobs)
        opened = self._submit(answer.request_id, terms, asked.budget, token_ids, sampling)
        return await self._egress.answer(request, opened, answer, streams=bool(body.stream))

    @_counting_errors
    async def chat_completions(self, request: Request) -> Response:
        """Answers a conversation."""
        asked = await self._read(request)
        if self._front_end.takes("chat", asked.fields):
            return await self._through_front_end("chat", request, asked)
        body, terms = self._take_in(request, asked, ChatRequest)
        messages = [{"role": message.role, "content": message.text()} for message in body.messages]
        token_ids = await self._tokenizer.encode_chat(messages, body.add_generation_prompt)
        asked.budget.tokenized()
        top_logprobs = body.top_logprobs or 0
        answer = self._answer("chat", body, token_ids, top_logprobs)
        limit = body.max_completion_tokens or body.max_tokens
        sampling = self._sampling(body, token_ids, limit, top_logprobs if body.logprobs else None)
        opened = self._submit(answer.request_id, terms, asked.budget, token_ids, sampling)
        return await self._egress.answer(request, opened, answer, streams=bool(body.stream))

    @_counting_errors
    async def responses(self, request: Request) -> Response:
        """Answers in the way of OpenAI's newer API; it is vLLM's layer's alone, and nothing is stored."""
        return await self._through_front_end("response", request, await self._read(request))

    async def messages(self, request: Request) -> Response:
        """Answers in the way of Anthropic's API; it is vLLM's layer's alone."""
        return await self._as_anthropic("message", request)

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens such a conversation has."""
        return await self._as_anthropic("count_tokens", request)

    async def _as_anthropic(self, kind: Kind, request: Request) -> Response:
        try:
            return await self._through_front_end(kind, request, await self._read(request))
        except ApiError as error:
            self.count_error(error.status, error.code)
            return error.response(anthropic_body(error))

    @_counting_errors
    async def models(self, request: Request) -> Response:
        """The one model that is served."""
        tenant_of(request, self._tenants)
        return Response(msgspec.json.encode({"object": "list", "data": [self._card()]}), media_type=JSON)

    @_counting_errors
    async def model(self, request: Request, name: str) -> Response:
        """One model's card."""
        tenant_of(request, self._tenants)
        self._check_model(name)
        return Response(msgspec.json.encode(self._card()), media_type=JSON)

    @_counting_errors
    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a conversation, as the engine would get them."""
        tenant_of(request, self._tenants)
        body = await read_body(request, TokenizeRequest, self._config.gateway.max_body_bytes)
        if body.model is not None:
            self._check_model(body.model)
        if body.messages is not None:
            messages = [{"role": message.role, "content": message.text()} for message in body.messages]
            token_ids = await self._tokenizer.encode_chat(messages, body.add_generation_prompt)
        else:
            token_ids = await self._tokenizer.encode(body.prompt or "", body.add_special_tokens)
        count = {"count": len(token_ids), "max_model_len": self._context_tokens(), "tokens": token_ids}
        return Response(msgspec.json.encode(count), media_type=JSON)

    @_counting_errors
    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        tenant_of(request, self._tenants)
        body = await read_body(request, DetokenizeRequest, self._config.gateway.max_body_bytes)
        if body.model is not None:
            self._check_model(body.model)
        vocabulary = self._tokenizer.vocabulary_tokens
        if any(token >= vocabulary for token in body.tokens):
            raise invalid(f"tokens must be below the vocabulary size {vocabulary}", "tokens")
        return Response(msgspec.json.encode({"prompt": self._tokenizer.decode(body.tokens)}), media_type=JSON)

    def hot_routes(self) -> dict[str, RouteHandler]:
        """The routes that tokens go out through, with nothing between them and the connection."""
        return {
            "/v1/completions": _answering(self.completions),
            "/v1/chat/completions": _answering(self.chat_completions),
            "/v1/responses": _answering(self.responses),
            "/v1/messages": _answering(self.messages),
        }

    # -- operations ---------------------------------------------------------------------------------------------------

    async def health(self) -> Response:
        """Live: this gateway answers."""
        return Response(b'{"status":"ok"}', media_type=JSON)

    async def ready(self) -> Response:
        """Ready: every pool has a replica that takes requests, but for those that may have none."""
        live = self._host.live_replicas()
        may_have_none = {pool.name for pool in self._config.pools if pool.may_have_none}
        status = 200 if all(number or pool in may_have_none for pool, number in live.items()) else 503
        headers = {} if status == 200 else {"retry-after": retry_after(self._config.gateway.retry_after_s)}
        body = msgspec.json.encode({"status": "ready" if status == 200 else "not ready", "replicas": live})
        return Response(body, status_code=status, media_type=JSON, headers=headers)

    async def metrics(self) -> Response:
        """What all gateways count, for Prometheus."""
        return Response(await self._export.page(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def close(self) -> None:
        """Ends reports, traces and the event log; called once this gateway has served its last request."""
        self._export.close()
        self._front_end.close()
        self._host.close()
        self._scaler.close()
        self._tracer.close()
        self._event_log.close()

    def count_error(self, status: int, code: str) -> None:
        """One request got an error response."""
        self._metrics.count_error(status, code)
        self._host.refusals.note_error(status, code)

    # -- one request --------------------------------------------------------------------------------------------------

    async def _read(self, request: Request) -> Asked:
        """Whose request it is and what its body says, of which nothing is read without a key that is known here."""
        budget = LatencyBudget(self._clock.now_s)
        tenant = tenant_of(request, self._tenants)
        fields, digest = await read_json(request, self._config.gateway.max_body_bytes)
        return Asked(fields=fields, digest=digest, tenant=tenant, budget=budget)

    def _take_in(self, request: Request, asked: Asked, model: type[Body]) -> tuple[Body, Terms]:
        """The body, and what it is served under."""
        body, budget = validated(model, asked.fields), asked.budget
        limit_s = self._config.gateway.request_timeout_s
        terms = terms_of(request, body, asked.tenant, asked.digest, received_s=budget.received_s, limit_s=limit_s)
        self._check_model(body.model)
        budget.is_wanted = wants_latency_budget(request)
        budget.parsed()
        return body, terms

    async def _through_front_end(self, kind: Kind, request: Request, asked: Asked) -> Response:
        """Answers what the gateway's own layer does not serve: one request for each prompt and each choice."""
        _, terms = self._take_in(request, asked, TermsFields)
        opened: list[ServeOpenRequest] = []

        def submit(token_ids: list[int], sampling: Sampling) -> Answering:
            budget = LatencyBudget(self._clock.now_s) if opened else asked.budget
            budget.tokenized()
            self._check_prompt(token_ids, sampling.max_tokens, PROMPT_FIELDS.get(kind, "messages"))
            opened.append(self._submit(self._new_id(kind), terms, budget, token_ids, sampling))
            return Answering(opened[-1].stream, partial(error_for, opened[-1]))

        exchange = Exchange(submit)
        asking = self._front_end.answer(kind, asked.fields, exchange, request)
        return await self._egress.relay(request, asking, opened, kind=kind, model=self._config.model.id)

    def _submit(
        self, request_id: str, terms: Terms, budget: LatencyBudget, token_ids: list[int], sampling: Sampling
    ) -> ServeOpenRequest:
        block_tokens, ngrams = self._block_tokens(), self._host.wants_ngrams
        prefix_blocks = block_hashes(token_ids, block_tokens) if block_tokens else ()
        engine_request = EngineRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling)
        cache_entry = self._cache.look_up(terms.tenant, engine_request)
        view = RequestView(
            request_id=request_id,
            prompt_tokens=len(token_ids),
            max_output_tokens=sampling.max_tokens,
            arrival_s=self._clock.now_s(),
            deadline_s=terms.deadline_s,
            priority=terms.priority,
            tenant=terms.tenant,
            session_id=terms.session_id,
            logical_request_id=terms.logical_request_id,
            is_keyed=terms.is_keyed,
            retry_count=terms.retry_count,
            prefix_blocks=prefix_blocks,
            prefix_block_tokens=block_tokens,
            prompt_ngrams=hashed_ngrams(token_ids, ngrams.num_buckets, ngrams.limit) if ngrams else (),
            is_resumable=sampling.is_resumable,
            has_cached_answer=cache_entry.has_answer,
        )
        opened = self._host.submit(view, engine_request, cache_entry, budget)
        opened.headers[GATEWAY_HEADER] = self._replica_id
        return opened

    def _answer(self, kind: OwnKind, body: SamplingFields, token_ids: list[int], top_logprobs: int) -> OpenAiAnswer:
        return OpenAiAnswer(
            kind=kind,
            request_id=self._new_id(kind),
            model=self._config.model.id,
            created=int(unix_s()),
            prompt_tokens=len(token_ids),
            includes_usage=body.includes_usage,
            top_logprobs=top_logprobs,
            returns_token_ids=bool(body.return_token_ids),
        )

    def _new_id(self, kind: Kind) -> str:
        return f"{ID_PREFIXES[kind]}-{self._name}-{next(self._ids)}"

    def _sampling(
        self, body: SamplingFields, token_ids: list[int], limit: int | None, logprobs: int | None
    ) -> Sampling:
        context = self._check_prompt(token_ids, limit or 1, "messages" if isinstance(body, ChatRequest) else "prompt")
        return body.sampling(context - len(token_ids), limit, logprobs, self._tokenizer.vocabulary_tokens)

    def _check_prompt(self, token_ids: list[int], max_tokens: int, field: str) -> int:
        """Tokens of the context, in which a prompt and its answer have room."""
        vocabulary = self._tokenizer.vocabulary_tokens
        if not token_ids:
            raise invalid("the prompt has no tokens", field)
        if max(token_ids) >= vocabulary:
            raise invalid(f"prompt has a token id outside the vocabulary of {vocabulary}", "prompt")
        context = self._context_tokens()
        if len(token_ids) + max_tokens > context:
            said = f"the prompt has {len(token_ids)} and max_tokens asks for {max_tokens}"
            raise invalid(
                f"the context is {context} tokens; {said}",
                "max_tokens" if len(token_ids) < context else "prompt",
                "context_length_exceeded",
            )
        return context

    def _block_tokens(self) -> int:
        """Tokens in a block of what is tracked of prompts; 0 where nothing is."""
        tracks_prefixes = self._config.policies.prefixes.name != NO_TRACKER.name
        return self._config.gateway.prefix_block_tokens if tracks_prefixes else 0

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._config.model.id,
            "object": "model",
            "created": self._started_at,
            "owned_by": "spillway",
            "max_model_len": self._context_tokens(),
        }

    def _check_model(self, name: str) -> None:
        if name != self._config.model.id:
            message = f"the model {name!r} does not exist; this deployment serves {self._config.model.id!r}"
            raise ApiError(404, message, "model_not_found", "model")

    def _context_tokens(self) -> int:
        """The shortest context among the replicas, as the engines themselves say."""
        contexts = [
            int(replica.metadata["context_tokens"])
            for replicas in self._host.seen_replicas().values()
            for replica in replicas
            if "context_tokens" in replica.metadata
        ]
        if not contexts:
            raise ApiError(
                503,
                "no replica is ready yet; try again later",
                "not_ready",
                retry_after_s=self._config.gateway.retry_after_s,
            )
        return min(contexts)
