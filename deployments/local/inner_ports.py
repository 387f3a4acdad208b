"""Which inner ports a deployment on this machine has, so that several can run side by side."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from filelock import FileLock, Timeout

from deployments.local.places import place_of
from policies.errors import ConfigError

NUM_SHARES = 100
INGRESS_PORTS, PROXY_PORTS = 50, 20
"""Of each share: those for gateways, HTTP and gRPC each, and those of the proxies."""
INGRESS_HTTP_PORT, INGRESS_GRPC_PORT, PROXY_PORT = 20_000, 25_000, 30_000
"""The first of each kind: above those of Ray's workers (to 19,999), below those of connections (from 32,768)."""


@dataclass(frozen=True, slots=True)
class InnerPorts:
    """The inner ports of one deployment.

    Args:
        share: Number of its share, from 0 to 99.
    """

    share: int

    @property
    def ingress_http(self) -> range:
        """Where gateways answer HTTP."""
        return _ports(INGRESS_HTTP_PORT, INGRESS_PORTS, self.share)

    @property
    def ingress_grpc(self) -> range:
        """Where they answer gRPC."""
        return _ports(INGRESS_GRPC_PORT, INGRESS_PORTS, self.share)

    @property
    def proxy(self) -> range:
        """HAProxy's metrics and statistics, and Serve's own proxy for HTTP and gRPC, in this order."""
        return _ports(PROXY_PORT, PROXY_PORTS, self.share)[:4]


@contextmanager
def own_inner_ports(port: int) -> Iterator[InnerPorts]:
    """Inner ports that no other launcher has while the block lasts.

    The share ``port % 100``, or the next one that is free. A lock file says which shares this user's launchers have,
    since a deployment that starts binds its ports seconds later. A deployment whose launcher was killed, or another
    user's, is seen by its ports.

    Args:
        port: HTTP port of the deployment.

    Raises:
        ConfigError: Every share is taken.
    """
    locks = place_of(port).parent / "shares"
    locks.mkdir(parents=True, exist_ok=True)
    for step in range(NUM_SHARES):
        ports = InnerPorts((port + step) % NUM_SHARES)
        lock = FileLock(locks / f"{ports.share:02}.lock", blocking=False, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            continue
        try:
            if all(map(is_free, ports.proxy)):
                yield ports
                return
        finally:
            lock.release()
    raise ConfigError("port", port, f"one with free inner ports, from {PROXY_PORT} on: stop a deployment first")


def is_free(port: int) -> bool:
    """Whether a port can be listened at, at every address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is left of closed connections is in no way
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _ports(first: int, number: int, share: int) -> range:
    return range(first + number * share, first + number * (share + 1))
