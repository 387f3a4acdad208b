"""A gateway's service writes into its log what its dispatcher really draws by, alone or as one of several."""

import asyncio
import os
from pathlib import Path
from typing import cast

import msgspec
import pytest
from ray.serve.handle import DeploymentHandle

from cluster.event_log import CLOSED, LogReader
from cluster.replay import replay
from deployments.app import read_config
from deployments.fleet_registry import FleetRegistry, SeenReplica
from deployments.openai_service import OpenAIService
from policies import RequestView
from tests.deployments.host_dialogue import Handle, an_engine_request

NUM_REQUESTS = 30


class PoolHandle(Handle):
    """A pool's handle, as Serve hands it to a gateway."""

    def _init(self) -> None: ...


def picks_in(path: Path) -> list[str]:
    with path.open("rb") as file:
        return [
            effect["decision"]["replica_id"]
            for record in LogReader(file)
            for effect in msgspec.msgpack.decode(record.answer)
            if effect["type"] == "Record"
        ]


async def serve(folder: Path, num_gateways: int, replica_id: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One gateway takes some requests in and is taken away; the path of its log."""
    monkeypatch.setattr("deployments.openai_service.PromptTokenizer", lambda path: None)
    monkeypatch.setattr("deployments.openai_service.REGISTRY", FleetRegistry())
    config = read_config(
        {
            "model": {"id": "tiny", "path": ".models/tiny-llama"},
            "pools": [{"name": "unified", "role": "unified"}],
            "gateway": {"replicas": num_gateways, "seed": 5, "event_log": str(folder)},
            "policies": {"planning": "always_unified", "balancing": "random"},
        }
    )
    handle = PoolHandle({})
    service = OpenAIService(config, {"unified": cast(DeploymentHandle, handle)}, replica_id)
    host = service._host
    host.on_replicas(
        "unified",
        tuple(SeenReplica(replica_id=each, node_id="node", max_ongoing_requests=99) for each in "abcdefgh"),
    )
    await asyncio.sleep(0)
    for number in range(NUM_REQUESTS):
        view = RequestView(
            request_id=f"q{number}", prompt_tokens=3, max_output_tokens=50, arrival_s=0.0, deadline_s=1e9
        )
        host.submit(view, an_engine_request(view.request_id))
    for number in range(NUM_REQUESTS):
        host.abandon(f"q{number}")
    await asyncio.wait(host.tasks)
    service.close()
    return folder / f"{replica_id}-{os.getpid()}.log"


@pytest.mark.parametrize("num_gateways", [1, 2])
async def test_a_gateways_log_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_gateways: int) -> None:
    path = await serve(tmp_path, num_gateways, "gw", monkeypatch)

    with path.open("rb") as file:
        result = replay(file)

    assert result.is_same, result.difference
    assert result.end_reason == CLOSED
    assert len(picks_in(path)) == NUM_REQUESTS


async def test_gateways_of_one_deployment_draw_differently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = [picks_in(await serve(tmp_path, 2, name, monkeypatch)) for name in ("one", "other")]

    assert one != other
