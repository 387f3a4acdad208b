"""One model behind a gateway: tokenizes, hands requests to the host of its dispatcher, and gives the answers.

Each model of a deployment has its own, with its own pools, policies, predictions, prefixes and counts; none knows of
another.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from ray.serve.handle import DeploymentHandle

from cluster.clock import Clock, unix_s
from cluster.event_log.frames import LogHeader
from cluster.latency_budget import LatencyBudget
from cluster.seeds import GatewayStreams
from deployments.adapters.loading import AdapterLoading
from deployments.adapters.registry import AdapterRegistry
from deployments.adapters.store import AdapterStore
from deployments.adapters.stored import NothingStored, Stored, StoredAdapters
from deployments.config import AppConfig, ModelConfig, resolved
from deployments.data_plane.connections import Connections, NoConnections
from deployments.data_plane.endpoint import tls_contexts
from deployments.data_plane.reconnection import Reconnections, last_event_of, refuse_reconnection
from deployments.data_plane.stall_watch import NoStallWatch, StallWatch
from deployments.front_end.choice import Content, Kind, OwnKind, front_end_of
from deployments.front_end.exchange import Answering, Exchange
from deployments.gateway.egress import JSON, Egress, ended_stream, error_for
from deployments.gateway.event_logs import open_event_log
from deployments.gateway.open_request import ServeOpenRequest
from deployments.gateway.response_cache import NO_CACHE_ENTRY, NoResponseCache, ResponseCache
from deployments.gateway.serve_host import ServeHost
from deployments.gateway.tracing import Tracer
from deployments.gateway.watches.policy_watch import PolicyWatch
from deployments.http.json_body import JsonBody
from deployments.http.rate_limits import NO_ACCOUNT, NoAccount, TenantAccount
from deployments.openai.engine_limits import check_lengths, check_vocabulary, too_long
from deployments.openai.errors import ApiError, error_of, invalid
from deployments.openai.event_ids import EventId, EventIds
from deployments.openai.identity import Terms, terms_of, wants_latency_budget
from deployments.openai.requests import ChatRequest, CompletionRequest, SamplingFields, check_prompt_logprobs
from deployments.openai.responses import OpenAiAnswer
from deployments.openai.terms import TermsFields
from deployments.openai.token_requests import DetokenizeRequest, TokenizeRequest
from deployments.openai.validation import validated
from deployments.scaling.scaler_client import NoScaler, ScalerClient
from deployments.telemetry.metrics import GatewayMetrics
from deployments.telemetry.refusals import RecentRefusals
from deployments.tenants.tenants import Tenant
from deployments.tokenizing.prompt_tokenizer import PromptTokenizer
from deployments.wire.attempt_call import NO_KEEPING, AnswerKeeping
from deployments.wire.fleet_registry import SeenReplica
from deployments.wire.seen_fleet import SeenFleet
from engines.contract import NO_ADAPTER, NO_POOLING, Adapter, Chunk, EngineRequest, Pooling, Sampling
from policies.decisions import Reason
from policies.pool_views import PoolLoad
from policies.tenancy import TenantTermsByName
from policies.views import RequestView
from routing.assembly import build_dispatcher
from routing.breakers.breaker import PolicyFailure
from routing.breakers.breakers import Breakers
from routing.config.spec import NO_TRACKER, DispatcherSpec, LeaderFirst
from routing.dispatcher import Dispatcher
from routing.prefixes.block_hashes import block_hashes, prompt_id
from routing.request.effects import Outcome, OutcomeKind
from routing.sizing.prompt_ngrams import hashed_ngrams

LOGGER = logging.getLogger("ray.serve")
GATEWAY_HEADER = "x-spillway-gateway"
"""Which gateway has answered, or refused."""

VERDICT_S = 0.5
"""How much later than its deadline a request that the dispatcher has is given up all the same."""
PROMPT_FIELDS: dict[Kind, str] = {
    "completion": "prompt",
    "response": "input",
    "embedding": "input",
    "score": "documents",
    "rerank": "documents",
}
"""Where a prompt is not in ``messages``."""
ID_PREFIXES: dict[Kind, str] = {
    "completion": "cmpl",
    "chat": "chatcmpl",
    "response": "resp",
    "message": "msg",
    "embedding": "embd",
    "score": "score",
    "rerank": "rerank",
}

Body = TypeVar("Body", bound=TermsFields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as it has come in.

    Args:
        body: What it says.
        tenant: Whose it is.
        budget: The account of its time.
        adapter: The LoRA adapter that it asks for, if any.
        account: What its tenant has left of its limits.
    """

    body: JsonBody
    tenant: Tenant
    budget: LatencyBudget
    adapter: Adapter = NO_ADAPTER
    account: TenantAccount | NoAccount = NO_ACCOUNT

    @property
    def fields(self) -> Any:
        """Of its body."""
        return self.body.fields


