"""A gateway without a proxy that encrypts: what clients see, what they have to show, and certificates that change."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization

from deployments.config import EdgeTlsConfig
from deployments.http import edge_tls, own_port
from deployments.http.edge_tls import NO_TLS, EdgeTls, edge_tls_of
from deployments.http.own_port import OwnPort
from deployments.listener.address import Address
from policies.errors import ConfigError
from tests.deployments.data_plane.certificates import make_certificates
from tests.deployments.listener.listeners import App, gateway, listening, new_address, say
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
    async with encrypting_port(config, most) as (address, _):
        yield address


@asynccontextmanager
async def encrypting_port(config: EdgeTlsConfig, most: float = 100) -> AsyncIterator[tuple[Address, OwnPort]]:
    async with listening(new_address()) as address, gateway(App("a"), address, most, EdgeTls(config)) as port:
        yield address, port
        await until_here(lambda: port._acceptor._num_connections == 0)
        assert port._acceptor._num_requests == 0
        assert not port._clients._open


async def ask(address: Address, context: ssl.SSLContext, path: str = "/v1/models") -> httpx.Response:
    async with httpx.AsyncClient(verify=context, timeout=20) as client:
        return await client.get(f"https://{address.host}:{address.port}{path}")


async def test_a_client_that_trusts_the_authority_is_served(ours: Certificates) -> None:
    async with encrypting(ours.config()) as address:
        assert (await ask(address, ours.client())).text == "a"
        assert await asyncio.to_thread(ssl_version_of, address, ours.client()) == "TLSv1.3"


async def test_a_client_that_trusts_others_goes_away(ours: Certificates, theirs: Certificates) -> None:
    async with encrypting(ours.config()) as address:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(address, theirs.client())


async def test_nothing_is_said_in_the_clear(ours: Certificates) -> None:
    async with encrypting(ours.config()) as address:
        said = await say(address, [b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"])
        assert said == b"" or said.startswith(b"\x15\x03"), "an alert of TLS"


def ssl_version_of(address: Address, context: ssl.SSLContext) -> str | None:
    """What is spoken, with a client that says why it goes away."""
    with (
        socket.create_connection(address[:2], timeout=20) as raw,
        context.wrap_socket(raw, server_hostname=address.host) as wrapped,
    ):
        return wrapped.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_versions_are_refused(ours: Certificates) -> None:
    async with encrypting(ours.config()) as address:
        assert await asyncio.to_thread(ssl_version_of, address, old(ours, ssl.TLSVersion.TLSv1_2)) == "TLSv1.2"
        with pytest.raises(ssl.SSLError, match=r"EOF|PROTOCOL_VERSION"):
            await asyncio.to_thread(ssl_version_of, address, old(ours, ssl.TLSVersion.TLSv1_1))


def old(authority: Certificates, version: ssl.TLSVersion) -> ssl.SSLContext:
    """A client that speaks this version alone, with whatever ciphers it has."""
    context = authority.client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    return context


async def test_half_a_handshake_is_not_held_for_long_and_counts_for_its_client(
    ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EdgeTls, "handshake_s", 0.5)
    async with encrypting_port(ours.config(), most=1) as (address, port):
        half = asyncio.create_task(say(address, [b"\x16\x03\x01"]))
        await until_here(lambda: bool(port._connecting))
        with pytest.raises(httpx.ConnectError):
            await ask(address, ours.client())
        assert port._acceptor._num_connections == 1, "more than there may be are not held for so long"
        assert await half == b""
        await until_here(lambda: not port._connecting)
        assert (await ask(address, ours.client())).text == "a"


async def idle_connection(address: Address, context: ssl.SSLContext, path: str = "/health") -> asyncio.StreamWriter:
    """One that has had an answer, and reads no more."""
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return writer


async def test_clients_that_say_no_goodbye_are_not_waited_for(
    ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_port, "GOODBYE_S", 0.1)
    async with encrypting_port(ours.config()) as (address, port):
        writer = await idle_connection(address, ours.client())
        await asyncio.wait_for(port.close(60.0), 20)
        writer.transport.abort()


async def test_a_client_that_was_refused_and_stays_keeps_nobody_busy(
    ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_port, "GOODBYE_S", 0.1)
    async with encrypting_port(ours.config(ours.authority)) as (address, port):
        writer = await idle_connection(address, ours.client(), "/v1/models")
        assert port._acceptor._num_requests == 0
        await until_here(lambda: port._acceptor._num_connections == 0)
        writer.transport.abort()


async def test_a_gateway_that_ends_serves_those_whose_handshake_was_under_way(ours: Certificates) -> None:
    async with encrypting_port(ours.config()) as (address, port):
        raw = socket.create_connection(address[:2])
        raw.setblocking(False)
        await until_here(lambda: bool(port._connecting))
        closing = asyncio.create_task(port.close(20.0))
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(sock=raw, ssl=ours.client(), server_hostname=address.host)
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"a\r\n0\r\n\r\n")
        writer.close()
        await asyncio.wait_for(closing, 20)


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


async def test_what_could_not_be_read_at_first_is_read_later(
    ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a key that gets its rights after its name: neither inode nor time tells of that."""
    monkeypatch.setattr(edge_tls, "LOOK_EVERY_S", 0.0)
    read, tls = edge_tls._context_of, EdgeTls(ours.config())
    former = tls.context
    ours.make()
    monkeypatch.setattr(edge_tls, "_context_of", refuse_to_read)
    assert tls.context is former
    monkeypatch.setattr(edge_tls, "_context_of", read)
    assert tls.context is not former
    renewed = tls.context
    assert tls.context is renewed


def refuse_to_read(config: EdgeTlsConfig) -> ssl.SSLContext:
    raise ConfigError("gateway.tls", config.key, "what can be read")


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
