"""Quotas of tenants through Ray Serve, in front of an emulated engine."""

from pathlib import Path
from typing import Any

import openai
import pytest

from policies import Reason
from tests.deployments.live_cluster import Live
from tests.deployments.reloadable import KEYS, Reloadable, write_tenants

pytestmark = pytest.mark.ray

QUOTA = {"work_per_s": 0.0001, "burst_s": 0.0001}


@pytest.fixture
def limited(reloadable: Reloadable, tmp_path: Path) -> Live:
    """With a quota for ``reports`` and none for ``shop``."""
    tenants = write_tenants(tmp_path / "quotas.yaml", reports={"quota": QUOTA})
    policies = {"admission": "token_bucket", "queueing": "vtc"}
    reloadable.reload({"policies": policies, "gateway": {"tenants": str(tenants)}})
    return reloadable.live


def ask(live: Live, tenant: str) -> Any:
    """A completion by OpenAI's own client."""
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key=KEYS[tenant][0], max_retries=0, timeout=60) as client:
        return client.completions.create(model="tiny-llama", prompt="Hello", max_tokens=4)


def test_a_tenant_over_its_quota_is_refused_while_another_is_served(limited: Live) -> None:
    assert ask(limited, "reports").usage.completion_tokens == 4, "a bucket that is full lets one in that costs more"

    with pytest.raises(openai.RateLimitError) as caught:
        ask(limited, "reports")
    served = [ask(limited, "shop") for _ in range(3)]

    headers = caught.value.response.headers
    assert caught.value.code == "quota_exceeded"
    assert Reason(headers["x-spillway-reason"]) is Reason.QUOTA_EXCEEDED
    assert 10 <= int(headers["retry-after"]) <= 3600, "milliseconds of work, at a ten-thousandth of a second a second"
    assert [each.usage.completion_tokens for each in served] == [4, 4, 4]
    assert limited.metric("spillway_requests_total", outcome="refused", reason="quota_exceeded") == 1
