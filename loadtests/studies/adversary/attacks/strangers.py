"""Somebody without a key, or without the cluster's token: what is answered?"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping

import grpc
import psutil

from loadtests.machine.told_steps import Tell
from loadtests.studies.adversary.attack import Attack
from loadtests.studies.adversary.bodies import honest
from loadtests.studies.adversary.finding import Finding
from loadtests.studies.adversary.raw_http import ask, request
from loadtests.studies.adversary.sender import Sender
from loadtests.studies.adversary.target import ATTACKER, VICTIM, Target

NAME = "strangers"
METHODS = (
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Push",
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.serve.ASGIService/HandleRequest",
)
"""One of each service of Ray's; a port has one or none of them."""
EVERY_ADDRESS = "::"
"""Where Ray's gRPC listens; nothing else does."""
PATIENCE_S = 10.0


def says_without_a_token(port: int) -> set[str]:
    """What Ray's services say there to somebody without a token: status codes of gRPC, or ``answered``."""
    said = set()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in METHODS:
            try:
                channel.unary_unary(method, request_serializer=None, response_deserializer=None)(
                    b"", timeout=PATIENCE_S
                )
                said.add("answered")
            except grpc.RpcError as error:
                said.add(error.code().name)
    return said - {"UNIMPLEMENTED"}


def run(target: Target, sender: Sender, tell: Tell) -> list[Finding]:
    """Calls every port of Ray's without a token, and every path of the API as somebody else."""
    tell(NAME)
    ports = sorted(set(rays_ports(target.running.pid)))
    answered = [port for port in ports if says_without_a_token(port) - {"UNAUTHENTICATED"}]
    wrong = asyncio.run(_let_in(target))
    return [
        _finding("ports of Ray's that were called", len(ports), at_least=5),
        _finding("of them answered without a token", len(answered), "ran a pickle, and jobs"),
        _finding("requests without a right to what they asked for that were let in", wrong[True]),
        Finding(attack=NAME, measured="such requests", now=wrong.total()),
    ]


def rays_ports(root_pid: int) -> Iterator[int]:
    """Where a process and all that it has started listen at every address, as nothing but Ray does."""
    root = psutil.Process(root_pid)
    for process in (root, *root.children(recursive=True)):
        try:
            sockets = process.net_connections("tcp")
        except psutil.Error:
            continue  # it has ended
        yield from (
            each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN and each.laddr.ip == EVERY_ADDRESS
        )


async def _let_in(target: Target) -> Counter[bool]:
    """How many were let in, and how many were not."""
    let_in = Counter[bool]()
    for data in _without_a_right(target):
        status = await ask(target.port, data)
        let_in[status not in (401, 403, 404)] += 1
    return let_in


def _without_a_right(target: Target) -> Iterator[bytes]:
    body, key = honest(target.model), target.keys[VICTIM]
    identities: list[Mapping[str, str]] = [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer nobody"},
        {"authorization": f"Basic {key}"},
        {"authorization": f"Bearer {key[:-1]}"},
        {"authorization": f"bearer{key}"},
        {"x-tenant-id": VICTIM},
        {"x-api-key": f"{key}x"},
        {"authorization": "Bearer nobody", "x-api-key": key},
        {"cookie": f"authorization=Bearer {key}"},
    ]
    for identity in identities:
        yield request("/v1/completions", body, identity)
        yield request("/v1/models", b"", identity, method="GET")
    own = target.headers(ATTACKER)
    yield request("/v1/completions", body, {**own, "x-priority": "critical"})
    yield request("/v1/load_lora_adapter", b'{"lora_name": "a", "lora_path": "/etc"}', own)
    yield request("/v1/completions", honest("another-model"), own)


def _finding(measured: str, now: float, before: str = "", *, at_least: float | None = None) -> Finding:
    if at_least is not None:
        return Finding(attack=NAME, measured=measured, now=now, at_least=at_least)
    return Finding(attack=NAME, measured=measured, before=before, now=now, at_most=0)


ATTACK = Attack(NAME, 1, run)
