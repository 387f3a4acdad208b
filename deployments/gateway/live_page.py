"""The page at ``/``: what is deployed, who waits, how full the replicas are, and a box to try it.

Who may see a gateway may see this page. It says how many and how long, never who or what: no prompt, no answer, no
tenant and no key is in it. What the box sends is an ordinary request, with a key where the deployment asks for one.
"""

import base64
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from cluster.clock import Clock
from cluster.config.policies import PoliciesConfig
from deployments.config import AppConfig
from deployments.export.exports import MetricsExport
from deployments.export.live_feed import LiveFeed
from deployments.openai.errors import ApiError, not_found
from deployments.telemetry.collectors import ReplicasByPool
from deployments.telemetry.refusals import RecentRefusals, Refusal
from deployments.telemetry.summary import GatewaySummary, SummaryByModel
from policies.capacity.bounds import Bound, added_up, what_binds

SOURCES = Path(__file__).parents[1] / "pages"
COME_AGAIN_S = 10.0
EVENT_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Page(Protocol):
    """What a gateway shows to people."""

    async def show(self, request: Request) -> Response:
        """The page itself."""
        ...

    async def events(self, request: Request) -> Response:
        """What the page shows, again and again.

        Raises:
            ApiError: 503, too many watch already.
        """
        ...


class ShownModel(Protocol):
    """One model, as far as the page shows it."""

    @property
    def config(self) -> AppConfig:
        """What is in force now."""
        ...

    def seen_replicas(self) -> ReplicasByPool:
        """What replicas report, by pool."""
        ...

    def targets(self) -> Mapping[str, int]:
        """How many a pool is to have, where that changes."""
        ...


class NoPage:
    """For a deployment that shows nothing: there is nothing at these paths."""

    async def show(self, request: Request) -> Response:
        return await not_found(request, LookupError())

    async def events(self, request: Request) -> Response:
        return await not_found(request, LookupError())


class LivePage:
    """The page of one gateway, which shows all of them as far as it knows.

    Args:
        gateway: This gateway's name.
        models: What is served.
        summaries: What each gateway counts.
        refusals: The last ones of this gateway.
        clock: Ages are counted by it.
    """

    def __init__(
        self,
        gateway: str,
        models: Sequence[ShownModel],
        summaries: Callable[[], Awaitable[Mapping[str, SummaryByModel]]],
        *,
        refusals: RecentRefusals,
        clock: Clock,
    ) -> None:
        self._gateway = gateway
        self._models = models
        self._summaries = summaries
        self._refusals = refusals
        self._clock = clock
        self._started_s = clock.now_s()
        self._feed = LiveFeed(self.state)
        self._body, self._headers = _document()

    async def show(self, request: Request) -> Response:
        return Response(self._body, media_type="text/html", headers=self._headers)

    async def events(self, request: Request) -> Response:
        if self._feed.is_full:
            message = f"{self._feed.num_watchers} pages watch this gateway already; close one, or read /metrics"
            raise ApiError(503, message, "too_many_watchers", retry_after_s=COME_AGAIN_S)
        return StreamingResponse(self._feed.watch(), media_type="text/event-stream", headers=EVENT_HEADERS)

    async def state(self) -> bytes:
        """Everything that the page shows, as JSON."""
        summaries, now_s = await self._summaries(), self._clock.now_s()
        state = {
            "gateway": self._gateway,
            "uptime_s": now_s - self._started_s,
            "models": [_model(each, summaries) for each in self._models],
            "refusals": [_shown(each, now_s) for each in self._refusals.latest()],
        }
        return msgspec.json.encode(state)


def _model(model: ShownModel, summaries: Mapping[str, SummaryByModel]) -> dict[str, Any]:
    """What is shown of one model; a gateway that does not know it yet says nothing of it."""
    config = model.config
    name = config.model.id
    own = {gateway: by_model[name] for gateway, by_model in summaries.items() if name in by_model}
    return {
        "deployment": _deployment(config),
        "pools": _pools(config, model.seen_replicas(), model.targets()),
        "lanes": _lanes(config),
        "bounds": _bounds(own.values()),
        "gateways": own,
    }


