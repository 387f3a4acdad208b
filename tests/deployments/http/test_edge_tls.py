"""A gateway without a proxy that encrypts: what clients see, what they have to show, and certificates that change."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization

from deployments.config import EdgeTlsConfig
from deployments.http import edge_tls
from deployments.http.edge_tls import NO_TLS, EdgeTls, edge_tls_of
from deployments.listener.address import Address
from policies.errors import ConfigError
from tests.deployments.data_plane.certificates import make_certificates
from tests.deployments.listener.listeners import App, gateway, listening, new_address
from tests.tables import for_each
from tests.waiting import until_here


class Certificates:
    """Those of one authority in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.make()

    def make(self) -> None:
        """New ones, in the same files."""
        made = make_certificates(self.folder)
        self.certificate, self.key = made["RAY_TLS_SERVER_CERT"], made["RAY_TLS_SERVER_KEY"]
        self.authority = made["RAY_TLS_CA_CERT"]

    def take_key_of(self, other: "Certificates") -> None:
        Path(self.key).write_bytes(Path(other.key).read_bytes())

    def take_certificate_of(self, other: "Certificates") -> None:
        Path(self.certificate).write_bytes(Path(other.certificate).read_bytes())

    def config(self, authority: str | None = None) -> EdgeTlsConfig:
        return EdgeTlsConfig(certificate=self.certificate, key=self.key, client_authorities=authority)

    def client(self, shows: "Certificates | None" = None) -> ssl.SSLContext:
        """Trusts this authority, and shows a certificate if it has one."""
        context = ssl.create_default_context(cafile=self.authority)
        if shows is not None:
            context.load_cert_chain(shows.certificate, shows.key)
        return context


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "theirs")


@asynccontextmanager
async def encrypting(config: EdgeTlsConfig, most: float = 100) -> AsyncIterator[Address]:
    async with listening(new_address()) as address, gateway(App("a"), address, most, EdgeTls(config)) as port:
        yield address
        await until_here(lambda: port._acceptor._num_connections == 0)
        assert port._acceptor._num_requests == 0
        assert not port._clients._open


async def ask(address: Address, context: ssl.SSLContext, path: str = "/v1/models") -> httpx.Response:
    async with httpx.AsyncClient(verify=context, timeout=20) as client:
        return await client.get(f"https://{address.host}:{address.port}{path}")


async def say(address: Address, what: bytes) -> bytes:
    """The rest of what is said over a connection that begins so."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(what)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_client_that_trusts_the_authority_is_served(ours: Certificates) -> None:
    async with encrypting(ours.config()) as address:
        assert (await ask(address, ours.client())).text == "a"


async def test_a_client_that_trusts_others_goes_away(ours: Certificates, theirs: Certificates) -> None:
    async with encrypting(ours.config()) as address:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(address, theirs.client())


async def test_nothing_is_said_in_the_clear(ours: Certificates) -> None:
    async with encrypting(ours.config()) as address:
        said = await say(address, b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert said == b"" or said.startswith(b"\x15\x03"), "an alert of TLS"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_versions_are_refused(ours: Certificates) -> None:
    context = ours.client()
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    async with encrypting(ours.config()) as address:
        with pytest.raises(httpx.ConnectError):
            await ask(address, context)


async def test_half_a_handshake_is_not_held_for_long_and_counts_for_its_client(
    ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EdgeTls, "handshake_s", 0.5)
    async with encrypting(ours.config(), most=1) as address:
        half = asyncio.create_task(say(address, b"\x16\x03\x01"))
        await asyncio.sleep(0)
        answers = [await ask(address, ours.client())]
        assert await half == b""
        async with asyncio.timeout(20):
            while answers[-1].status_code != 200:
                answers.append(await ask(address, ours.client()))
    assert {each.status_code for each in answers} == {429, 200}


async def test_without_a_certificate_a_client_sees_how_gateways_are_and_no_more(ours: Certificates) -> None:
    async with encrypting(ours.config(ours.authority)) as address:
        for path in ("/health", "/ready", "/metrics"):
            assert (await ask(address, ours.client(), path)).text == "a"
        refused = await ask(address, ours.client())
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "client_certificate_required"
        assert (await ask(address, ours.client(shows=ours))).text == "a"


async def test_a_certificate_of_another_authority_is_none(ours: Certificates, theirs: Certificates) -> None:
    async with encrypting(ours.config(ours.authority)) as address:
        with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
            await ask(address, ours.client(shows=theirs), "/health")


async def test_renewed_certificates_are_shown_from_the_next_connection_on(
    ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_tls, "LOOK_EVERY_S", 0.0)
    async with encrypting(ours.config()) as address:
        former = ours.client()
        assert (await ask(address, former)).text == "a"
        ours.make()
        assert (await ask(address, ours.client())).text == "a"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(address, former)


async def test_half_renewed_certificates_leave_the_former_ones(
    ours: Certificates, theirs: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(edge_tls, "LOOK_EVERY_S", 0.0)
    async with encrypting(ours.config()) as address:
        ours.take_key_of(theirs)
        assert (await ask(address, ours.client())).text == "a"
        assert (await ask(address, ours.client())).text == "a"
        ours.take_certificate_of(theirs)
        assert (await ask(address, theirs.client())).text == "a"
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 1
    assert "the former ones stay" in errors[0]


def with_a_passphrase(key: Path) -> None:
    found = serialization.load_pem_private_key(key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(found.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))


@for_each(
    ("spoils", "message"),
    [
        (lambda mine, _: Path(mine.key).unlink(), r"gateway\.tls: got .*key.*No such file"),
        (lambda mine, _: Path(mine.certificate).write_text("nothing"), r"gateway\.tls: got .*PEM files"),
        (lambda mine, other: mine.take_key_of(other), r"gateway\.tls: .*the key that belongs to it"),
        (lambda mine, _: with_a_passphrase(Path(mine.key)), r"gateway\.tls: .*has a passphrase"),
        (lambda mine, _: Path(mine.authority).unlink(), r"gateway\.tls\.client_authorities: .*No such file"),
        (lambda mine, _: Path(mine.authority).write_text("no"), r"gateway\.tls\.client_authorities: .*PEM file"),
    ],
)
async def test_files_that_don_t_do_are_refused_at_the_start(
    spoils: Any, message: str, ours: Certificates, theirs: Certificates
) -> None:
    ours.make()
    spoils(ours, theirs)
    with pytest.raises(ConfigError, match=message):
        EdgeTls(ours.config(ours.authority))


async def test_behind_a_proxy_nothing_can_be_encrypted(ours: Certificates) -> None:
    tls = edge_tls_of(ours.config())
    tls.check(has_proxy=False)
    with pytest.raises(ConfigError, match=r"gateway\.tls: .*proxy_location has to be Disabled"):
        tls.check(has_proxy=True)
    edge_tls_of(None).check(has_proxy=True)
    assert edge_tls_of(None) is NO_TLS
