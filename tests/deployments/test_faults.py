import httpx
import pytest

from deployments import faults
from policies.errors import ConfigError

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


@pytest.mark.parametrize("wanted", ["2", "-1", "c", ""])
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


@pytest.mark.parametrize("kind", ["melt", ""])
def test_a_fault_that_nobody_knows_is_refused(kind: str) -> None:
    with pytest.raises(SystemExit):
        faults.main([kind, "--pool", "decode", "--replica", "0"])
