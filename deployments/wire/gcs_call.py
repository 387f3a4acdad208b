"""Whether a Ray cluster has authentication, which is public in no way.

What a process's environment says of it is no proof: a runtime environment can say anything. So the cluster's own
server, the GCS, is called without a token; the client's code is generated, and not public.
"""

from enum import Enum

import grpc
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

GCS_PATIENCE_S = 30.0
"""On a machine that is short of CPU the GCS takes its time, and a replica that gives up has to start anew."""


class TokenlessCall(Enum):
    """What becomes of a call without a token."""

    REFUSED = "refused"
    ANSWERED = "answered"
    UNDECIDED = "undecided"


def call_gcs_without_token(address: str, patience_s: float = GCS_PATIENCE_S) -> TokenlessCall:
    """Asks a Ray cluster whether it is alive, as a stranger would.

    Args:
        address: Of the cluster's GCS.
        patience_s: How long to wait for an answer.
    """
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            stub.CheckAlive(gcs_service_pb2.CheckAliveRequest(), timeout=patience_s, wait_for_ready=True)
        except grpc.RpcError as error:
            is_refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            return TokenlessCall.REFUSED if is_refused else TokenlessCall.UNDECIDED
    return TokenlessCall.ANSWERED
