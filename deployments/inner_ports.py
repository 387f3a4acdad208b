"""Which inner ports a deployment on this machine has, so that several can run side by side."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from deployments.places import place_of
from policies.errors import ConfigError

INNER_SHARES = 100
INGRESS_PORTS, PROXY_PORTS = 50, 20
"""Of each share: one for every gateway and protocol, and those of the proxies."""
INGRESS_HTTP_PORT, INGRESS_GRPC_PORT, PROXY_PORT = 20_000, 25_000, 30_000
"""The first of each kind. Ray's workers have 10,002 to 19,999; the system gives 32,768 and up to whoever connects."""


@contextmanager
def own_share(port: int) -> Iterator[int]:
    """Number of a share of the inner ports that no other launcher has while the block lasts.

    The share ``port % 100``, or the next one that is free. A lock file says which shares this user's launchers have,
    for a deployment that starts binds its ports seconds later; the ports say which a deployment without a launcher has.

    Args:
        port: HTTP port of the deployment.

    Raises:
        ConfigError: Every share is taken.
    """
    locks = place_of(port).parent / "shares"
    locks.mkdir(parents=True, exist_ok=True)
    for step in range(INNER_SHARES):
        share = (port + step) % INNER_SHARES
        lock = FileLock(locks / f"{share:02}.lock", blocking=False, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            continue
        try:
            if all(is_free(PROXY_PORT + PROXY_PORTS * share + number) for number in range(4)):
                yield share
                return
        finally:
            lock.release()
    raise ConfigError("port", port, f"one with free inner ports, from {PROXY_PORT} on: stop a deployment first")


def is_free(port: int) -> bool:
    """Whether nobody listens at a port, at any of this machine's addresses."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is left of closed connections is in no way
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
