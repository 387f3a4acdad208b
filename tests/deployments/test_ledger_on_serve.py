"""Two gateways and the ledger's actor on Ray Serve, in front of an emulated engine."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from deployments.config import ROOT
from deployments.ledger_actor import LEDGER
from policies import ConfigError
from tests.deployments.live_cluster import Live, RayNodes
from tests.engines.emulated_engines import ensure_tokenizer
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "ledger"
BODY = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 4}


def application_args(*, has_ledger: bool = True) -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    args["pools"] = [{"name": "unified", "role": "unified", "num_cpus": 0.01}]
    args["gateway"] |= {"num_cpus": 0.01, "replicas": 2, "ledger": has_ledger}
    args["policies"] = {"planning": "always_unified", "shedding": "shared_fraction"}
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    from ray import serve

    from deployments.app import build, read_config

    ensure_tokenizer()
    serve.run(build(read_config(application_args())), name=APPLICATION, route_prefix="/ledger")
    where = f"{nodes.url}/ledger"
    wait_until(lambda: httpx.get(f"{where}/ready").status_code == 200, "the replica is warm")
    yield Live(url=where, nodes=nodes)
    serve.delete(APPLICATION)


def ledger_actor() -> Any:
    import ray

    [found] = [
        each
        for each in ray.util.list_named_actors(all_namespaces=True)
        if APPLICATION in each["name"] and each["name"].endswith(f"::{LEDGER}")
    ]
    return ray.get_actor(found["name"], namespace=found["namespace"])


def answered(running: Live) -> float:
    """By whichever gateway is asked."""
    return running.metric("spillway_ledger_exchanges_total", result="answered")


def is_served(running: Live) -> bool:
    """And the response says by which gateway."""
    answer = httpx.post(f"{running.url}/v1/completions", json=BODY, timeout=60)
    return answer.status_code == 200 and bool(answer.headers["x-spillway-gateway"])


def test_without_a_ledger_the_policy_is_refused_at_the_start() -> None:
    from deployments.app import build, read_config

    with pytest.raises(ConfigError, match="missing: \\['ledger'\\]"):
        build(read_config(application_args(has_ledger=False)))


def test_gateways_go_by_the_ledger_and_by_themselves_while_it_is_gone(running: Live) -> None:
    import ray

    wait_until(lambda: answered(running) > 4, "the ledger answers")
    assert is_served(running)
    assert running.metric("spillway_shed_fraction") == 0.0

    ray.kill(ledger_actor())
    wait_until(lambda: running.metric("spillway_ledger_exchanges_total", result="lost") > 0, "its loss is noticed")
    assert is_served(running)

    before = answered(running)
    wait_until(lambda: answered(running) > before + 20, "another one has been started")
    assert is_served(running)
