"""Runs a configuration on this machine: ``serve run`` in a Ray cluster of its own, and a word when it answers.

``python -m deployments.launch [CONFIG] [--check] [--port N] [--nodes N] [--haproxy | --python-proxy]``

Sets what Ray reads from the environment before it starts: HAProxy in front of the gateways, Serve's
throughput-optimised mode, and places for temporary files and inner ports that depend on the port, so that several
deployments can run side by side. Stops everything it started when it is interrupted or terminated.
"""

import argparse
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import httpx
import psutil
import yaml
from ray.serve.config import ProxyLocation
from rich.console import Console

from cluster.config.yaml_text import parse_yaml
from deployments.app import check_models
from deployments.config import ROOT
from deployments.configuration.models import Models, models_in
from deployments.configuration.reloading import GATEWAY, laid_over, user_config_in
from deployments.configuration.serve_file import check_deployments, check_serve_file, url_of, why_no_yaml
from deployments.http.edge_tls import FIELD as TLS
from deployments.http.edge_tls import WITH_A_PROXY
from deployments.llm import translated
from deployments.local.inner_ports import InnerPorts, is_free, own_inner_ports
from deployments.local.more_nodes import MoreNodes
from deployments.local.places import place_of
from deployments.replica.engine_versions import check_versions
from deployments.wire.serve_internals import EXTERNAL_SCALER
from policies.errors import ConfigError, ServingError

LOGGER = logging.getLogger(__name__)
CONFIGS = ROOT / "deployments" / "configs"
READY_PATIENCE_S = 900.0
"""Three vLLM engines that start at once on old cores need more than five minutes; an end is noticed at once."""
STOP_PATIENCE_S = 60.0
PROXY_READY_S = "30"
"""How long Serve's proxy may take to answer before Serve kills it, in place of 5 s, which a busy machine exceeds."""
CONTROL_LOOP_S = "0.25"
"""How often Serve's controller looks after the deployment, in place of 0.1 s, which takes 3% of a core on idle ones."""
RETRIES = "50"
"""How often gateways may refuse HAProxy's connection for a request: three times each, then Serve's own proxy has it. A
worker of HAProxy's that was replaced knows no gateways but the old ones, and clients whose stream began there stay.
"""
ARENAS = "2"
"""Heaps of a process's threads (glibc), engines' too. A gateway has forty, and each keeps what it once needed."""
POLL_S = 0.5
SERVE_RUN = "ray.serve.scripts"
WANTED = "a Serve configuration with applications and args"
PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False, "soft_wrap": True}
"""How a message is printed as it is, in one line."""
MAX_STARTS = 3
NODE_TOO_LATE = "node timed out during startup"
"""What Ray says then."""


class LaunchFailed(ServingError):
    """``serve run`` ended, or did not become ready in time; the message says where its log is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A deployment that answers.

    Args:
        url: Where.
        process: ``serve run``.
        log: Everything it has printed.
    """

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path


