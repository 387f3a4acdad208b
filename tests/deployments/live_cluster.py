"""One Ray cluster of three nodes for all tests that need Ray, and what is deployed there.

A real engine takes half a minute to start, so all tests of real engines share one deployment (fixture ``live``), with
prefill and decode each on a node of its own. Emulated ones are applications beside it (``application``).
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deployments.config import ROOT
from deployments.launch import PROXY_READY_S
from engines.peer_port import free_port
from tests.deployments.gateway_logs import GatewayLogs
from tests.engines.emulated_engines import ensure_tokenizer
from tests.plain_http import HTTP
from tests.waiting import PATIENCE_S, wait_until

MODEL = "tiny-llama"
POOLS = ("prefill", "decode")
MAX_BODY_BYTES = 1_000_000
FRONT_END = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
CROWDED_S = 20.0
"""Processes wait for a core for seconds where tests run side by side; such a replica does not stand still."""
START_PATIENCE_S = 600.0
MARK = "SPILLWAY_TEST_CLUSTER"
"""In the environment of every process of the cluster, and of nothing else."""

ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": PROXY_READY_S,
    "RAY_SERVE_ENABLE_HA_PROXY": "0",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodes:
    """A Ray cluster with Serve running on it.

    Args:
        url: Where Serve's proxy listens.
        head: Node id of the head.
        prefill: Node id of the node with the resource ``prefill``.
        decode: Node id of the node with the resource ``decode``.
        logs: What the gateways of its applications log.
    """

    url: str
    head: str
    prefill: str
    decode: str
    logs: GatewayLogs


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The deployment that all tests share."""

    url: str
    nodes: RayNodes

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample of a metric."""
        answer = HTTP.get(f"{self.url}/metrics", timeout=30).raise_for_status()
        families = text_string_to_metric_families(answer.text)
        found = [sample for family in families for sample in family.samples if sample.name == name]
        return [(dict(sample.labels), float(sample.value)) for sample in found]

    def token_ids(self, **body: Any) -> list[int]:
        """What ``/tokenize`` makes of a prompt or of messages."""
        answer = HTTP.post(f"{self.url}/tokenize", json=body, timeout=30).raise_for_status()
        token_ids: list[int] = answer.json()["tokens"]
        return token_ids

    def kv_usage(self) -> dict[str, float]:
        """Fraction of KV blocks in use, by pool."""
        return {labels["pool"]: value for labels, value in self.samples("spillway_replica_kv_cache_usage")}

    def is_idle(self) -> bool:
        """Nothing is open in the gateway, nothing runs or waits in an engine, and the metrics show what is."""
        if self.metric("spillway_requests_open"):
            return False
        return all(self._shows_an_idle_replica(pool) for pool in POOLS)

    def _shows_an_idle_replica(self, pool: str) -> bool:
        """Replicas report twice a second: a report from before the last request would be mistaken for peace."""
        from ray import serve

        handle = serve.get_deployment_handle(pool, "spillway")
        said: dict[str, Any] = handle.record_routing_stats.remote().result(timeout_s=PATIENCE_S)
        stats = {name: value for name, value in said.items() if isinstance(value, int | float)}
        is_idle = not (
            stats["num_requests_running"]
            or stats["num_requests_waiting"]
            or stats["kv_tokens"]
            or stats["prefill_tokens"]
        )
        return is_idle and all(
            self.metric(f"spillway_replica_{name}", pool=pool) == value for name, value in stats.items()
        )

    def wait_until_idle(self) -> None:
        """Waits for :meth:`is_idle`."""
        wait_until(self.is_idle, "nothing runs any more")


@contextmanager
def application(nodes: RayNodes, name: str, args: dict[str, Any]) -> Iterator[Live]:
    """An application at ``/NAME``, or at the root when it is called ``spillway``, once all its replicas are ready.

    It is taken away without waiting for its end: what comes next starts meanwhile, and ``ray_nodes`` sees to the rest.
    What its gateways have logged until then has to hold (:mod:`cluster.event_log.invariants`).

    Args:
        nodes: Where.
        name: Its own among all that are deployed there.
        args: The application's configuration.
    """
    from ray import serve

    from deployments.app import build
    from deployments.configuration.models import models_in

    ensure_tokenizer()
    args = nodes.logs.added_to(args, name)
    models = models_in(args)
    prefix = "" if name == "spillway" else f"/{name}"
    is_scaled = any(each.policies.spec().is_scaled for each in models)
    target = serve.RunTarget(build(args), name=name, route_prefix=prefix or "/", external_scaler_enabled=is_scaled)
    serve.run_many([target], wait_for_applications_running=False)
    live = Live(url=f"{nodes.url}{prefix}", nodes=nodes)
    replicas = {pool.name: pool.replicas for each in models for pool in each.pools if not pool.may_have_none}

    def are_ready() -> bool:
        found = replicas_of(live.url)
        return replicas.items() <= found.items()

    try:
        wait_until(are_ready, f"all replicas of {name} take requests", START_PATIENCE_S)
        yield live
    finally:
        serve.delete(name, _blocking=False)
    nodes.logs.check(name)


def replicas_of(url: str) -> dict[str, int]:
    """How many ready replicas each pool has, as a gateway sees them; empty while there is none to ask."""
    try:
        answer = HTTP.get(f"{url}/ready", timeout=30)
    except httpx.TimeoutException:  # Serve keeps requests until there is one
        return {}
    is_from_a_gateway = answer.headers.get("content-type") == "application/json"
    replicas: dict[str, int] = answer.json().get("replicas", {}) if is_from_a_gateway else {}
    return replicas


def in_ray(name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    """Samples that Ray's agents on all nodes have of a metric."""
    import ray

    found = []
    for node in ray.nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        families = text_string_to_metric_families(HTTP.get(url, timeout=30).raise_for_status().text)
        found += [sample for family in families for sample in family.samples if sample.name == f"ray_{name}"]
    return [(sample.labels, sample.value) for sample in found if labels.items() <= sample.labels.items()]


