"""The one place that uses a private API of Ray Serve.

All handle calls that a request makes share its internal request id, and Serve's routers find a pending call by that
id: of several concurrent calls to one deployment all but one would wait for ever. An attempt therefore takes an id of
its own, inside its own task. ``tests/deployments/wire/test_serve_internals.py`` fails when Ray changes this.

And ``serve run`` hands a configuration file to Serve's controller by a call that is not public either; ``serve deploy``
goes over the dashboard, which the launcher's cluster need not have.
"""

import dataclasses
from typing import Any

from ray.serve import context
from ray.serve._private.utils import generate_request_id
from ray.serve.schema import ServeDeploySchema


def use_own_internal_request_id() -> None:
    """Gives the current task an internal request id of its own; context variables keep it from leaking out."""
    current = context._get_serve_request_context()
    context._serve_request_context.set(dataclasses.replace(current, _internal_request_id=generate_request_id()))


def deploy_document(document: dict[str, Any]) -> None:
    """Has Serve's controller deploy a configuration file's document, as ``serve run`` does; returns before it is done.

    What is the same as before goes on as it is. Ray must be connected, and Serve be running there.
    """
    context._get_global_client().deploy_apps(ServeDeploySchema(**document))
