"""The check against real GCS servers, with a token and without: what a Ray cluster asks of callers is theirs to say."""

import base64
import secrets
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.serve.exceptions import RayServeException

from deployments.app import build
from deployments.config import ROOT, AppConfig, validated
from deployments.configuration.models import dumped
from deployments.gateway.gateway import Gateway
from deployments.replica.replicas import EngineReplica
from deployments.wire.cluster_authentication import FIELD, check_answer, check_cluster_authentication
from deployments.wire.gcs_call import TokenlessCall, call_gcs_without_token
from engines.peer_port import free_port
from policies.errors import ConfigError
from tests.deployments.app_args import args, error_of
from tests.tables import for_each

GCS = Path(ray.__file__).parent / "core" / "src" / "ray" / "gcs" / "gcs_server"


@contextmanager
def gcs(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A GCS server alone; gives its address."""
    port = free_port("127.0.0.1")
    settings = {
        "config_list": base64.b64encode(b"{}").decode(),
        "gcs_server_port": port,
        "log_dir": folder,
        "metrics-agent-port": 0,
        "node-id": secrets.token_hex(28),
        "node-ip-address": "127.0.0.1",
        "session-dir": folder,
        "session-name": "session",
    }
    command = [str(GCS), *(f"--{name}={value}" for name, value in settings.items())]
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen(command, env=environment, stdout=printed, stderr=subprocess.STDOUT)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with gcs(tmp_path_factory.mktemp("closed"), environment) as address:
        yield address


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gcs(tmp_path_factory.mktemp("open"), {"RAY_AUTH_MODE": "disabled"}) as address:
        yield address


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets this process take itself for one of the cluster with a GCS."""

    def pretend(address: str) -> None:
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=address))

    return pretend


def test_a_cluster_with_a_token_refuses_a_call_without_one(closed: str) -> None:
    assert call_gcs_without_token(closed) is TokenlessCall.REFUSED


def test_a_cluster_without_authentication_answers_it(open_to_all: str) -> None:
    assert call_gcs_without_token(open_to_all) is TokenlessCall.ANSWERED


@pytest.mark.parametrize("variable", ["RAY_AUTH_MODE", "RAY_AUTH_TOKEN"])
def test_what_the_process_says_of_itself_changes_nothing(
    open_to_all: str, closed: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "token")  # as a runtime environment may
    assert call_gcs_without_token(open_to_all) is TokenlessCall.ANSWERED
    assert call_gcs_without_token(closed) is TokenlessCall.REFUSED


def test_a_server_that_does_not_answer_decides_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert call_gcs_without_token(f"127.0.0.1:{port}", patience_s=0.1) is TokenlessCall.UNDECIDED


def test_only_a_refused_call_is_enough() -> None:
    check_answer(TokenlessCall.REFUSED, "HEAD:6379")


@for_each(
    ("answer", "found"),
    [(TokenlessCall.ANSWERED, "answers calls without a token"), (TokenlessCall.UNDECIDED, "did not say whether")],
)
def test_the_refusal_says_what_was_found_and_what_to_do(answer: TokenlessCall, found: str) -> None:
    error = error_of(check_answer, answer, "HEAD:6379")
    assert (error.field, error.value) == (FIELD, False)
    assert f"the one at HEAD:6379 {found}" in error.allowed
    assert error.allowed.startswith("true, or a Ray cluster with authentication")
    assert "RAY_AUTH_MODE=token" in error.allowed


def test_the_guide_shows_the_very_refusal() -> None:
    error = error_of(check_answer, TokenlessCall.ANSWERED, "10.0.0.1:6379")
    guide = (ROOT / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")
    assert str(error) in " ".join(guide.split())


def test_where_ray_does_not_run_there_is_no_cluster_to_ask() -> None:
    assert not ray.is_initialized()
    check_cluster_authentication(is_allowed_without=False)


async def build_application(config: AppConfig) -> None:
    build(config.model_dump(mode="json"))


def unfinished(kind: type) -> Any:
    """An instance before its constructor, with nothing to take down again."""
    return object.__new__(type(kind.__name__, (kind,), {"__del__": lambda self: None}))


async def start_gateway(config: AppConfig) -> None:
    await Gateway.__init__(unfinished(Gateway), dumped((config,)), {})


async def start_replica(config: AppConfig) -> None:
    await EngineReplica.__init__(
        unfinished(EngineReplica),
        config.pools[0].model_dump(mode="json"),
        config.engine.model_dump(mode="json"),
        config.model.resolved_path(),
        config.gateway.flush_interval_s,
        model=config.model.model_dump(mode="json"),
        takes_connections=True,
        prefix_block_tokens=config.gateway.prefix_block_tokens,
        allow_unauthenticated_cluster=config.allow_unauthenticated_cluster,
    )


@pytest.mark.parametrize("start", [build_application, start_gateway, start_replica])
async def test_nothing_starts_on_a_cluster_without_authentication(
    start: Callable[[AppConfig], Awaitable[None]], open_to_all: str, join: Callable[[str], None]
) -> None:
    join(open_to_all)
    with pytest.raises(ConfigError) as caught:
        await start(validated(args()))
    assert caught.value.field == FIELD


def test_with_a_token_the_application_is_built(closed: str, join: Callable[[str], None]) -> None:
    join(closed)
    build(args())


async def test_a_configuration_can_do_without(open_to_all: str, join: Callable[[str], None]) -> None:
    join(open_to_all)
    allowing = validated(args(allow_unauthenticated_cluster=True))
    gateway = build(allowing.model_dump(mode="json"))._bound_deployment

    assert gateway.init_args[0][0]["allow_unauthenticated_cluster"] is True
    assert gateway.init_args[1]["unified"]._bound_deployment.init_kwargs["allow_unauthenticated_cluster"] is True
    with pytest.raises(RayServeException, match="get_replica_context"):  # past the check, and not in a replica
        await start_gateway(allowing)
