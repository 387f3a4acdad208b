"""Ports that nobody listens at, one or several in a row."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from engines import peer_port
from engines.peer_port import free_port
from tests.tables import for_each


def test_ports_in_a_row_are_all_free() -> None:
    with ExitStack() as listeners:
        first = free_port("127.0.0.1", in_a_row=4)
        for port in range(first, first + 4):
            listeners.enter_context(socket.create_server(("127.0.0.1", port)))


def test_no_connection_gets_such_a_port_before_it_is_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tmp_path / "limits"
    limits.write_text("32768\t60999\n")
    monkeypatch.setattr(peer_port, "CONNECTION_PORTS", limits)
    assert all(60_999 < free_port("127.0.0.1", in_a_row=2) < 65_535 for _ in range(20))


@for_each("said", ["1024\t65535\n", "nothing", ""])
def test_where_connections_may_have_all_ports_any_free_one_will_do(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = tmp_path / "limits"
    limits.write_text(said)
    monkeypatch.setattr(peer_port, "CONNECTION_PORTS", limits)
    assert free_port("127.0.0.1", in_a_row=2) > 0
