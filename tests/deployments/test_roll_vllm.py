"""A real engine has other arguments in the same replica, and answers as before."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deployments.config import ROOT
from deployments.launch import running
from deployments.local.places import config_of
from engines.peer_port import free_port
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.proof, pytest.mark.timeout(900)]


def answer(url: str) -> str:
    body = {"model": "tiny-llama", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    answered = HTTP.post(f"{url}/v1/completions", json=body, timeout=120)
    answered.raise_for_status()
    text: str = answered.json()["choices"][0]["text"]
    return text


def replicas(url: str) -> set[str]:
    families = text_string_to_metric_families(HTTP.get(f"{url}/metrics", timeout=30).text)
    return {s.labels["replica"] for its in families for s in its.samples if s.name == "spillway_replica_is_warm"}


def prompt_tokens(url: str) -> float:
    families = text_string_to_metric_families(HTTP.get(f"{url}/metrics", timeout=30).text)
    return sum(s.value for its in families for s in its.samples if s.name == "spillway_replica_prompt_tokens_total")


def test_a_vllm_engine_takes_the_place_of_another_one_in_its_replica(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    with running(ROOT / "deployments" / "configs" / "unified-vllm.yaml", port) as deployment:
        before, had = [answer(deployment.url) for _ in range(5)][-1], replicas(deployment.url)
        wait_until(lambda: prompt_tokens(deployment.url) > 5, "the engine has counted some prompts")
        counted = prompt_tokens(deployment.url)
        document: dict[str, Any] = yaml.safe_load(config_of(port).read_text())
        versions = {"engine_args": {"max_num_batched_tokens": 1024, "enable_prefix_caching": False}}
        document["applications"][0]["deployments"] = [{"name": "unified", "user_config": versions}]
        changed = tmp_path / "changed.yaml"
        changed.write_text(yaml.safe_dump(document))
        command = [sys.executable, "-m", "deployments.roll", str(changed), "--port", str(port), "--watch", "5"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "replacing: pool unified: all 1 replicas" in ran.stdout
        assert replicas(deployment.url) == had
        assert prompt_tokens(deployment.url) < counted, "the engine has begun anew"
        assert answer(deployment.url) == before
