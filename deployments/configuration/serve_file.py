"""What of a configuration file is Serve's own, checked before it has anything to start.

``serve run`` would go on without a field that it does not know, and what its controller finds wrong later it says in a
log alone.
"""

import importlib
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from ray.runtime_env import RuntimeEnv
from ray.serve.config import ProxyLocation
from ray.serve.schema import (
    DeploymentSchema,
    HTTPOptionsSchema,
    LoggingConfig,
    RayActorOptionsSchema,
    ServeApplicationSchema,
    ServeDeploySchema,
    gRPCOptionsSchema,
)

from cluster.config.strict import refusal, unknown_field
from policies.errors import ConfigError

APPLICATIONS, HTTP_OPTIONS = "applications", "http_options"
_IMPORT_PATH = re.compile(r"[\w.]+[:.]\w[\w.]*")
_ROUTE = re.compile(r"/|(/[^{}/\s]+)+")
_SECTIONS: Mapping[str, type[BaseModel]] = {
    HTTP_OPTIONS: HTTPOptionsSchema,
    "grpc_options": gRPCOptionsSchema,
    "logging_config": LoggingConfig,
    "ray_actor_options": RayActorOptionsSchema,
}
"""Sections that are the same wherever they stand."""


def why_no_yaml(error: yaml.YAMLError) -> str:
    """What a YAML parser has against a text, in one line."""
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    problem = getattr(error, "problem", None) or str(error)
    return f"{' '.join(problem.split())}{where}"


def check_serve_file(document: Mapping[str, Any]) -> None:
    """Whether Serve takes what is its own, and starts what it says.

    Raises:
        ConfigError: Field, value and what is allowed.
    """
    _check_fields("", document, ServeDeploySchema)
    applications = document.get(APPLICATIONS)
    if not isinstance(applications, list) or not applications:
        raise ConfigError(APPLICATIONS, applications, "a list of applications, each with import_path and args")
    for number, application in enumerate(applications):
        _check_application(f"{APPLICATIONS}.{number}", application)
    for name in ("name", "route_prefix"):
        _check_once(name, [each.get(name) for each in applications])
    _check_without_proxy(document.get("proxy_location"), applications)
    _check_port(document.get(HTTP_OPTIONS))
    try:
        read = ServeDeploySchema.model_validate(document)
    except ValidationError as error:
        raise refusal(error, whole=APPLICATIONS) from error
    _check_host(read.http_options.host)
    for number, each in enumerate(read.applications):
        _check_what_is_imported(f"{APPLICATIONS}.{number}", each)


def url_of(document: Mapping[str, Any], port: int, host: str = "127.0.0.1") -> str:
    """Where the first application of a file that was checked is found: ``http://127.0.0.1:8000/llm``."""
    application = document[APPLICATIONS][0]
    scheme = "https" if (application["args"].get("gateway") or {}).get("tls") else "http"
    return f"{scheme}://{host}:{port}{application.get('route_prefix', '/').rstrip('/')}"


def check_deployments(application: Mapping[str, Any], known: Iterable[str]) -> None:
    """Whether what is said of single deployments is said of some that there are.

    Raises:
        ConfigError: One does not exist.
    """
    names = sorted(known)
    for number, each in enumerate(application.get("deployments") or ()):
        if each["name"] not in names:
            raise ConfigError(f"deployments.{number}.name", each["name"], f"one of {', '.join(names)}")


def _check_fields(place: str, given: object, schema: type[BaseModel]) -> None:
    """Whether Serve knows all fields; it ignores those that it does not."""
    for name, value in given.items() if isinstance(given, Mapping) else ():
        where = f"{place}.{name}".removeprefix(".")
        if name not in schema.model_fields:
            raise ConfigError(where, value, unknown_field(name, list(schema.model_fields)))
        if name in _SECTIONS:
            _check_fields(where, value, _SECTIONS[name])


def _check_application(place: str, application: object) -> None:
    if not isinstance(application, Mapping):
        raise ConfigError(place, application, "a mapping with import_path and args")
    _check_fields(place, application, ServeApplicationSchema)
    if application.get("name") == "":
        raise ConfigError(f"{place}.name", "", "at least one character")
    if "args" not in application:
        raise ConfigError(f"{place}.args", None, "a mapping with model, pools and policies")
    for name in ("host", "port"):
        if name in application:
            raise ConfigError(f"{place}.{name}", application[name], f"nothing: it is {HTTP_OPTIONS}.{name}")
    _check_path_and_route(place, application)
    deployments = application.get("deployments")
    for number, each in enumerate(deployments if isinstance(deployments, list) else ()):
        _check_fields(f"{place}.deployments.{number}", each, DeploymentSchema)


def _check_path_and_route(place: str, application: Mapping[str, Any]) -> None:
    path = application.get("import_path", "")
    if isinstance(path, str) and path and not _IMPORT_PATH.fullmatch(path):
        raise ConfigError(f"{place}.import_path", path, "module:name, such as deployments.app:build")
    route = application.get("route_prefix", "/")
    if not isinstance(route, str) or not _ROUTE.fullmatch(route):
        raise ConfigError(
            f"{place}.route_prefix", route, "/, or a path such as /v1: a slash before each part, none after"
        )


def _check_without_proxy(location: Any, applications: list[Any]) -> None:
    """It is proxies that tell applications apart."""
    if location != ProxyLocation.Disabled:
        return
    for number, each in enumerate(applications):
        if each.get("route_prefix", "/") != "/":
            allowed = "/ where proxy_location is Disabled: gateways take requests themselves"
            raise ConfigError(f"{APPLICATIONS}.{number}.route_prefix", each["route_prefix"], allowed)


def _check_once(name: str, values: list[Any]) -> None:
    defaults = {"name": "default", "route_prefix": "/"}
    found = [defaults[name] if value is None else value for value in values]
    for number, value in enumerate(found):
        if value in found[:number]:
            raise ConfigError(f"{APPLICATIONS}.{number}.{name}", value, "each application's own")


def _check_port(http: object) -> None:
    port = http.get("port", 8000) if isinstance(http, Mapping) else 8000
    if type(port) is not int or not 0 < port < 65_536:
        raise ConfigError(f"{HTTP_OPTIONS}.port", port, "a whole number, 1 to 65535")


def _check_host(host: str) -> None:
    """An address that is not this machine's would be found out by a gateway, or by HAProxy, once Ray is there."""
    try:
        family, *_, address = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family) as taken:
            taken.bind(address)
    except OSError as error:
        raise ConfigError(f"{HTTP_OPTIONS}.host", host, f"an address of this machine ({error.strerror})") from error


def _check_what_is_imported(place: str, application: ServeApplicationSchema) -> None:
    """Whether the import path leads to something, where no other environment is asked for than this process's."""
    if application.runtime_env:
        try:
            RuntimeEnv(**application.runtime_env)
        except Exception as error:  # whatever Ray raises for what it does not take
            allowed = f"what Ray takes ({' '.join(str(error).split())})"
            raise ConfigError(f"{place}.runtime_env", sorted(application.runtime_env), allowed) from error
        return
    path = application.import_path
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # of a module that is imported
        allowed = f"deployments.app:build, or another path that can be imported ({error})"
        raise ConfigError(f"{place}.import_path", path, allowed) from error
