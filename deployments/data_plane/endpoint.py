"""Where a replica's end of the data plane is, and how its connections are encrypted."""

import os
import secrets
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from deployments.wire.gcs_call import CERTIFICATES, RAY_USE_TLS, certificate_files, is_encrypted
from policies.errors import ConfigError

METADATA = "data_plane"
"""Under which name a replica says it."""
KEY_BYTES = 32


def new_key() -> bytes:
    """A replica's."""
    return secrets.token_bytes(KEY_BYTES)


class Endpoint(NamedTuple):
    """Where a replica takes connections, and the key that both ends have to have.

    Args:
        host: Address of its node.
        port: Its own.
        key: Its own.
    """

    host: str
    port: int
    key: bytes

    def to_metadata(self) -> dict[str, Any]:
        """As a replica says it once, for Serve to keep."""
        return {METADATA: {"host": self.host, "port": self.port, "key": self.key.hex()}}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self | None:
        """As a gateway finds it; ``None``: that replica takes no connections."""
        said = metadata.get(METADATA)
        return None if said is None else cls(said["host"], int(said["port"]), bytes.fromhex(said["key"]))


def tls_contexts(environment: Mapping[str, str] = os.environ) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """How replicas and gateways encrypt, in this order: as Ray does between its own processes, with the same
    certificates, and not at all where Ray does not. Both ends show a certificate of the cluster's own authority; names
    are not compared, as certificates belong to nodes and each replica has its key.

    Raises:
        ConfigError: Ray is to encrypt, and a file that it is to do that with is not named or can't be read.
    """
    if not is_encrypted(environment):
        return None
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    certificate, key, authority = certificate_files(environment)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(certificate, key)
            context.load_verify_locations(authority)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                RAY_USE_TLS, environment[RAY_USE_TLS], f"0, or readable files in {', '.join(CERTIFICATES)}: {error}"
            ) from error
    return server, client
