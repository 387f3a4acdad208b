"""The live page without a browser: its state, what is never in it, and who may run what in it."""

import asyncio
import base64
import re
from hashlib import sha256
from typing import Any

import msgspec
import pytest
import yaml
from fastapi import Request

from deployments.config import ROOT, AppConfig, validated
from deployments.export.exports import GatewayCounts, MetricsExport, NoAggregator
from deployments.export.live_feed import MAX_WATCHERS
from deployments.gateway.live_page import LivePage, NoPage, page_for
from deployments.openai.errors import ApiError
from deployments.telemetry.metrics import GatewayMetrics
from deployments.telemetry.refusals import RecentRefusals
from deployments.telemetry.service_metrics import ServiceMetrics
from deployments.telemetry.summary import GatewaySummary, summary_of
from deployments.wire.fleet_registry import SeenReplica
from policies import Reason
from routing import Outcome, OutcomeKind
from tests.deployments.host_dialogue import FixedClock
from tests.policy_doubles import a_request

REQUEST = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "server": None})


def args_of(name: str) -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "deployments" / "configs" / name).read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    return args


class Gateway:
    """What a page is given, where nothing runs."""

    def __init__(self, name: str = "emulated.yaml") -> None:
        self.config = validated(args_of(name))
        self.metrics = GatewayMetrics()
        self.clock = FixedClock()
        self.refusals = RecentRefusals(self.clock.now_s)
        self.replicas: dict[str, tuple[SeenReplica, ...]] = {}
        self.wanted: dict[str, int] = {}
        self.summaries: dict[str, GatewaySummary] = {}
        self.page = LivePage("g-1", (self,), self._summaries, refusals=self.refusals, clock=self.clock)

    def seen_replicas(self) -> dict[str, tuple[SeenReplica, ...]]:
        return self.replicas

    def targets(self) -> dict[str, int]:
        return self.wanted

    async def _summaries(self) -> dict[str, dict[str, GatewaySummary]]:
        known = self.summaries or {"g-1": summary_of(self.metrics.own())}
        return {name: {self.config.model.id: each} for name, each in known.items()}

    async def state(self) -> dict[str, Any]:
        """What is told of the gateway, and of its one model."""
        state: dict[str, Any] = msgspec.json.decode(await self.page.state())
        (model,) = state.pop("models")
        return {**state, **model}


def a_replica(replica_id: str, **stats: float) -> SeenReplica:
    return SeenReplica(replica_id=replica_id, node_id="10.0.0.7", max_ongoing_requests=8, stats=stats)


async def test_the_state_says_what_is_deployed() -> None:
    deployment = (await Gateway().state())["deployment"]
    said = {name: deployment[name] for name in ("model", "engine", "emulates", "needs_key")}
    assert said == {"model": "tiny-llama", "engine": "emulated", "emulates": "h100-llama3-8b", "needs_key": False}
    assert deployment["policies"]["planning"] == "always_disaggregated"
    assert deployment["policies"]["shedding"] == "never_shed"


async def test_the_state_goes_by_the_configuration_that_is_in_force() -> None:
    gateway = Gateway()
    changed = gateway.config.model_dump(mode="json")
    changed["policies"]["queueing"] = "edf"
    changed["gateway"]["tenants"] = "deployments/configs/tenants.example.yaml"
    gateway.config = AppConfig.model_validate(changed)
    deployment = (await gateway.state())["deployment"]

    assert (deployment["policies"]["queueing"], deployment["needs_key"]) == ("edf", True)


async def test_a_pool_whose_replicas_are_not_up_yet_is_there_without_them() -> None:
    gateway = Gateway()
    stats = {"kv_cache_usage": 0.5, "num_requests_running": 3, "num_requests_waiting": 1, "output_tokens_total": 70}
    gateway.replicas = {"decode": (a_replica("d-1", **stats), a_replica("d-2"))}
    prefill, decode = (await gateway.state())["pools"]

    assert (prefill["name"], prefill["wanted"], prefill["replicas"]) == ("prefill", 4, [])
    assert decode["replicas"] == [
        {"id": "d-1", "kv_cache_usage": 0.5, "running": 3, "waiting": 1, "output_tokens": 70},
        {"id": "d-2", "kv_cache_usage": 0.0, "running": 0, "waiting": 0, "output_tokens": 0},
    ]


async def test_what_binds_a_lane_goes_by_all_gateways_together() -> None:
    gateway = Gateway()
    assert (await gateway.state())["bounds"] == []
    own = summary_of(gateway.metrics.own())
    here, there = {"engine": 1.0, "queue": 3.0}, {"engine": 1.0, "memory": 5.0}
    gateway.summaries = {
        "g-1": msgspec.structs.replace(own, bounds={"": here}),
        "g-2": msgspec.structs.replace(own, bounds={"": there}),
    }
    (bound,) = (await gateway.state())["bounds"]

    assert (bound["lane"], bound["bound"], bound["fraction"]) == ("", "memory", 5.0 / 8.0)
    assert "decode replicas" in bound["lever"]