@dataclass(frozen=True, slots=True, kw_only=True)
class InGateway:
    """What the models of a gateway have in common.

    Args:
        replica_id: The gateway's own id.
        suffix: Tells this model's random streams and event log from those of the gateway's others; empty where there
            are none.
        clock: The gateway's.
        new_id: Gives a number that no other request of the gateway has, as text.
        tracer: Makes traces.
        refusals: Where requests that got no answer are noted.
        terms: What tenants are entitled to.
    """

    replica_id: str
    suffix: str
    clock: Clock
    new_id: Callable[[], str]
    tracer: Tracer
    refusals: RecentRefusals
    terms: TenantTermsByName


class ModelService:
    """One model in one gateway replica. Lives on the gateway's event loop.

    Args:
        config: The model's configuration.
        pools: The handle of each of its pools, by name.
        gateway: What it has in common with the gateway's other models.

    Attributes:
        config: What is in force now.
        metrics: What is counted of its requests.

    Raises:
        ConfigError: The event log can't be written here, or vLLM knows no such parser.
    """

    def __init__(self, config: AppConfig, pools: Mapping[str, DeploymentHandle], gateway: InGateway) -> None:
        self.config = config
        self._gateway = gateway
        self._clock = gateway.clock
        self._tokenizer = PromptTokenizer(config.model.resolved_path())
        self._adapters = AdapterRegistry(config.model.listed_adapters)
        self._stored = _stored_adapters(config.model, self._adapters, self._clock)
        self.metrics = GatewayMetrics(config.service_rates(), self._clock)
        self._cache = self._response_cache()
        self._known_context_tokens = 0
        self._started_at = int(unix_s())
        self._unix_ahead_s = unix_s() - self._clock.now_s()
        self._policy_watch = PolicyWatch(self._clock.now_s)
        self.host = self._make_host(pools)
        self._loading = AdapterLoading(self._adapters, pools)  # which has handles of its own made of these
        self._egress = Egress(self.host, self.metrics, gateway.tracer)
        self._front_end = front_end_of(config)

    def _response_cache(self) -> ResponseCache | NoResponseCache:
        wanted = self.config.gateway.response_cache
        if wanted is None:
            return NoResponseCache()
        count = self.metrics.count_cache_lookup
        cache = ResponseCache(wanted.max_bytes, wanted.ttl_s, now_s=self._clock.now_s, count_lookup=count)
        self.metrics.watch_cache(lambda: cache.num_bytes)
        return cache

    def _make_host(self, pools: Mapping[str, DeploymentHandle]) -> ServeHost:
        config, gateway = self.config, self._gateway
        spec = self._spec = self._spec_of(config, gateway.terms)
        own = gateway.replica_id if config.gateway.replicas > 1 else ""
        streams = GatewayStreams(seed=config.gateway.seed, suffix=own + gateway.suffix)
        breakers = Breakers(self._take_in_failure, self._clock.now_s, self._policy_watch)
        dispatcher = build_dispatcher(spec, rng_for=streams.stream, provided=config.provided, breakers=breakers)
        name = gateway.replica_id + gateway.suffix
        header = LogHeader(gateway=name, streams=streams, dispatcher=spec, has_breakers=True)
        self._event_log = open_event_log(config.gateway.event_log, header)
        for handle in pools.values():
            handle._init()
        connections = _connections(config, gateway.replica_id)
        self._reconnections = Reconnections(connections, self.metrics.count_reconnection)
        host = ServeHost(
            dispatcher,
            pools,
            {pool.name: pool.stage for pool in config.pools},
            self._clock,
            self.metrics,
            gateway=gateway.replica_id,
            listener=self._event_log,
            connections=connections,
            model=config.model.id,
            refusals=gateway.refusals,
            seen=SeenFleet(config.role_pairs),
        )
        self.metrics.watch(
            host.seen_replicas, lambda: dispatcher.num_open_requests, lambda: dispatcher.num_waiting_requests
        )
        self._stalls = _stall_watch(config.gateway.stall_after_s, connections, host)
        self._scaler: ScalerClient | NoScaler = NoScaler()
        if spec.policies.is_scaled:
            self._scaler = self._scaler_client(dispatcher)
        slos = dispatcher.request_classifier.slos
        self.metrics.watch_lanes(
            dispatcher.access.lanes, slos, lambda: {**dispatcher.gauges(self._clock.now_s()), **self._scaler.gauges()}
        )
        return host

    def _spec_of(self, config: AppConfig, terms: TenantTermsByName) -> DispatcherSpec:
        return replace(config.dispatcher_spec(terms), unix_ahead_s=self._unix_ahead_s)

    def _take_in_failure(self, failure: PolicyFailure) -> None:
        """A policy of somebody's own has failed: counted each time, said when it is left out."""
        self.metrics.count_policy_failure(failure)
        level = logging.WARNING if failure.is_left_out else logging.DEBUG
        LOGGER.log(level, "policies.%s: %s %s: %s", failure.question, failure.policy, failure.kind.value, failure.said)
        if failure.is_left_out:
            LOGGER.warning("policies.%s: the built-in one stands in for it for a while", failure.question)

    def _scaler_client(self, dispatcher: Dispatcher) -> ScalerClient:
        def loads() -> Mapping[str, PoolLoad]:
            return dispatcher.pool_loads(self._clock.now_s())

        gateway, model = self._gateway.replica_id, self.config.model.id
        return ScalerClient(gateway, model, loads, self.metrics.bounds.of_late_s)

    def reconfigure(self, config: AppConfig, terms: TenantTermsByName) -> None:
        """Goes on with another configuration; no request is dropped.

        Raises:
            ConfigError: The dispatcher can't take it; nothing has changed.
        """
        spec = self._spec_of(config, terms)
        if spec != self._spec:
            self.host.reconfigure(spec)
        self.config, self._spec = config, spec

    def close(self) -> None:
        """Ends reports, the event log and the watch."""
        self._policy_watch.close()
        self._front_end.close()
        self._tokenizer.close()
        self._stored.close()
        self._stalls.close()
        self.host.close()
        self._scaler.close()
        self._event_log.close()

    # -- what is asked of it ------------------------------------------------------------------------------------------

    async def complete(self, request: Request, asked: Asked) -> Response:
        """Completes a text or a list of token ids."""
        if self._front_end.takes("completion", asked.fields):
            return await self.through_front_end("completion", request, asked)
        body, terms = await self._take_in(request, asked, CompletionRequest)
        prompt = body.single_prompt()
        context = self._context_tokens()
        if isinstance(prompt, str):
            left_s = terms.deadline_s - self._clock.now_s()
            token_ids = await self._tokenizer.encode(
                prompt, tenant=asked.tenant.name, most_tokens=context, patience_s=left_s
            )
        else:
            token_ids = prompt
        asked.budget.tokenized()
        sampling = self._sampling(body, token_ids, context, body.max_tokens, body.logprobs)
        wanted = self._engine_request("completion", asked, token_ids, sampling)
        answer = self._answer("completion", body, wanted, body.logprobs or 0)
        return await self._respond(request, asked, terms, wanted, answer, streams=bool(body.stream))

    async def chat(self, request: Request, asked: Asked) -> Response:
        """Answers a conversation."""
        if self._front_end.takes("chat", asked.fields):
            return await self.through_front_end("chat", request, asked)
        body, terms = await self._take_in(request, asked, ChatRequest)
        messages = [{"role": message.role, "content": message.text()} for message in body.messages]
        context = self._context_tokens()
        left_s = terms.deadline_s - self._clock.now_s()
        token_ids = await self._tokenizer.encode_chat(
            messages, body.add_generation_prompt, tenant=asked.tenant.name, most_tokens=context, patience_s=left_s
        )
        asked.budget.tokenized()
        top_logprobs = body.top_logprobs or 0
        limit = body.max_completion_tokens or body.max_tokens
        sampling = self._sampling(body, token_ids, context, limit, top_logprobs if body.logprobs else None)
        wanted = self._engine_request("chat", asked, token_ids, sampling)
        answer = self._answer("chat", body, wanted, top_logprobs)
        return await self._respond(request, asked, terms, wanted, answer, streams=bool(body.stream))

    async def through_front_end(self, kind: Kind, request: Request, asked: Asked) -> Response:
        """Answers what the gateway's own layer does not serve: one request for each prompt and each choice."""
        refuse_reconnection(request)
        _, terms = await self._take_in(request, asked, TermsFields)
        check_vocabulary(asked.fields, self._tokenizer.vocabulary_tokens)
        opened: list[ServeOpenRequest] = []

        def submit(token_ids: list[int], sampling: Sampling, pooling: Pooling = NO_POOLING) -> Answering:
            one = replace(asked, budget=LatencyBudget(self._clock.now_s)) if opened else asked
            one.budget.tokenized()
            room_tokens = 0 if pooling else sampling.max_tokens
            field = PROMPT_FIELDS.get(kind, "messages")
            self._check_prompt(token_ids, self._context_tokens(), room_tokens, field)
            if min(token_ids) < 0:
                raise invalid("token ids are not below 0", field)
            wanted = self._engine_request(kind, asked, token_ids, sampling)
            opened.append(self._submit(terms, one, msgspec.structs.replace(wanted, pooling=pooling)))
            return Answering(opened[-1].stream, partial(error_for, opened[-1]))

        exchange, name = Exchange(submit, asked.adapter), self._name_of(asked.adapter)
        answering = self._front_end.answer(kind, {**asked.fields, "model": name}, exchange, request)
        asking = self._in_time(answering, terms.deadline_s)
        return await self._egress.relay(request, asking, opened, kind=kind, model=name)

    async def _in_time(self, answering: Awaitable[Content], deadline_s: float) -> Content:
        """What a front end answers, in the time that the request has: it may be reading still what is asked."""
        try:
            async with asyncio.timeout(max(0.0, deadline_s - self._clock.now_s()) + VERDICT_S):
                return await answering
        except TimeoutError as error:
            raise error_of(Outcome(kind=OutcomeKind.FAILED, reason=Reason.DEADLINE_EXCEEDED)) from error

    async def tokenize(self, body: TokenizeRequest, tenant: Tenant) -> Response:
        """Token ids of a text or a conversation, as the engine would get them, however many there are."""
        name, patience_s = tenant.name, self.config.gateway.request_timeout_s
        if body.messages is not None:
            messages = [{"role": message.role, "content": message.text()} for message in body.messages]
            found = await self._tokenizer.list_chat_tokens(
                messages, body.add_generation_prompt, tenant=name, patience_s=patience_s
            )
        else:
            found = await self._tokenizer.list_tokens(
                body.prompt or "", body.add_special_tokens, tenant=name, patience_s=patience_s
            )
        listed = {"count": found.num_tokens, "max_model_len": self._context_tokens(), "tokens": msgspec.Raw(found.ids)}
        return Response(msgspec.json.encode(listed), media_type=JSON)

    async def detokenize(self, body: DetokenizeRequest) -> Response:
        """The text of token ids."""
        vocabulary, context = self._tokenizer.vocabulary_tokens, self._context_tokens()
        if len(body.tokens) > context:
            raise invalid(f"tokens has {len(body.tokens)} entries; at most the context, {context}, are taken", "tokens")
        if max(body.tokens, default=0) >= vocabulary:
            raise invalid(f"tokens must be below the vocabulary size {vocabulary}", "tokens")
        return Response(msgspec.json.encode({"prompt": self._tokenizer.decode(body.tokens)}), media_type=JSON)

    def card(self, adapter: Adapter = NO_ADAPTER) -> dict[str, Any]:
        """What clients are told of the model, or of one of its adapters."""
        model = self.config.model.id
        return {
            "id": adapter.name or model,
            "object": "model",
            "created": self._started_at,
            "owned_by": "spillway",
            "max_model_len": self._context_tokens(),
            **({"parent": model} if adapter else {}),
        }

    # -- adapters -----------------------------------------------------------------------------------------------------

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of those that the model has now."""
        self._hear_of_adapters()
        return self._adapters.names

    def adapter_named(self, name: str) -> Adapter:
        """The adapter of that name; ``NO_ADAPTER`` where there is none."""
        self._hear_of_adapters()
        return self._adapters.get(name)

    async def look_for_adapter(self, name: str) -> None:
        """Has the adapter of that name from now on, if the store has one.

        Raises:
            ApiError: 503, the store can't be read.
        """
        try:
            await self._stored.look_for(name)
        except OSError as error:
            LOGGER.warning("model %s: its adapter store can't be read: %s", self.config.model.id, str(error))
            message = "the adapters of this model can't be looked up now; try again later"
            raise ApiError(
                503, message, "adapters_unavailable", "model", retry_after_s=self.config.gateway.retry_after_s
            ) from error

    async def look_for_adapters(self) -> None:
        """Has all adapters of the store from now on."""
        await self._stored.look_for_all()

    async def load_adapter(self, adapter: Adapter) -> None:
        """All replicas that there are have it from now on.

        Raises:
            RequestInvalid: One of them can't load it; none has it then.
        """
        await self._loading.load(adapter, self._replica_ids(), unix_s())

    async def unload_adapter(self, name: str) -> None:
        """No replica has it any more; requests that have it finish."""
        await self._loading.unload(name, self._replica_ids(), unix_s())

    def _hear_of_adapters(self) -> None:
        """What replicas say was loaded by way of other gateways."""
        for replicas in self.host.seen_replicas().values():
            for replica in replicas:
                if said := replica.stats.get("adapter_registry"):
                    self._adapters.hear(said)

    def _replica_ids(self) -> dict[str, list[str]]:
        return {pool: [each.replica_id for each in its] for pool, its in self.host.replicas_by_deployment().items()}

    def targets(self) -> Mapping[str, int]:
        """Replicas that pools are to have, where that changes."""
        return self._scaler.targets

    def seen_replicas(self) -> Mapping[str, tuple[SeenReplica, ...]]:
        """What the replicas report, by pool."""
        return self.host.seen_replicas()

    # -- one request --------------------------------------------------------------------------------------------------

    async def _take_in(self, request: Request, asked: Asked, model: type[Body]) -> tuple[Body, Terms]:
        """The body, and what it is served under."""
        check_lengths(asked.fields, self._known_context_tokens)
        body, budget = validated(model, asked.fields), asked.budget
        terms = terms_of(
            request,
            body,
            asked.tenant,
            await asked.body.digest(),
            received_s=budget.received_s,
            now_s=self._clock.now_s(),
            limit_s=self.config.gateway.request_timeout_s,
        )
        budget.is_wanted = wants_latency_budget(request)
        budget.parsed()
        return body, terms

    def _name_of(self, adapter: Adapter) -> str:
        """What is asked for, as answers call it."""
        return adapter.name or self.config.model.id

    def _engine_request(self, kind: Kind, asked: Asked, token_ids: list[int], sampling: Sampling) -> EngineRequest:
        return EngineRequest(
            request_id=f"{ID_PREFIXES[kind]}-{self._gateway.new_id()}",
            prompt_token_ids=token_ids,
            sampling=sampling,
            adapter=asked.adapter,
        )

    async def _respond(
        self,
        request: Request,
        asked: Asked,
        terms: Terms,
        wanted: EngineRequest,
        answer: OpenAiAnswer,
        *,
        streams: bool,
    ) -> Response:
        """The answer, or what is left of it for a client that has come back."""
        last = last_event_of(request, is_keyed=terms.is_keyed, streams=streams)
        keeping = NO_KEEPING
        if streams:
            name, kept_for_s = last.answer or wanted.request_id, self.config.gateway.keep_answers_s
            keeping = self._reconnections.keeping(name, terms, await asked.body.digest(), wanted, kept_for_s)
        if last:
            answer.go_on_after(last)
            rest = await self._reconnections.rest_of(wanted, last, keeping)
            if isinstance(rest, Chunk):
                return ended_stream(answer, rest)
            wanted = rest
        elif keeping:
            answer.event_ids = EventIds(EventId(wanted.request_id))
        opened = self._submit(terms, asked, wanted, keeping)
        return await self._egress.answer(request, opened, answer, streams=streams)

    def _submit(
        self, terms: Terms, asked: Asked, engine_request: EngineRequest, keeping: AnswerKeeping = NO_KEEPING
    ) -> ServeOpenRequest:
        check_prompt_logprobs(engine_request.sampling, len(engine_request.prompt_token_ids))
        if terms.cache_salt:
            engine_request = msgspec.structs.replace(engine_request, cache_salt=terms.cache_salt)
        is_begun = engine_request.answered_tokens > 0
        cache_entry = NO_CACHE_ENTRY if is_begun else self._cache.look_up(terms.tenant, engine_request)
        view = self._view_of(terms, engine_request, has_cached_answer=cache_entry.has_answer)
        usage = asked.account.begin(view.prompt_tokens)
        try:
            opened = self.host.submit(view, engine_request, cache_entry, asked.budget, keeping=keeping, usage=usage)
        except BaseException:
            usage.end(output_tokens=0)
            raise
        opened.headers[GATEWAY_HEADER] = self._gateway.replica_id
        opened.client_deadline_unix_s = terms.client_deadline_unix_s
        return opened

    def _view_of(self, terms: Terms, engine_request: EngineRequest, *, has_cached_answer: bool) -> RequestView:
        """The request as policies see it."""
        token_ids, sampling, adapter = (
            engine_request.prompt_token_ids,
            engine_request.sampling,
            engine_request.adapter.name,
        )
        block_tokens, ngrams = self._block_tokens(), self.host.wants_ngrams
        prefix_blocks = block_hashes(token_ids, block_tokens, adapter, terms.cache_salt) if block_tokens else ()
        is_led = self.config.gateway.leader_first is not LeaderFirst.NEVER
        return RequestView(
            request_id=engine_request.request_id,
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
            prompt_id=prompt_id(token_ids, prefix_blocks, block_tokens, adapter, terms.cache_salt) if is_led else 0,
            prompt_ngrams=hashed_ngrams(token_ids, ngrams.num_buckets, ngrams.limit) if ngrams else (),
            is_resumable=sampling.is_resumable,
            has_cached_answer=has_cached_answer,
            adapter=adapter,
        )

    def _answer(self, kind: OwnKind, body: SamplingFields, wanted: EngineRequest, top_logprobs: int) -> OpenAiAnswer:
        return OpenAiAnswer(
            kind=kind,
            request_id=wanted.request_id,
            model=self._name_of(wanted.adapter),
            created=int(unix_s()),
            prompt_tokens=len(wanted.prompt_token_ids),
            includes_usage=body.includes_usage,
            top_logprobs=top_logprobs,
            returns_token_ids=bool(body.return_token_ids),
        )

    def _sampling(
        self, body: SamplingFields, token_ids: list[int], context: int, limit: int | None, logprobs: int | None
    ) -> Sampling:
        field = "messages" if isinstance(body, ChatRequest) else "prompt"
        self._check_prompt(token_ids, context, limit or 1, field)
        return body.sampling(context - len(token_ids), limit, logprobs, self._tokenizer.vocabulary_tokens)

    def _check_prompt(self, token_ids: list[int], context: int, max_tokens: int, field: str) -> None:
        """That a prompt and its answer have room in a context of so many tokens."""
        vocabulary = self._tokenizer.vocabulary_tokens
        if not token_ids:
            raise invalid("the prompt has no tokens", field)
        if max(token_ids) >= vocabulary:
            raise invalid(f"{field} has a token id outside the vocabulary of {vocabulary}", field)
        if len(token_ids) + max_tokens > context:
            said = f"the prompt has {len(token_ids)} and max_tokens asks for {max_tokens}"
            raise too_long(context, said, "max_tokens" if len(token_ids) < context else "prompt")

    def _block_tokens(self) -> int:
        """Tokens in a block of what is tracked of prompts; 0 where nothing is."""
        tracks_prefixes = self.config.policies.prefixes.name != NO_TRACKER.name
        return self.config.gateway.prefix_block_tokens if tracks_prefixes else 0

    def _context_tokens(self) -> int:
        """The shortest context among the replicas, as the engines themselves say, or said when there were some: what
        comes while they are gone may wait for the next ones.
        """
        contexts = [
            int(replica.metadata["context_tokens"])
            for replicas in self.host.seen_replicas().values()
            for replica in replicas
            if "context_tokens" in replica.metadata
        ]
        if contexts:
            self._known_context_tokens = min(contexts)
        if not self._known_context_tokens:
            raise ApiError(
                503,
                "no replica is ready yet; try again later",
                "not_ready",
                retry_after_s=self.config.gateway.retry_after_s,
            )
        return self._known_context_tokens


def _stored_adapters(model: ModelConfig, registry: AdapterRegistry, clock: Clock) -> Stored:
    if model.adapter_store is None:
        return NothingStored()
    return StoredAdapters(model.id, AdapterStore(resolved(model.adapter_store)), registry, clock.now_s)


def _stall_watch(silent_s: float, connections: NoConnections, host: ServeHost) -> StallWatch | NoStallWatch:
    if not silent_s:
        return NoStallWatch()
    return StallWatch(partial(connections.stalled, silent_s), host.take_in_stall)


def _connections(config: AppConfig, replica_id: str) -> NoConnections:
    """To all replicas, encrypted where Ray is."""
    if config.gateway.inner_hop == "ray_handle":
        return NoConnections()
    tls = tls_contexts()
    return Connections(replica_id, None if tls is None else tls[1])
