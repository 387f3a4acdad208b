"""Where a node's gateways take requests, and where they meet their listener."""

import hashlib
from typing import NamedTuple


class Address(NamedTuple):
    """Where requests are taken.

    Args:
        host: Of this node.
        port: The same on every node.
        scope: The application, and its cluster: others get nothing of its socket.
    """

    host: str
    port: int
    scope: str = ""

    def meeting_point(self) -> str:
        """The name of the Unix socket where a listener waits for gateways."""
        digest = hashlib.sha256(f"{self.host} {self.port} {self.scope}".encode()).hexdigest()
        return f"\0spillway-listener-{digest[:32]}"
