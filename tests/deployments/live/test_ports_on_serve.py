"""Who listens on a cluster with a deployment of real vLLM, against the table of ``docs/reference/ports.md``."""

import os
from collections.abc import Iterator

import httpx
import pytest

from deployments.reference.ports import NOBODY, Reach
from loadtests.studies.adversary.attacks.strangers import says_without_a_token
from tests.deployments.listening_sockets import ListeningSocket, sockets_of
from tests.deployments.live_cluster import MARK, Live, marked

pytestmark = [pytest.mark.ray, pytest.mark.vllm]


def sockets() -> Iterator[ListeningSocket]:
    """Of this cluster; tests beside these have others."""
    return sockets_of(marked(os.environ[MARK]))


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
