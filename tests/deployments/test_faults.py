import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

from deployments import faults
from deployments.config import ROOT
from deployments.local.places import place_of, ray_address
from policies.errors import ConfigError
from tests.tables import for_each

METRICS = """
spillway_replica_info{pool="decode",replica="b"} 1.0
spillway_replica_info{pool="prefill",replica="c"} 1.0
spillway_replica_info{pool="decode",replica="a"} 1.0
"""


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two decode replicas and a prefill replica, as their gateway shows them."""

    def get(url: str, timeout: float) -> httpx.Response:
        request = httpx.Request("GET", url)
        if "nowhere" in url:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, text=METRICS, request=request)

    monkeypatch.setattr(httpx, "get", get)


@pytest.mark.usefixtures("deployment")
def test_a_replica_is_chosen_by_its_place_in_the_pool_or_by_its_id() -> None:
    replicas = faults.replicas_of("http://here", "decode")
    assert replicas == ["a", "b"]
    assert faults.choose(replicas, "1") == faults.choose(replicas, "b") == "b"


@for_each("wanted", ["2", "-1", "c", ""])
def test_a_replica_that_is_not_there_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigError, match="replica: got"):
        faults.choose(["a", "b"], wanted)


@pytest.mark.usefixtures("deployment")
def test_a_pool_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"pool: got 'spare'; allowed: one of \['decode', 'prefill'\]"):
        faults.replicas_of("http://here", "spare")


@pytest.mark.usefixtures("deployment")
def test_a_deployment_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status = faults.main(["slow", "--pool", "decode", "--replica", "0", "--url", "http://nowhere"])
    assert status == 2
    assert "url: got 'http://nowhere'" in capsys.readouterr().err


def test_the_launchers_ray_cluster_is_found_by_its_http_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match="port: got 8077"):
        ray_address(8077)

    session = place_of(8077) / "ray" / "session_latest"
    session.mkdir(parents=True)
    (session / "gcs_server_port_abc").write_text("40123")

    assert ray_address(8077) == "127.0.0.1:40123"


def test_the_command_loads_no_ray_before_it_has_set_rays_environment() -> None:
    script = "import sys, deployments.faults; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@for_each("kind", ["melt", ""])
def test_a_fault_that_nobody_knows_is_refused(kind: str) -> None:
    with pytest.raises(SystemExit):
        faults.main([kind, "--pool", "decode", "--replica", "0"])
