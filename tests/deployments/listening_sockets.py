"""Sockets that processes of a deployment listen at, each with its row of ``docs/reference/ports.md``."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil

from deployments.reference.ports import PORTS, Port


class ListeningSocket:
    """One that a process listens at; a socket that several hold is one of each."""

    def __init__(self, process: str, address: str, port: int) -> None:
        self.process, self.address, self.port = process, address, port

    @property
    def rows(self) -> list[Port]:
        return [each for each in PORTS if each.is_of(self.process, self.address)]

    def __repr__(self) -> str:
        return f"{self.process[:80]} at {self.address}:{self.port}"


def sockets_of(processes: Iterable[psutil.Process]) -> Iterator[ListeningSocket]:
    """Of those that have not ended meanwhile."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            command = f"{process.name()} {' '.join(process.cmdline())}"
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    yield ListeningSocket(command, each.laddr.ip, each.laddr.port)
