"""Whether a Ray cluster has authentication, which is public in no way.

What a process's environment says of it is no proof: a runtime environment can say anything. So the cluster's own
server, the GCS, is called without a token; the client's code is generated, and not public.
"""

import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import grpc
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from policies.errors import ConfigError

RAY_USE_TLS = "RAY_USE_TLS"
CERTIFICATES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
"""Variables that name a node's certificate, its key, and the certificate of the cluster's own authority."""
GCS_PATIENCE_S = 30.0
"""On a machine that is short of CPU the GCS takes its time, and a replica that gives up has to start anew."""


class TokenlessCall(Enum):
    """What becomes of a call without a token."""

    REFUSED = "refused"
    ANSWERED = "answered"
    UNDECIDED = "undecided"


def call_gcs_without_token(
    address: str, patience_s: float = GCS_PATIENCE_S, environment: Mapping[str, str] = os.environ
) -> TokenlessCall:
    """Asks a Ray cluster whether it is alive, as a stranger would; where Ray encrypts, one who has a certificate.

    Args:
        address: Of the cluster's GCS.
        patience_s: How long to wait for an answer.
        environment: Says how Ray encrypts.

    Raises:
        ConfigError: Ray is to encrypt, and a file that it is to do that with can't be read.
    """
    with _channel(address, environment) as channel:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            stub.CheckAlive(gcs_service_pb2.CheckAliveRequest(), timeout=patience_s, wait_for_ready=True)
        except grpc.RpcError as error:
            is_refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            return TokenlessCall.REFUSED if is_refused else TokenlessCall.UNDECIDED
    return TokenlessCall.ANSWERED


def is_encrypted(environment: Mapping[str, str]) -> bool:
    """Whether Ray encrypts between its processes; what is beside Ray does then, too."""
    return environment.get(RAY_USE_TLS, "0").lower() in {"1", "true"}


def certificate_files(environment: Mapping[str, str]) -> tuple[str, str, str]:
    """Where a node's certificate, its key and the authority's certificate are; empty where that is not set."""
    certificate, key, authority = (environment.get(name, "") for name in CERTIFICATES)
    return certificate, key, authority


def _channel(address: str, environment: Mapping[str, str]) -> grpc.Channel:
    options = [("grpc.enable_http_proxy", 0)]
    if not is_encrypted(environment):
        return grpc.insecure_channel(address, options=options)
    try:
        certificate, key, authority = (Path(each).read_bytes() for each in certificate_files(environment))
    except OSError as error:
        allowed = f"0, or readable files in {', '.join(CERTIFICATES)}: {error}"
        raise ConfigError(RAY_USE_TLS, environment[RAY_USE_TLS], allowed) from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, certificate), options)
