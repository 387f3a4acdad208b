"""A gateway's service writes into its log what its dispatcher really draws by, alone or as one of several."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from ray.serve.handle import DeploymentHandle

from cluster.event_log.frames import CLOSED, LogReader
from cluster.event_log.replay import replay
from deployments.config import validated
from deployments.gateway.service import OpenAIService
from deployments.tenants.keys import new_key
from deployments.wire.fleet_registry import FleetRegistry, SeenReplica
from policies import ConfigError, RequestView
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
            if isinstance(effect, dict)  # and not a letter of an exception's name
            and effect["type"] == "Record"
        ]


def a_service(folder: Path, num_gateways: int, replica_id: str, monkeypatch: pytest.MonkeyPatch) -> OpenAIService:
    """One gateway's, before its first request."""
    monkeypatch.setattr(
        "deployments.gateway.model_service.PromptTokenizer", lambda path: SimpleNamespace(close=lambda: None)
    )
    monkeypatch.setattr("deployments.gateway.service.REGISTRY", FleetRegistry())
    config = validated(
        {
            "model": {"id": "tiny", "path": ".models/tiny-llama"},
            "pools": [{"name": "unified", "role": "unified"}],
            "gateway": {"replicas": num_gateways, "seed": 5, "event_log": str(folder)},
            "policies": {"planning": "always_unified", "balancing": "random"},
        }
    )
    return OpenAIService((config,), {"unified": cast(DeploymentHandle, PoolHandle({}))}, replica_id)


async def serve(
    folder: Path,
    num_gateways: int,
    replica_id: str,
    monkeypatch: pytest.MonkeyPatch,
    user_configs: Sequence[dict[str, Any]] = ({},),
) -> Path:
    """One gateway takes some requests in, after each change of its configuration, and is taken away; its log's path."""
    service = a_service(folder, num_gateways, replica_id, monkeypatch)
    host = service._models[0].host
    host.on_replicas(
        "unified",
        tuple(SeenReplica(replica_id=each, node_id="node", max_ongoing_requests=99) for each in "abcdefgh"),
    )
    await asyncio.sleep(0)
    for batch, user_config in enumerate(user_configs):
        service.reconfigure(user_config)
        for number in range(NUM_REQUESTS):
            view = RequestView(
                request_id=f"q{batch}-{number}", prompt_tokens=3, max_output_tokens=50, arrival_s=0.0, deadline_s=1e9
            )
            host.submit(view, an_engine_request(view.request_id))
    for request_id in list(host._requests):
        host.abandon(request_id)
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


async def test_a_log_with_changes_of_the_configuration_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [{}, {"policies": {"balancing": "round_robin"}}, {"policies": {"balancing": "by_magic"}}, {}]

    path = await serve(tmp_path, 1, "gw", monkeypatch, changes)

    with path.open("rb") as file:
        result = replay(file)
    picks = picks_in(path)
    assert result.is_same, result.difference
    first, second, third, last = (picks[start : start + NUM_REQUESTS] for start in range(0, 4 * NUM_REQUESTS, 30))
    assert second[:8] == list("abcdefgh")
    assert third == [second[(NUM_REQUESTS + number) % 8] for number in range(NUM_REQUESTS)], "what can't be is not"
    assert last[:8] != third[:8]
    assert first != second


async def test_a_gateway_does_not_start_with_what_cannot_be_but_one_that_runs_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"policies": {"admission": "bouncer"}}
    service = a_service(tmp_path, 1, "gw", monkeypatch)
    with pytest.raises(ConfigError) as caught:
        service.reconfigure(wrong)

    service.reconfigure({"gateway": {"request_timeout_s": 7}})
    service.reconfigure(wrong)

    assert caught.value.field == "policies.admission"
    assert service._config.request_timeout_s == 7
    service.close()


async def test_tenants_are_read_again_when_the_configuration_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tenants.yaml"
    service = a_service(tmp_path, 1, "gw", monkeypatch)
    known = []
    for revision, name in enumerate(("shop", "store")):
        key, its_hash = new_key()
        place.write_text(f"tenants: [{{name: {name}, keys: ['{its_hash}']}}]")
        service.reconfigure({"gateway": {"tenants": str(place)}, "revision": revision})
        assert service._tenants is not None
        found = service._tenants.of_key(key.encode())
        known.append(found and found.name)

    assert known == ["shop", "store"]
    service.close()


async def test_gateways_of_one_deployment_draw_differently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = [picks_in(await serve(tmp_path, 2, name, monkeypatch)) for name in ("one", "other")]

    assert one != other
