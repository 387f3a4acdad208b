"""A deployment whose gateways encrypt, started as people start it: streams, and what clients have to show."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import yaml

from deployments.client import stream
from deployments.config import ROOT
from deployments.launch import running
from engines.peer_port import free_port
from tests.deployments.data_plane.certificates import make_certificates
from tests.deployments.live_cluster import emulated_args
from tests.engines.emulated_engines import ensure_tokenizer

pytestmark = pytest.mark.ray

HOST, TOKENS = "127.0.0.1", 20
BODY = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": TOKENS, "ignore_eos": True}


@dataclass(frozen=True)
class Encrypted:
    """The deployment, and a client that trusts its authority, with a certificate and without."""

    url: str
    known: httpx.Client
    stranger: httpx.Client
    authority: str


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    ensure_tokenizer()
    folder = tmp_path_factory.mktemp("encrypted")
    made = make_certificates(folder)
    certificate, key, authority = (made[f"RAY_TLS_{each}"] for each in ("SERVER_CERT", "SERVER_KEY", "CA_CERT"))
    tls = {"certificate": certificate, "key": key, "client_authorities": authority}
    document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
    document["proxy_location"] = "Disabled"
    document["applications"][0]["args"] = emulated_args(replicas=2, tls=tls)
    config = folder / "encrypted.yaml"
    config.write_text(yaml.safe_dump(document, sort_keys=False))
    trusts, shows = (ssl.create_default_context(cafile=authority) for _ in range(2))
    shows.load_cert_chain(certificate, key)
    limits = httpx.Limits(max_keepalive_connections=0)
    with (
        running(config, free_port(HOST)) as deployment,
        httpx.Client(verify=shows, timeout=60, limits=limits) as known,
        httpx.Client(verify=trusts, timeout=60, limits=limits) as stranger,
    ):
        yield Encrypted(deployment.url, known, stranger, authority)


def test_a_launcher_finds_its_deployment_ready_by_https(encrypted: Encrypted) -> None:
    assert encrypted.url.startswith("https://")


def test_streams_are_whole(encrypted: Encrypted) -> None:
    for _ in range(8):  # at both gateways
        answer = encrypted.known.post(f"{encrypted.url}/v1/completions", json={**BODY, "stream": True})
        events = [each.removeprefix("data: ") for each in answer.text.split("\n\n") if each]
        assert len(events) > TOKENS / 2
        assert events[-1] == "[DONE]"
    long = encrypted.known.post(f"{encrypted.url}/v1/completions", json={**BODY, "prompt": "Hello " * 1000})
    assert long.json()["usage"]["completion_tokens"] == TOKENS


def test_without_a_certificate_nothing_is_served_but_how_gateways_are(encrypted: Encrypted) -> None:
    refused = encrypted.stranger.post(f"{encrypted.url}/v1/completions", json=BODY)
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "client_certificate_required"
    for path in ("/v1/models", "/docs", "/"):
        assert encrypted.stranger.get(f"{encrypted.url}{path}").status_code == 401
    for path in ("/health", "/ready", "/metrics"):
        assert encrypted.stranger.get(f"{encrypted.url}{path}").status_code == 200


def test_the_client_that_comes_back_trusts_an_authority_by_the_environment(
    encrypted: Encrypted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", encrypted.authority)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        next(stream(f"{encrypted.url}/v1/completions", BODY))
