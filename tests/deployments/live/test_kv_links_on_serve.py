"""Links between replicas on Ray Serve: labels of Ray's nodes reach the balancer, and decodes go where KV is near."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deployments.live_cluster import Live, RayNodes, application, emulated_args
from tests.plain_http import HTTP
from tests.waiting import wait_until

NUM_REQUESTS = 6
PROMPT_TOKENS = 2_000
"""A quarter of a gigabyte of KV: 6 ms within the rack, and 2.6 s to the other one."""

pytestmark = pytest.mark.ray


def application_args() -> dict[str, Any]:
    """A prefill replica in one rack, and a decode replica in each."""
    args = emulated_args(pools=(1, 1))
    prefill, near = args["pools"]
    prefill["label_selector"] = near["label_selector"] = {"rack": "a"}
    far = {**near, "name": "far", "label_selector": {"rack": "b"}}
    args["pools"] = [prefill, near, far]
    args["policies"]["balancing"] = "least_delay"
    args["engine"]["kv_links"] = [
        {"same": "rack", "bandwidth_bytes_per_s": 4e10},
        {"bandwidth_bytes_per_s": 1e8},
    ]
    return args


@pytest.fixture(scope="module")
def live(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, "kv-links", application_args()) as found:
        yield found


def attempts(url: str, pool: str) -> int:
    """That the pool's replica says it has taken."""
    lines = HTTP.get(f"{url}/metrics", timeout=30).text.splitlines()
    said = (line for line in lines if line.startswith("spillway_replica_attempts_total{") and f'pool="{pool}"' in line)
    return sum(int(float(line.rpartition(" ")[2])) for line in said)


def test_decodes_go_where_their_kv_is_near(live: Live) -> None:
    took_s = []
    for number in range(NUM_REQUESTS):
        body = {"model": "tiny-llama", "prompt": [number + 1] * PROMPT_TOKENS, "max_tokens": 8, "ignore_eos": True}
        before_s = time.monotonic()
        HTTP.post(f"{live.url}/v1/completions", json=body, timeout=60).raise_for_status()
        took_s.append(time.monotonic() - before_s)

    wait_until(lambda: attempts(live.url, "decode") == NUM_REQUESTS, "the near one has had them all")
    assert attempts(live.url, "far") == 0
    assert sorted(took_s)[NUM_REQUESTS // 2] < 1.0, "none of them waited for the slow link"
