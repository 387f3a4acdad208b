"""The deployment that clients talk to: routes, and nothing but routes.

Serve pickles an ingress class by value while its module is still being imported, so whatever this module defines would
be a copy in the replica, or missing, and an object that is imported into it a copy, too. Everything with a state or a
name of its own is in :mod:`deployments.gateway.service`.
"""

import math
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.adapters.requests import LoadAdapterRequest, UnloadAdapterRequest
from deployments.configuration.models import read
from deployments.gateway.service import OpenAIService
from deployments.gateway.watches.loop_watch import LoopWatch, NoLoopWatch
from deployments.http import hot_routes
from deployments.http.client_connections import ClientConnections
from deployments.http.edge_tls import edge_tls_of
from deployments.http.own_port import NoOwnPort, OwnPort
from deployments.listener.listener_actor import address_of, ensure_listener
from deployments.openai.errors import ApiError, internal_error, method_not_allowed, not_found, to_response
from deployments.openai.openapi import describe
from deployments.openai.requests import ChatRequest, CompletionRequest
from deployments.openai.terms import TermsFields
from deployments.openai.token_requests import DetokenizeRequest, TokenizeRequest
from deployments.packaging import check_single_root
from deployments.wire.cluster_authentication import check_cluster_authentication
from deployments.wire.garbage import keep_what_is_there
from deployments.wire.serve_internals import own_http_address

app = FastAPI(title="spillway", description="OpenAI-compatible serving of large language models on Ray Serve.")
app.add_exception_handler(ApiError, to_response)
app.add_exception_handler(404, not_found)
app.add_exception_handler(405, method_not_allowed)
app.add_exception_handler(Exception, internal_error)


@serve.ingress(app)
class Gateway:
    """A Serve deployment class: one gateway replica.

    Args:
        models: The configuration of each model, as :func:`deployments.configuration.models.dumped` dumps them.
        pools: Each pool's handle, by name.
    """

    async def __init__(  # type: ignore[misc]
        self, models: list[dict[str, Any]], pools: dict[str, DeploymentHandle]
    ) -> None:
        check_single_root()
        configs = read(models)
        args = configs[0]
        check_cluster_authentication(is_allowed_without=args.allow_unauthenticated_cluster)
        replica_id = serve.get_replica_context().replica_id.unique_id
        self._service = OpenAIService(configs, pools, replica_id)
        hot_routes.ROUTES.serve(self._service.hot_routes())
        keep_what_is_there()
        self._port = NoOwnPort()
        self._loop_watch: NoLoopWatch | LoopWatch = NoLoopWatch()
        self._clients = ClientConnections(args.gateway.connections_per_client or math.inf)
        self._tls = edge_tls_of(args.gateway.tls)
        self._patience_s = args.gateway.graceful_shutdown_timeout_s
        self._has_started = False

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve calls this at the start, before the first request, and whenever ``user_config`` has changed.

        A coroutine, so that it runs on the event loop, as all does that tells the dispatcher something.
        """
        self._service.reconfigure(user_config)
        if not self._has_started:
            self._has_started = True
            self._loop_watch = LoopWatch()
            taken = own_http_address()
            self._tls.check(has_proxy=taken is None)
            if taken is not None:
                host, port, keep_alive_s = taken
                address = address_of(host, port)
                ensure = partial(ensure_listener, address)
                self._port = await OwnPort.open(self, address, keep_alive_s, ensure, self._clients, tls=self._tls)

    async def __del__(self) -> None:
        """Serve awaits this when it takes the gateway away, and has waited for what has come through its proxies."""
        if watch := getattr(self, "_loop_watch", None):
            watch.close()
        if port := getattr(self, "_port", None):
            await port.close(self._patience_s)
        if service := getattr(self, "_service", None):
            service.close()

    @app.get("/", include_in_schema=False)
    async def page(self, request: Request) -> Response:
        """What goes on, for people."""
        return await self._service.page.show(request)

    @app.get("/live/events", include_in_schema=False)
    async def live_events(self, request: Request) -> Response:
        """What the page shows, every second."""
        return await self._service.page.events(request)

    @app.post("/v1/completions", **describe(CompletionRequest))
    async def completions(self, request: Request) -> Response:
        """Completes a text or a list of token ids."""
        return await self._service.completions(request)

    @app.post("/v1/chat/completions", **describe(ChatRequest))
    async def chat_completions(self, request: Request) -> Response:
        """Answers a conversation."""
        return await self._service.chat_completions(request)

    @app.post("/v1/responses", **describe(TermsFields))
    async def responses(self, request: Request) -> Response:
        """Answers in the way of OpenAI's newer API; needs ``gateway.vllm_front_end``."""
        return await self._service.responses(request)

    @app.post("/v1/messages", **describe(TermsFields))
    async def messages(self, request: Request) -> Response:
        """Answers in the way of Anthropic's API; needs ``gateway.vllm_front_end``."""
        return await self._service.messages(request)

    @app.post("/v1/messages/count_tokens", **describe(TermsFields))
    async def count_tokens(self, request: Request) -> Response:
        """Tokens of a conversation, in the way of Anthropic's API; needs ``gateway.vllm_front_end``."""
        return await self._service.count_tokens(request)

    @app.post("/v1/embeddings", **describe(TermsFields))
    async def embeddings(self, request: Request) -> Response:
        """A vector of each text, of models whose pools have the role ``pooling``; needs ``gateway.vllm_front_end``."""
        return await self._service.embeddings(request)

    @app.post("/v1/score", **describe(TermsFields))
    @app.post("/score", include_in_schema=False)
    async def score(self, request: Request) -> Response:
        """How well texts go together, of such models."""
        return await self._service.score(request)

    @app.post("/v1/rerank", **describe(TermsFields))
    @app.post("/rerank", include_in_schema=False)
    @app.post("/v2/rerank", include_in_schema=False)
    async def rerank(self, request: Request) -> Response:
        """The texts that go best with a query, of such models."""
        return await self._service.rerank(request)

    @app.post("/detokenize", **describe(DetokenizeRequest))
    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        return await self._service.detokenize(request)

    @app.post("/tokenize", **describe(TokenizeRequest))
    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a conversation, as the engine would get them."""
        return await self._service.tokenize(request)

    @app.get("/v1/models")
    async def models(self, request: Request) -> Response:
        """The models that may be used."""
        return await self._service.models(request)

    @app.get("/v1/models/{name:path}")
    async def model(self, request: Request, name: str) -> Response:
        """One model's card."""
        return await self._service.model(request, name)

    @app.post("/v1/load_lora_adapter", **describe(LoadAdapterRequest))
    async def load_lora_adapter(self, request: Request) -> Response:
        """Has all replicas of a model load an adapter, for tenants with ``may_load_adapters``."""
        return await self._service.load_lora_adapter(request)

    @app.post("/v1/unload_lora_adapter", **describe(UnloadAdapterRequest))
    async def unload_lora_adapter(self, request: Request) -> Response:
        """Has all replicas forget an adapter, for tenants with ``may_load_adapters``."""
        return await self._service.unload_lora_adapter(request)

    @app.get("/health")
    async def health(self) -> Response:
        """Live: this gateway answers."""
        return await self._service.health()

    @app.get("/ready")
    async def ready(self) -> Response:
        """Ready: every pool has a replica that takes requests, but for those that may have none."""
        return await self._service.ready()

    @app.get("/metrics")
    async def metrics(self) -> Response:
        """What all gateways count, for Prometheus."""
        return await self._service.metrics()
