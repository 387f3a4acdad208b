"""The documentation's examples on Ray Serve, in front of emulated engines."""

from collections.abc import Iterator

import pytest
import yaml

from deployments.config import ROOT
from tests.deployments.live_cluster import Live, RayNodes, application
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "examples"


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    document = yaml.safe_load((ROOT / "tests" / "examples" / "deployment.yaml").read_text())
    with application(nodes, APPLICATION, document["applications"][0]["args"]) as live:
        yield live


def test_on_serve_long_answers_go_to_their_own_pool(running: Live) -> None:
    for max_tokens in (8, 8, 8, 500, 500):
        body = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": True}
        answer = HTTP.post(f"{running.url}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == max_tokens

    wait_until(lambda: attempts(running) == {"quick": 3, "slow": 2}, "both pools have said what they took")


def attempts(running: Live) -> dict[str, float]:
    found = running.samples("spillway_replica_attempts_total")
    return {labels["pool"]: value for labels, value in found}