def load(config: Path, port: int | None = None) -> dict[str, Any]:
    """Reads and checks a configuration file, with another port when one is given; one of Ray Serve LLM's is translated.

    Raises:
        ConfigError: The file can't be read, or a value in it can't be served.
    """
    document, notes = _read(config)
    try:
        check_serve_file(document)
        for application in document["applications"]:
            _check(application, document.get("proxy_location"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # of what nobody has looked at before
        raise ConfigError("config", str(config), f"{WANTED} ({error})") from error
    for note in notes:
        LOGGER.warning("%s", note)
    if port is not None:
        if not 0 < port < 65_536:
            raise ConfigError("port", port, "1 to 65535")
        document["http_options"] = {**(document.get("http_options") or {}), "port": port}
    return document


def _read(config: Path) -> tuple[dict[str, Any], list[str]]:
    """What is in a file, and what is left out of its translation."""
    why = ""
    try:
        document = parse_yaml(config.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = f" ({error.strerror if isinstance(error, OSError) else error})"
    except yaml.YAMLError as error:
        why = f", as YAML ({why_no_yaml(error)})"
    except ValueError as error:  # of a date, or a number, that is none
        why = f", as YAML ({error})"
    else:
        if isinstance(document, dict):
            is_empty = document.get("http_options", {}) is None  # a section of comments
            return translated({**document, "http_options": {}} if is_empty else document)
        why = " (it is empty)" if document is None else " (it holds no mapping)"
    raise ConfigError("config", str(config), f"{WANTED}{why}")


def _check(application: dict[str, Any], proxy_location: str | None) -> None:
    """Whether it can be served, and goes on with what it says for deployments that run."""
    models = models_in(application["args"])
    check_models(models)
    tls = models[0].gateway.tls
    if tls is not None and proxy_location != ProxyLocation.Disabled:
        raise ConfigError(TLS, tls.certificate, WITH_A_PROXY)
    check_deployments(application, {GATEWAY, *(pool.name for each in models for pool in each.pools)})
    scaling = [each.policies.scaling.name for each in models if each.policies.spec().is_scaled]
    if scaling and application.get(EXTERNAL_SCALER) is not True:
        allowed = f"true, beside args, for policies.scaling: {scaling[0]}"
        raise ConfigError(EXTERNAL_SCALER, application.get(EXTERNAL_SCALER, False), allowed)
    if user_config := user_config_in(application):
        check_models(laid_over(models, user_config))
    for args in models:
        for pool in args.pools:
            check_versions(user_config_in(application, pool.name), pool, args)


@contextmanager
def running(
    config: Path,
    port: int | None = None,
    *,
    haproxy: bool = False,
    python_proxy: bool = False,
    num_nodes: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Deployment]:
    """Runs a configuration for as long as the block lasts.

    Args:
        config: The YAML file.
        port: HTTP port; the file's own when not given.
        haproxy: Behind HAProxy, also where the file has no proxy.
        python_proxy: Serve's plain mode, behind its own proxy.
        num_nodes: Ray nodes; what they are like that are not the first is in :mod:`deployments.local.more_nodes`.
        tell: Is told in a line for people how far the start has come.

    Raises:
        ConfigError: The configuration is wrong, or its port taken.
        LaunchFailed: It did not become ready.
    """
    document = load(config, port) | ({"proxy_location": "HeadOnly"} if haproxy or python_proxy else {})
    http = document.get("http_options") or {}
    port = int(http.get("port", 8000))
    if not is_free(port):
        raise ConfigError("port", port, f"a port that nobody listens on; {_holder(port)}")
    place = place_of(port)
    place.mkdir(parents=True, exist_ok=True)
    written, log = place / "serve.yaml", place / "serve.log"
    written.write_text(yaml.safe_dump(document, sort_keys=False))
    with own_inner_ports(port) as ports:
        more = environment(place, ports, python_proxy=python_proxy)
        url = url_of(document, port, http.get("host", "127.0.0.1"))
        nodes = MoreNodes(num_nodes - 1, port, more, place / "more-nodes.log")
        start = partial(_serve_run, written, log, more)
        with nodes, _serving(lambda: Deployment(url=url, process=start(), log=log), nodes, tell) as deployment:
            yield deployment


@contextmanager
def _serving(start: Callable[[], Deployment], nodes: MoreNodes, tell: Callable[[str], None]) -> Iterator[Deployment]:
    deployment = _started(start, nodes, tell)
    try:
        yield deployment
    finally:
        _stop(deployment.process)


def _started(start: Callable[[], Deployment], nodes: MoreNodes, tell: Callable[[str], None]) -> Deployment:
    """A deployment that is ready. Ray gives a node 30 s to start; where a busy machine takes longer, it starts again.

    Raises:
        LaunchFailed: It did not become ready.
    """
    for starts_left in reversed(range(MAX_STARTS)):
        deployment = start()
        try:
            _wait_until_ready(deployment, nodes, tell)
        except BaseException as error:
            _stop(deployment.process)
            nodes.stop()
            if not (starts_left and isinstance(error, LaunchFailed) and NODE_TOO_LATE in str(error)):
                raise
            tell("Ray's node was not there within 30 s: it is started again")
        else:
            return deployment
    raise AssertionError("the last start is ready, or raises")


def _serve_run(config: Path, log: Path, more: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Starts ``serve run`` with ``more`` in its environment."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", SERVE_RUN, "run", str(config)],
            env={**os.environ, **more},
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            process_group=0,  # killed as a whole; a session of its own would be scheduled as a whole, too
        )


def environment(place: Path, ports: InnerPorts, *, python_proxy: bool) -> Mapping[str, str]:
    """What Ray must find in its environment before it starts.

    Args:
        place: Folder for temporary files; short, because socket paths must be.
        ports: What it has besides its HTTP port.
        python_proxy: Serve's plain mode.
    """
    http, grpc = ports.ingress_http, ports.ingress_grpc
    metrics, statistics, fallback_http, fallback_grpc = map(str, ports.proxy)
    fast = "0" if python_proxy else "1"
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "RAY_ADDRESS": "local",
        "RAY_AUTH_MODE": "token",  # a local cluster makes one where there is none; without, nothing would start there
        "RAY_TMPDIR": str(place),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", ARENAS),
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": CONTROL_LOOP_S,
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": PROXY_READY_S,
        "RAY_SERVE_ENABLE_HA_PROXY": fast,
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": fast,
        "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",  # a thousand in that mode: what is said is written much later
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(place / "haproxy" / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(place / "haproxy" / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(place / "haproxy"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(place / "haproxy" / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": metrics,
        "RAY_SERVE_HAPROXY_STATS_PORT": statistics,
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(http[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(http[-1]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(grpc[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(grpc[-1]),
        # HAProxy falls back to Serve's own proxy while no gateway is up: another deployment's would answer in our name
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": fallback_http,
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": fallback_grpc,
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_HAPROXY_RETRIES": RETRIES,
    }


def _holder(port: int) -> str:
    """Who has a port, and how to get it back: a launcher that was killed leaves its deployment behind."""
    listening = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    pid = next((each.pid for each in listening if each.laddr and each.laddr.port == port and each.pid), 0)
    if not pid:
        return "another process has it"
    with suppress(psutil.Error):
        listener = psutil.Process(pid)
        for each in (listener, *listener.parents()):
            if SERVE_RUN in each.cmdline():
                return f"a deployment that runs has it: kill {each.pid} stops it"
        return f"process {pid} ({listener.name()}) has it"
    return f"process {pid} has it"


def _wait_until_ready(deployment: Deployment, nodes: MoreNodes, tell: Callable[[str], None]) -> None:
    give_up_at_s = time.monotonic() + READY_PATIENCE_S
    told = ""
    while time.monotonic() < give_up_at_s:
        if _has_ended(deployment.process, POLL_S):
            raise LaunchFailed(
                f"serve run ended with status {deployment.process.returncode} "
                f"({_last_line(deployment.log)}); its log: {deployment.log}"
            )
        nodes.join()
        is_ready, state = _look(deployment.url)
        if state != told:
            tell(state)
            told = state
        if is_ready:
            return
    raise LaunchFailed(f"not ready after {READY_PATIENCE_S:.0f} s; its log: {deployment.log}")


def _last_line(log: Path) -> str:
    """What a process said last, which is mostly why it ended."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "without a word"


def _look(url: str) -> tuple[bool, str]:
    """Whether the deployment is ready, and a line for people about how far it is."""
    try:
        answer = httpx.get(f"{url}/ready", timeout=2, verify=False)  # noqa: S501 - its own, by an address
        replicas: dict[str, int] = answer.json()["replicas"]
    except httpx.HTTPError:
        return False, "Ray starts"
    except (ValueError, KeyError):
        return False, "the gateway starts"
    counts = ", ".join(f"{pool}: {live}" for pool, live in replicas.items())
    return answer.status_code == 200, f"ready replicas: {counts}"


def _has_ended(process: "subprocess.Popen[bytes]", patience_s: float) -> bool:
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """``serve run`` takes its Ray cluster down with it; what is left then is killed with its process group."""
    process.terminate()
    _has_ended(process, STOP_PATIENCE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _follow(log: TextIO, console: Console) -> None:
    for line in log:
        if line.strip():
            console.print(line.rstrip(), style="dim", markup=False, highlight=False)


def _to_try(served: Models) -> tuple[str, str]:
    """A path and a body: of the first model that gives answers, or of the first one."""
    for each in served:
        if not each.pools_prompts:
            body = {"model": each.model.id, "prompt": "Hello", "max_tokens": 16, "stream": True}
            return "/v1/completions", json.dumps(body)
    return "/v1/score", json.dumps({"model": served[0].model.id, "queries": "Hello", "documents": ["Hello", "Water"]})


def _announce(deployment: Deployment, args: dict[str, Any], console: Console) -> None:
    served = models_in(args)
    path, asked = _to_try(served)
    key = ' -H "authorization: Bearer $SPILLWAY_KEY"' if (args.get("gateway") or {}).get("tenants") else ""
    curl = f"curl -N {deployment.url}{path} -H 'content-type: application/json'{key} -d {shlex.quote(asked)}"
    names = ", ".join(each.model.id for each in served)
    console.print(f"\n[bold green]spillway serves {names} at {deployment.url}[/]\n")
    console.print("  try it:", highlight=False)
    console.print(f"  {curl}\n", style="bold", soft_wrap=True, markup=False, highlight=False)
    for name, path in (
        ("live", "/"),
        ("ready", "/ready"),
        ("health", "/health"),
        ("metrics", "/metrics"),
        ("API", "/docs"),
    ):
        console.print(f"  {name:8} {deployment.url}{path}", highlight=False)
    console.print(f"  {'log':8} {deployment.log}\n\n  Ctrl-C stops it.\n", highlight=False)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deployments.launch", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        default=CONFIGS / "local-vllm.yaml",
        help="Serve configuration; the default is deployments/configs/local-vllm.yaml",
    )
    parser.add_argument("--check", action="store_true", help="say whether the file can be served, and start nothing")
    parser.add_argument("--port", type=int, help="HTTP port instead of the file's")
    parser.add_argument(
        "--nodes",
        type=int,
        choices=range(1, 9),
        metavar="N",
        default=1,
        help="Ray nodes on this machine; those after the first have no CPUs and the resource node1, node2, ...",
    )
    proxy = parser.add_mutually_exclusive_group()
    proxy.add_argument("--haproxy", action="store_true", help="behind HAProxy, also where the file has no proxy")
    proxy.add_argument("--python-proxy", action="store_true", help="Serve's plain mode, behind its own proxy")
    return parser.parse_args(arguments)


def interrupt(signum: int, frame: FrameType | None) -> None:
    """A handler of SIGTERM for whoever runs a deployment: what stops it then is what Ctrl-C does."""
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Command line: runs until it is interrupted."""
    options = _parse(arguments)
    console = Console()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        args = load(options.config)["applications"][0]["args"]
        if options.check:
            console.print(f"{options.config}: nothing is wrong", **PLAIN)
            return 0
        console.print(
            f"starting {options.config.name}: Ray, the gateway, then each engine; about a minute on two cores"
        )
        with running(
            options.config,
            options.port,
            haproxy=options.haproxy,
            python_proxy=options.python_proxy,
            num_nodes=options.nodes,
            tell=lambda line: console.print(f"  {line}"),
        ) as deployment:
            _announce(deployment, args, console)
            with deployment.log.open(errors="replace") as log:
                log.seek(0, os.SEEK_END)
                while not _has_ended(deployment.process, POLL_S):
                    _follow(log, console)
            console.print("[red]serve run ended by itself[/]")
            return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 0
    except ServingError as error:
        console.print(str(error), style="red", **PLAIN)
        return 2


if __name__ == "__main__":
    sys.exit(main())