def _deployment(config: AppConfig) -> dict[str, Any]:
    emulation = config.engine.emulation
    return {
        "model": config.model.id,
        "engine": config.engine.kind,
        "emulates": emulation.profile if emulation else None,
        "speed": emulation.speed if emulation else None,
        "needs_key": config.gateway.tenants is not None,
        "gateways": config.gateway.replicas,
        "policies": _policies(config.policies),
    }


def _policies(policies: PoliciesConfig) -> dict[str, str]:
    """The name of the policy that answers each question. Its parameters may name places on the node, so they stay."""
    names = {question: policy["name"] for question, policy in policies.model_dump().items() if "name" in policy}
    if policies.lanes.lanes:
        names |= {"classifier": policies.lanes.classifier.name, "guard": policies.lanes.guard.name}
    return names


def _pools(config: AppConfig, seen: ReplicasByPool, targets: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": pool.name,
            "role": pool.role,
            "wanted": targets.get(pool.name, pool.replicas),
            "replicas": [
                {
                    "id": replica.replica_id,
                    "kv_cache_usage": replica.stats.get("kv_cache_usage", 0.0),
                    "running": replica.stats.get("num_requests_running", 0),
                    "waiting": replica.stats.get("num_requests_waiting", 0),
                    "output_tokens": replica.stats.get("output_tokens_total", 0),
                }
                for replica in seen.get(pool.name, ())
            ],
        }
        for pool in config.pools
    ]


def _lanes(config: AppConfig) -> list[dict[str, Any]]:
    return [
        {
            "name": lane.name,
            "at_least_tokens": lane.prompt_tokens.at_least,
            "below_tokens": lane.prompt_tokens.below,
            "is_fallback": lane.fallback,
            "slo_s": {"ttft": _finite(lane.ttft_slo_s), "tpot": _finite(lane.tpot_slo_s)},
        }
        for lane in config.policies.lanes.lanes
    ]


def _bounds(summaries: Iterable[GatewaySummary]) -> list[dict[str, Any]]:
    """What binds each lane, by what all gateways' requests spent their time on of late."""
    lanes: dict[str, list[dict[Bound, float]]] = {}
    for summary in summaries:
        for name, seconds in summary.bounds.items():
            lanes.setdefault(name, []).append({Bound(bound): each_s for bound, each_s in seconds.items()})
    return [_bound(name, added_up(accounts)) for name, accounts in lanes.items()]


def _bound(lane: str, spent_s: Mapping[Bound, float]) -> dict[str, Any]:
    verdict = what_binds(spent_s)
    return {"lane": lane, "bound": verdict.bound, "fraction": verdict.fraction, "lever": verdict.lever}


def _finite(seconds: float) -> float | None:
    """JSON knows no endlessness."""
    return seconds if math.isfinite(seconds) else None


def _shown(refusal: Refusal, now_s: float) -> dict[str, Any]:
    """Whoever looks has another clock, so it is told how long ago."""
    return {
        "number": refusal.number,
        "age_s": now_s - refusal.at_s,
        "kind": refusal.kind,
        "reason": refusal.reason,
        "says": refusal.says,
        "class": refusal.priority,
        "lane": refusal.lane,
    }


def _document() -> tuple[bytes, dict[str, str]]:
    """The page in one piece, and headers by which a browser runs this script and this style and nothing else."""
    html, style, *scripts = (
        (SOURCES / name).read_text() for name in ("live.html", "live.css", "live.js", "live_try.js")
    )
    script = "".join(scripts)
    body = html.replace("{style}", style).replace("{script}", script).encode()
    policy = (
        "default-src 'none'",
        "connect-src 'self'",
        "img-src data:",
        f"style-src {_hash_of(style)}",
        f"script-src {_hash_of(script)}",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    headers = {
        "content-security-policy": "; ".join(policy),
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return body, headers


def _hash_of(source: str) -> str:
    """As a content security policy names what it allows."""
    return f"'sha256-{base64.b64encode(sha256(source.encode()).digest()).decode()}'"


def page_for(
    gateway: str, models: Sequence[ShownModel], export: MetricsExport, *, refusals: RecentRefusals, clock: Clock
) -> Page:
    """The page of a gateway, if its configuration wants one."""
    if not models[0].config.gateway.live_page:
        return NoPage()
    return LivePage(gateway, models, export.summaries, refusals=refusals, clock=clock)