def actor_of(application_name: str, name: str) -> Any:
    """An actor that the gateways of an application have."""
    import ray

    [found] = [
        each
        for each in ray.util.list_named_actors(all_namespaces=True)
        if f"::{application_name}::" in each["name"] and each["name"].endswith(f"::{name}")
    ]
    return ray.get_actor(found["name"], namespace=found["namespace"])


def emulated_args(*, pools: Sequence[int] = (), **gateway: Any) -> dict[str, Any]:
    """``emulated.yaml`` for a crowded machine: one unified replica, or so many for prefill and for decode.

    Args:
        pools: Replicas of the prefill and of the decode pool.
        gateway: Laid over that section.
    """
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    if pools:
        for pool, number in zip(args["pools"], pools, strict=True):
            pool |= {"replicas": number, "num_cpus": 0.01}
    else:
        args["pools"] = [{"name": "unified", "role": "unified", "num_cpus": 0.01}]
        args["policies"] = {"planning": "always_unified"}
    args["gateway"] |= {"num_cpus": 0.01, "stall_after_s": CROWDED_S, **gateway}
    return args


def vllm_args() -> dict[str, Any]:
    """``local-vllm.yaml``, each pool tied to its node, with short bounds on what a test waits for."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "local-vllm.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    for pool in args["pools"]:
        pool["resources"] = {pool["role"]: 1}
    own = {"max_body_bytes": MAX_BODY_BYTES, "vllm_front_end": FRONT_END, "stall_after_s": CROWDED_S}
    args["gateway"] |= {"resources": {"gateway": 1}, **own}
    args["engine"]["kv_lease_s"] = 10
    return args


@contextmanager
def ray_nodes(logs: Path) -> Iterator[RayNodes]:
    """A head and two more Ray nodes, and Serve with one Python proxy on the head; all of it is gone afterwards.

    The cluster has a token of its own. Ray has read its environment already, so it is told to read it anew.

    Args:
        logs: Where the gateways of its applications log to.
    """
    import ray
    from ray import serve
    from ray._private.authentication_test_utils import reset_auth_token_state
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="sw", dir="/tmp")
    before = dict(os.environ)
    os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
    os.environ.update({**ENVIRONMENT, MARK: folder, "RAY_TMPDIR": folder, "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    reset_auth_token_state()
    cluster = Cluster()
    try:
        head = cluster.add_node(
            num_cpus=4, resources={"gateway": 2}, include_dashboard=False, dashboard_port=free_port("127.0.0.1")
        )
        prefill = cluster.add_node(  # with GPUs in name only
            num_cpus=1, num_gpus=3, resources={"prefill": 1, "big": 1}, labels={"rack": "a"}
        )
        decode = cluster.add_node(num_cpus=1, num_gpus=1, resources={"decode": 1}, labels={"rack": "b"})
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        port = free_port("127.0.0.1")
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        gateway_logs = GatewayLogs(logs)
        yield RayNodes(
            url=f"http://127.0.0.1:{port}",
            head=head.node_id,
            prefill=prefill.node_id,
            decode=decode.node_id,
            logs=gateway_logs,
        )
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
        reset_auth_token_state()
        left = _end_marked(folder)
        shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"the cluster left processes behind: {left}"
    gateway_logs.check_all()


def _end_marked(folder: str) -> list[str]:
    """Waits a little for the cluster's processes to end, ends what is left and says what that was."""
    _, alive = psutil.wait_procs(marked(folder), timeout=20)
    named = [f"{each.pid} {' '.join(_command(each))}" for each in alive]
    for each in alive:
        each.kill()
    psutil.wait_procs(alive, timeout=10)
    return named


def marked(folder: str) -> list[psutil.Process]:
    """Processes that were started with this folder in the environment as ``MARK``, and live."""
    own = os.getpid()
    return [each for each in psutil.process_iter() if each.pid != own and _has_mark(each, folder)]


def _has_mark(process: psutil.Process, folder: str) -> bool:
    try:
        return process.environ().get(MARK) == folder
    except (psutil.Error, OSError):
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()[:4]
    except psutil.Error:
        return []
