"""How many connections each client has: one that opens thousands leaves the others theirs."""

import math
import socket
from collections import Counter
from ipaddress import IPv6Address, ip_network

PREFIX_BITS = 64
"""Of an IPv6 address: whoever has one address has all that begin like that."""


def client_of(address: str) -> str:
    """Who comes from an address. One of IPv4 is one, also where a socket for both has it as one of IPv6."""
    if ":" not in address:
        return address
    found = IPv6Address(address)
    return str(found.ipv4_mapped or ip_network((int(found), PREFIX_BITS), strict=False))


def client_at(connection: socket.socket) -> str:
    """Who is at the other end; empty, if it has gone already."""
    try:
        address: str = connection.getpeername()[0]
    except OSError:
        return ""
    return client_of(address)


class ClientConnections:
    """Of one gateway.

    Args:
        most: Of one client.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def begin(self, client: str) -> bool:
        """A client opens one; whether it may, and so has to :meth:`end` it."""
        if self._open[client] >= self._most:
            return False
        self._open[client] += 1
        return True

    def end(self, client: str) -> None:
        """It has closed one."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
