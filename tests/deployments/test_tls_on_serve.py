"""Two nodes that encrypt all that they say to each other, and what somebody without a certificate gets out of them."""

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from engines.peer_port import free_port
from loadtests.live.configuration import read_config
from loadtests.live.deployed import Deployed, deployed
from loadtests.studies.adversary.attacks.strangers import rays_ports, says_without_a_token
from tests.deployments.data_plane.certificates import make_certificates
from tests.deployments.live_cluster import emulated_args
from tests.engines.emulated_engines import ensure_tokenizer
from tests.plain_http import HTTP

pytestmark = [pytest.mark.ray, pytest.mark.proof]

HOST = "127.0.0.1"
PATIENCE_S = 30.0
GATEWAY, POOLS = "gateway", ("prefill", "decode")


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A prefill replica on the first node, a decode replica on the other one."""
    ensure_tokenizer()
    folder = tmp_path_factory.mktemp("encrypted")
    document = read_config("emulated.yaml")
    args = emulated_args(pools=(1, 1))
    args["pools"][1] |= {"num_cpus": 0, "resources": {"node1": 0.01}}
    document["applications"][0]["args"] = args
    document["proxy_location"] = "Disabled"
    with pytest.MonkeyPatch.context() as environment:
        for name, value in make_certificates(folder).items():
            environment.setenv(name, value)
        with deployed("encrypted", document, folder, free_port(HOST), None, num_nodes=2) as running:
            yield running


def data_plane(running: Deployed) -> set[tuple[str, int]]:
    """Where the gateway is connected to replicas, past Ray."""
    connected = [each for each in _connections(running, GATEWAY) if each.status == psutil.CONN_ESTABLISHED]
    listening = [each for pool in POOLS for each in _connections(running, pool) if each.status == psutil.CONN_LISTEN]
    own = {tuple(each.laddr) for each in listening} & {tuple(each.raddr) for each in connected}
    return {(host, port) for host, port in own if port not in set(rays_ports(running.pid))}


def _connections(running: Deployed, deployment: str) -> list[Any]:
    """Those of all its replicas' processes, which their titles name."""
    found = []
    for each in psutil.Process(running.pid).children(recursive=True):
        if " ".join(each.cmdline()).strip().endswith(f"ServeReplica:spillway:{deployment}"):
            found += each.net_connections("tcp")
    return found


def test_a_request_goes_over_both_nodes(encrypted: Deployed) -> None:
    body = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 20, "ignore_eos": True}
    answer = HTTP.post(f"{encrypted.url}/v1/completions", json=body, timeout=PATIENCE_S)

    assert answer.json()["usage"]["completion_tokens"] == 20


def test_none_of_rays_ports_says_anything_in_the_clear(encrypted: Deployed) -> None:
    ports = set(rays_ports(encrypted.pid))

    assert len(ports) > 5
    assert set().union(*(says_without_a_token(port) for port in ports)) == {"UNAVAILABLE"}


def test_a_replica_says_nothing_to_somebody_without_a_certificate(encrypted: Deployed) -> None:
    places = data_plane(encrypted)

    assert len(places) == 2
    for place in places:
        with socket.create_connection(place, timeout=PATIENCE_S) as plain:
            plain.sendall(b"hello" * 100)
            assert _rest_of(plain) == b""
        with socket.create_connection(place, timeout=PATIENCE_S) as raw:
            assert _said_over_tls(raw) == b""


def _said_over_tls(connection: socket.socket) -> bytes:
    """To somebody without a certificate, who hears that one is wanted after the handshake, or that it is all over."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(connection) as strange:
        assert strange.version() == "TLSv1.3"
        try:
            strange.sendall(b"hello")
            return strange.recv(4096)
        except (ssl.SSLError, ConnectionError):
            return b""


def _rest_of(connection: socket.socket) -> bytes:
    """What is said until it is closed; an alert of TLS says nothing."""
    said = b""
    try:
        while part := connection.recv(4096):
            said += part
    except ConnectionError:
        pass
    return b"" if said.startswith(b"\x15\x03") else said
