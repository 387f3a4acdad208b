"""The one place that uses a private API of Ray Serve.

All handle calls that a request makes share its internal request id, and Serve's routers find a pending call by that
id: of several concurrent calls to one deployment all but one would wait for ever. An attempt therefore takes an id of
its own, inside its own task. ``tests/deployments/wire/test_serve_internals.py`` fails when Ray changes this.

And ``serve run`` hands a configuration file to Serve's controller by a call that is not public either; ``serve deploy``
goes over the dashboard, which the launcher's cluster need not have.

The dashboard is also where Serve lets others than itself change a deployment's number of replicas; the controller's own
method, which it calls, is called here.

Whether a cluster has authentication is public in no way. What a process's environment says of it is no proof: a
runtime environment can say anything. So the cluster's own server, the GCS, is called without a token; the client's code
is generated, and not public.
"""

import dataclasses
from enum import Enum
from typing import Any

import grpc
import ray
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.serve import context
from ray.serve._private.common import DeploymentID
from ray.serve._private.utils import generate_request_id
from ray.serve.schema import ServeDeploySchema

from policies.errors import ConfigError

GCS_PATIENCE_S = 30.0
"""On a machine that is short of CPU the GCS takes its time, and a replica that gives up has to start anew."""


CONTROLLER_PATIENCE_S = 30.0
"""Serve's controller answers at once, unless it is being started anew."""
EXTERNAL_SCALER = "external_scaler_enabled"
"""What a configuration file says beside an application's ``args``."""


class TokenlessCall(Enum):
    """What becomes of a call without a token."""

    REFUSED = "refused"
    ANSWERED = "answered"
    UNDECIDED = "undecided"


def use_own_internal_request_id() -> None:
    """Gives the current task an internal request id of its own; context variables keep it from leaking out."""
    current = context._get_serve_request_context()
    context._serve_request_context.set(dataclasses.replace(current, _internal_request_id=generate_request_id()))


def deploy_document(document: dict[str, Any]) -> None:
    """Has Serve's controller deploy a configuration file's document, as ``serve run`` does; returns before it is done.

    What is the same as before goes on as it is. Ray must be connected, and Serve be running there.
    """
    context._get_global_client().deploy_apps(ServeDeploySchema(**document))


def own_user_config() -> tuple[Any, int]:
    """In a replica: what the configuration file says for its deployment's ``user_config``, and the replica's rank.

    Serve tells a replica of both once it is constructed; an engine is started before that.
    """
    replica = context._get_internal_replica_context()
    return replica._deployment_config.user_config, replica.rank.rank


def check_external_scaler(application: str) -> None:
    """Whether Serve lets others than itself change the application's numbers of replicas.

    Raises:
        ConfigError: The configuration file does not say so.
    """
    controller = context._get_global_client()._controller
    if not ray.get(controller.get_external_scaler_enabled.remote(application), timeout=CONTROLLER_PATIENCE_S):
        raise ConfigError(EXTERNAL_SCALER, False, "true, beside the application's args, where policies.scaling is set")


def resize_deployment(application: str, deployment: str, num_replicas: int) -> None:
    """Has Serve's controller start or take away replicas until a deployment has so many; returns before it is done.

    A configuration that is deployed later changes that only where it has another number than the one before it.

    Raises:
        RayError: It does not answer, or does not take it.
    """
    controller = context._get_global_client()._controller
    deployment_id = DeploymentID(name=deployment, app_name=application)
    answer = controller.update_deployment_replicas.remote(deployment_id, num_replicas)
    ray.get(answer, timeout=CONTROLLER_PATIENCE_S)


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
