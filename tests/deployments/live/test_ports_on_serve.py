"""Who listens on a cluster with a deployment of real vLLM, against the table of ``docs/reference/ports.md``."""

from collections.abc import Iterator

import httpx
import psutil
import pytest

from deployments.reference.ports import NOBODY, PORTS, Port, Reach
from loadtests.studies.adversary.attacks.strangers import says_without_a_token
from tests.deployments.live_cluster import MARK, Live

pytestmark = [pytest.mark.ray, pytest.mark.vllm]


class Socket:
    """One that a process of the cluster listens at."""

    def __init__(self, process: str, address: str, port: int) -> None:
        self.process, self.address, self.port = process, address, port

    @property
    def rows(self) -> list[Port]:
        return [each for each in PORTS if each.is_of(self.process, self.address)]

    def __repr__(self) -> str:
        return f"{self.process[:80]} at {self.address}:{self.port}"


def sockets() -> Iterator[Socket]:
    for each in psutil.net_connections("tcp"):
        if each.status != psutil.CONN_LISTEN or not each.pid or not each.laddr:
            continue
        try:
            process = psutil.Process(each.pid)
            if MARK in process.environ():
                yield Socket(f"{process.name()} {' '.join(process.cmdline())}", each.laddr.ip, each.laddr.port)
        except psutil.Error:
            continue  # it has ended


def test_every_socket_of_a_deployment_is_in_the_table(live: Live) -> None:
    found = list(sockets())
    assert len(found) > 20
    assert [each for each in found if not each.rows] == []


def test_no_service_of_rays_answers_a_call_without_a_token(live: Live) -> None:
    asked = {each.port: says_without_a_token(each.port) for each in sockets() if each.address == "::"}
    still_there = {each.port for each in sockets()}  # a worker may have ended meanwhile
    assert set().union(*(said for port, said in asked.items() if port in still_there)) == {"UNAUTHENTICATED"}


def test_http_without_a_token_is_for_metrics_alone(live: Live) -> None:
    """Where the table says that nobody is asked, numbers are all that there is."""
    for each in sockets():
        rows = each.rows
        is_http = any("agent" in row.holder or "dashboard" in row.holder for row in rows)
        if not is_http or each.address == "::":
            continue
        host = "127.0.0.1" if each.address == "0.0.0.0" else each.address
        try:
            answer = httpx.get(f"http://{host}:{each.port}/api/jobs/", timeout=30)
        except httpx.RemoteProtocolError:
            continue  # it speaks gRPC
        if any(row.asked == NOBODY and row.reach is Reach.EVERY for row in rows):
            assert answer.status_code == 200
            assert answer.text.startswith("# HELP"), each
        else:
            assert answer.status_code == 401, each