async def test_lanes_come_with_their_promises_and_their_policies() -> None:
    state = await Gateway("emulated-lanes.yaml").state()

    interactive, _, long = state["lanes"]
    assert (interactive["name"], interactive["below_tokens"]) == ("interactive", 2048)
    assert interactive["slo_s"] == {"ttft": 0.5, "tpot": 0.03}
    assert (long["at_least_tokens"], long["below_tokens"]) == (2048, None)
    assert state["deployment"]["policies"]["guard"] == "counterfactual"


async def test_a_lane_that_promises_nothing_says_so() -> None:
    gateway = Gateway("emulated-lanes.yaml")
    changed = gateway.config.model_dump(mode="python")
    del changed["policies"]["lanes"]["lanes"][0]["ttft_slo_s"]
    gateway.config = AppConfig.model_validate(changed)
    assert (await gateway.state())["lanes"][0]["slo_s"] == {"ttft": None, "tpot": 0.03}


async def test_refusals_come_with_their_age() -> None:
    gateway = Gateway()
    gateway.clock.time_s = 5.0
    gateway.refusals.note_outcome(a_request(), "short", Outcome(kind=OutcomeKind.REFUSED, reason=Reason.QUEUE_FULL))
    gateway.clock.time_s = 7.5

    state = await gateway.state()

    (refusal,) = state["refusals"]
    said = [refusal[name] for name in ("age_s", "reason", "lane", "class")]
    assert said == [2.5, "queue_full", "short", "standard"]
    assert state["uptime_s"] == 7.5


async def test_neither_parameters_nor_places_on_the_node_are_in_the_state() -> None:
    gateway = Gateway()
    changed = gateway.config.model_dump(mode="json")
    changed["policies"]["queueing"] = {"name": "priority", "params": {"aging_tau_s": 12345.0}}
    changed["gateway"]["tenants"] = "/etc/here/tenants.yaml"
    gateway.config = AppConfig.model_validate(changed)
    gateway.replicas = {"decode": (a_replica("d-1"),)}

    state = await gateway.page.state()

    for secret in (b"12345", b"/etc/here", b".models", b"10.0.0.7"):
        assert secret not in state


async def test_a_browser_runs_the_pages_own_script_and_nothing_else() -> None:
    shown = await Gateway().page.show(REQUEST)

    policy = shown.headers["content-security-policy"]
    for tag in ("script", "style"):
        (source,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), bytes(shown.body), re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(sha256(source).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_the_page_asks_nobody_else_for_anything() -> None:
    body = bytes((await Gateway().page.show(REQUEST)).body).decode()
    addresses = re.findall(r"https?://[^\s'\"]+", body)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}


async def test_one_watcher_too_many_is_told_to_come_again() -> None:
    page = Gateway().page
    watches = [aiter((await page.events(REQUEST)).body_iterator) for _ in range(MAX_WATCHERS)]  # type: ignore[attr-defined]
    await asyncio.gather(*map(anext, watches))

    with pytest.raises(ApiError) as caught:
        await page.events(REQUEST)

    assert (caught.value.status, caught.value.code) == (503, "too_many_watchers")
    assert caught.value.retry_after_s
    for watch in watches:
        await watch.aclose()
    assert (await page.events(REQUEST)).status_code == 200


class NoMirror:
    def show(self, metrics: Any) -> None:
        """Nobody looks there."""


async def test_a_pool_whose_size_changes_wants_as_many_as_it_is_to_have() -> None:
    gateway = Gateway("emulated-autoscaling.yaml")
    gateway.wanted["prefill"] = 5
    assert {pool["name"]: pool["wanted"] for pool in (await gateway.state())["pools"]} == {"prefill": 5, "decode": 1}


async def test_a_deployment_has_the_page_unless_its_configuration_says_no() -> None:
    on, off = Gateway(), Gateway()
    off.config = AppConfig.model_validate(on.config.model_dump() | {"gateway": {"live_page": False}})
    export = MetricsExport(GatewayCounts(ServiceMetrics(), {}), NoAggregator("g-1"), NoMirror(), period_s=3600)

    shown, hidden = (page_for("g-1", (each,), export, refusals=each.refusals, clock=each.clock) for each in (on, off))
    export.close()

    assert (await shown.show(REQUEST)).status_code == 200
    assert isinstance(hidden, NoPage)


async def test_where_there_is_no_page_there_is_nothing() -> None:
    page = NoPage()
    assert (await page.show(REQUEST)).status_code == 404
    assert (await page.events(REQUEST)).status_code == 404
