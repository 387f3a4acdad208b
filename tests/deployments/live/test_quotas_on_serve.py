"""Quotas of tenants through Ray Serve, in front of an emulated engine."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import yaml

from deployments.config import ROOT
from deployments.tenants import new_key
from policies import Reason
from tests.deployments.live_cluster import Live, RayNodes
from tests.engines.emulated_engines import ensure_tokenizer
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "quotas"
MODEL = "tiny-llama"
QUOTAS = {"shop": None, "reports": {"work_per_s": 0.0001, "burst_s": 0.0001}}
KEYS = {name: new_key() for name in QUOTAS}


def application_args(tenants: str) -> dict[str, Any]:
    """One emulated replica, whose gateway asks what tenants may use."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    args: dict[str, Any] = document["applications"][0]["args"]
    args["pools"] = [{"name": "unified", "role": "unified", "num_cpus": 0.01}]
    args["gateway"] |= {"num_cpus": 0.01, "tenants": tenants}
    args["policies"] = {"planning": "always_unified", "admission": "token_bucket", "queueing": "vtc"}
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    from ray import serve

    from deployments.app import build, read_config

    ensure_tokenizer()
    file = tmp_path_factory.mktemp("quotas") / "tenants.yaml"
    entries = [{"name": name, "keys": [KEYS[name][1]], "quota": quota} for name, quota in QUOTAS.items()]
    file.write_text(yaml.safe_dump({"tenants": entries}))
    serve.run(build(read_config(application_args(str(file)))), name=APPLICATION, route_prefix="/quotas")
    where = f"{nodes.url}/quotas"
    wait_until(lambda: httpx.get(f"{where}/ready").status_code == 200, "the replica is warm")
    yield Live(url=where, nodes=nodes)
    serve.delete(APPLICATION)


def ask(running: Live, tenant: str) -> Any:
    """A completion by OpenAI's own client."""
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEYS[tenant][0], max_retries=0, timeout=60) as client:
        return client.completions.create(model=MODEL, prompt="Hello", max_tokens=4)


def test_a_tenant_over_its_quota_is_refused_while_another_is_served(running: Live) -> None:
    assert ask(running, "reports").usage.completion_tokens == 4, "a bucket that is full lets one in that costs more"

    with pytest.raises(openai.RateLimitError) as caught:
        ask(running, "reports")
    served = [ask(running, "shop") for _ in range(3)]

    headers = caught.value.response.headers
    assert caught.value.code == "quota_exceeded"
    assert Reason(headers["x-spillway-reason"]) is Reason.QUOTA_EXCEEDED
    assert 10 <= int(headers["retry-after"]) <= 3600, "milliseconds of work, at a ten-thousandth of a second a second"
    assert [each.usage.completion_tokens for each in served] == [4, 4, 4]
    assert running.metric("spillway_requests_total", outcome="refused", reason="quota_exceeded") == 1
