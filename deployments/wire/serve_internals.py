"""The one place that uses a private API of Ray Serve.

All handle calls that a request makes share its internal request id, and Serve's routers find a pending call by that
id: of several concurrent calls to one deployment all but one would wait for ever. An attempt therefore takes an id of
its own, inside its own task. ``tests/deployments/wire/test_serve_internals.py`` fails when Ray changes this.

Where Serve runs no proxies it still keeps the address that they would have, and tells its own processes alone.

And ``serve run`` hands a configuration file to Serve's controller by a call that is not public either; ``serve deploy``
goes over the dashboard, which the launcher's cluster need not have.

Ray Serve LLM keeps the schema of one of its two builders to itself.

The dashboard is also where Serve lets others than itself change a deployment's number of replicas; the controller's own
method, which it calls, is called here.
"""

import dataclasses
import logging
from typing import Any

import ray
from pydantic import BaseModel
from ray.serve import context
from ray.serve._private.common import DeploymentID
from ray.serve._private.utils import generate_request_id
from ray.serve.config import ProxyLocation
from ray.serve.schema import ServeDeploySchema

from policies.errors import ConfigError

CONTROLLER_PATIENCE_S = 30.0
"""Serve's controller answers at once, unless it is being started anew."""
EXTERNAL_SCALER = "external_scaler_enabled"
"""What a configuration file says beside an application's ``args``."""


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


def own_http_address() -> tuple[str, int, int] | None:
    """Where HTTP requests are to be taken, host and port, and for how many seconds a connection is kept without one;
    ``None``: Serve's proxies see to that.
    """
    controller = context._get_global_client()._controller
    location, options = ray.get(
        [controller.get_proxy_location.remote(), controller.get_http_config.remote()], timeout=CONTROLLER_PATIENCE_S
    )
    if location is not ProxyLocation.Disabled:
        return None
    return options.host or "127.0.0.1", options.port, options.keep_alive_timeout_s


def llm_serving_args(*, disaggregated: bool) -> type[BaseModel]:
    """What Ray Serve LLM's ``build_openai_app`` takes, or its ``build_pd_openai_app``.

    The import takes seconds, as it imports vLLM, and has this process log everything as JSON: that is taken back.
    """
    root = logging.getLogger()
    handlers, level, disabled = [*root.handlers], root.level, root.manager.disable
    logging.disable(logging.WARNING)
    try:
        from ray.llm._internal.serve.serving_patterns.prefill_decode.builder import (  # noqa: PLC0415 - vLLM, as said
            PDServingArgs,
        )
        from ray.serve.llm import LLMServingArgs  # noqa: PLC0415 - likewise
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)
    schema: type[BaseModel] = PDServingArgs if disaggregated else LLMServingArgs
    return schema


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
