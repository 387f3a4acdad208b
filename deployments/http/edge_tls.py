"""TLS between clients and a gateway that has no proxy in front: its certificate, and theirs.

Files are read again when they have changed: certificates are renewed while a gateway runs.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployments.config import ROOT, EdgeTlsConfig
from policies.errors import ConfigError

LOGGER = logging.getLogger("ray.serve")
FIELD = "gateway.tls"
WITH_A_PROXY = "nothing with a proxy in front: proxy_location has to be Disabled, so that clients connect to gateways"
LOOK_EVERY_S = 10.0
"""How often files are looked at, when connections come."""
HANDSHAKE_S = 20.0
"""A client that has not proved anything by then is closed: as long as it has for a request."""
SHUTDOWN_S = 300.0
"""How long a client that reads slowly has for the rest of its last answer."""
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""What is answered without a client's certificate, for what looks how gateways are."""


class NoTls:
    """Connections are not encrypted."""

    handshake_s: float | None = None
    shutdown_s: float | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """For the next connection."""
        return None

    def check(self, *, has_proxy: bool) -> None:
        """Whether connections can be as they should.

        Raises:
            ConfigError: There is a proxy, to which clients connect.
        """

    def knows(self, transport: asyncio.Transport) -> bool:
        """Whether the client of a connection has shown what it has to."""
        return True


NO_TLS = NoTls()


class EdgeTls(NoTls):
    """Connections are TLS 1.2 or 1.3.

    Args:
        config: The files.

    Raises:
        ConfigError: One can't be read, or they don't belong together.
    """

    handshake_s = HANDSHAKE_S
    shutdown_s = SHUTDOWN_S

    def __init__(self, config: EdgeTlsConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._seen = self._look()
        self._looked_at_s = self._loop.time()
        self._context = _context_of(config)
        self._last_said = ""

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection. Files that have changed and don't go together are left for those before."""
        if self._loop.time() >= self._looked_at_s + LOOK_EVERY_S:
            self._looked_at_s = self._loop.time()
            if (seen := self._look()) != self._seen and self._has_read_again():
                self._seen = seen
        return self._context

    def check(self, *, has_proxy: bool) -> None:
        if has_proxy:
            raise ConfigError(FIELD, self._config.certificate, WITH_A_PROXY)

    def knows(self, transport: asyncio.Transport) -> bool:
        return self._config.client_authorities is None or bool(transport.get_extra_info("peercert"))

    def _has_read_again(self) -> bool:
        """Whether they could be; it is tried at each look, and what is wrong is said once."""
        try:
            self._context, said = _context_of(self._config), ""
            LOGGER.info("certificates have changed and are read again: %s", self._config.certificate)
        except ConfigError as error:
            said = str(error)
            if said != self._last_said:
                LOGGER.error("certificates have changed and the former ones stay: %s", said)
        self._last_said = said
        return not said

    def _look(self) -> Sequence[Any]:
        """What tells files from those that were there before."""
        return [_identity(ROOT / path) for path in self._config.paths]


def edge_tls_of(config: EdgeTlsConfig | None) -> NoTls:
    """How a gateway encrypts; on its event loop.

    Raises:
        ConfigError: As :class:`EdgeTls`.
    """
    return NO_TLS if config is None else EdgeTls(config)


def _identity(path: Path) -> tuple[int, int] | None:
    """Of a file, where links lead; none: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _context_of(config: EdgeTlsConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    certificate, key = ROOT / config.certificate, ROOT / config.key
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        allowed = f"PEM files of a certificate and of the key that belongs to it, without a passphrase ({error})"
        raise ConfigError(FIELD, f"{certificate}, {key}", allowed) from error
    if config.client_authorities is not None:
        authorities = ROOT / config.client_authorities
        try:
            context.load_verify_locations(authorities)
        except OSError as error:
            allowed = f"a PEM file of certificates ({error})"
            raise ConfigError(f"{FIELD}.client_authorities", str(authorities), allowed) from error
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _no_passphrase() -> str:
    """Asked for on a terminal otherwise."""
    raise ValueError("the key has a passphrase")
