"""Ports that nobody listens at, one or several in a row."""

import socket
from contextlib import ExitStack

from engines.peer_port import free_port


def test_ports_in_a_row_are_all_free() -> None:
    with ExitStack() as listeners:
        first = free_port("127.0.0.1", in_a_row=4)
        for port in range(first, first + 4):
            listeners.enter_context(socket.create_server(("127.0.0.1", port)))
