"""A policy of somebody's own that fails costs no client an answer, and the metrics and the log say so."""

import logging
from typing import Any

import httpx
import pytest

from tests.deployments.gateway_in_process import gateway_in_process

BODY = {"model": "large", "prompt": "Hello", "max_tokens": 4}


def models(question: str, name: str) -> list[dict[str, Any]]:
    policy = {"name": f"tests.routing.breakers.misbehaving:{name}", "params": {"seed": 1, "sanity": 0.0}}
    policies = {"planning": "always_unified", question: policy}
    pools = [{"name": "large", "role": "unified"}]
    return [{"id": "large", "path": ".models/tiny-llama", "pools": pools, "policies": policies}]


def failures(http: httpx.Client, question: str) -> float:
    wanted = "spillway_policy_failures_total{"
    lines = [each for each in http.get("/metrics").text.splitlines() if each.startswith(wanted)]
    return sum(float(each.rpartition(" ")[2]) for each in lines if f'question="{question}"' in each)


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("balancing", "WildBalancing"),
        ("queueing", "WildQueueing"),
        ("admission", "WildAdmission"),
        ("shedding", "WildShedding"),
    ],
)
def test_each_request_is_answered_and_each_failure_counted(
    question: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ray.serve"), gateway_in_process(models=models(question, name)) as http:
        answers = [http.post("/v1/completions", json=BODY) for _ in range(6)]
        assert [each.status_code for each in answers] == [200] * 6
        assert failures(http, question) >= 3
    said = [each.getMessage() for each in caplog.records]
    assert f"policies.{question}: the built-in one stands in for it for a while" in said


def test_a_policy_that_never_returns_costs_two_seconds_and_no_answer() -> None:
    with gateway_in_process(models=models("balancing", "StuckBalancing")) as http:
        answers = [http.post("/v1/completions", json=BODY) for _ in range(3)]
        assert [each.status_code for each in answers] == [200] * 3
        assert failures(http, "balancing") == 1
        assert 'kind="stuck"' in http.get("/metrics").text
