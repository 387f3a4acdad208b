import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from cluster.config.yaml_text import parse_yaml
from deployments import launch
from deployments.config import ROOT
from deployments.configuration.serve_file import url_of
from deployments.launch import CONFIGS, LaunchFailed, environment, load, main, running
from deployments.local.inner_ports import InnerPorts
from policies.errors import ConfigError
from tests.deployments.app_args import error_of
from tests.process_watch import all_end
from tests.tables import for_each

CONFIG = CONFIGS / "unified-vllm.yaml"
PORT = 8077
Answers = Callable[..., None]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the deployment writes; another one on this machine is not disturbed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launch, "POLL_S", 0.01)
    return tmp_path / f"spillway-{os.getuid()}" / str(PORT)


@pytest.fixture
def serve_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of ``serve run``."""

    def replace(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    return replace


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What the deployment says when it is asked whether it is ready, one after the other."""

    def script(*replies: httpx.Response | httpx.HTTPError) -> None:
        left = list(replies)

        def get(url: str, **_: object) -> httpx.Response:
            reply = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(reply, httpx.HTTPError):
                raise reply
            return reply

        monkeypatch.setattr(httpx, "get", get)

    return script


def test_a_port_replaces_the_files_own() -> None:
    assert load(CONFIG)["http_options"]["port"] == 8000
    assert load(CONFIG, PORT)["http_options"] == {"host": "127.0.0.1", "port": PORT}


def test_a_deployment_is_found_by_its_prefix_and_by_https_where_gateways_encrypt() -> None:
    document = load(CONFIG)
    assert url_of(document, PORT) == f"http://127.0.0.1:{PORT}"
    (application,) = document["applications"]
    application["args"]["gateway"] = {"tls": {"certificate": "a", "key": "b"}}
    assert url_of(document, PORT, "10.0.0.7") == f"https://10.0.0.7:{PORT}"
    document["applications"] = [{**application, "args": {"gateway": None}, "route_prefix": "/llm"}]
    assert url_of(document, PORT) == f"http://127.0.0.1:{PORT}/llm"


@for_each(
    "content",
    [
        *(b"", b"7", b"[1]", b"applications: [", b"a: b: c", b"\xff\xfe\x00", b"a: 2026-02-31"),
    ],
)
def test_a_file_that_is_no_serve_configuration_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    error = error_of(load, path)
    assert (error.field, error.value) == ("config", str(path))
    assert error.allowed.startswith("a Serve configuration with applications and args")


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    error = error_of(load, tmp_path / "nowhere.yaml")
    assert error.value == str(tmp_path / "nowhere.yaml")
    assert "No such file" in error.allowed


def test_a_key_that_stands_twice_is_refused_and_not_the_last_one_taken(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(CONFIG.read_text() + "\nhttp_options: {port: 8001}\n")
    assert "stands twice" in error_of(load, path).allowed


def test_a_mapping_may_be_merged_into_another_and_its_keys_said_anew(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n")
    assert parse_yaml(path.read_text())["y"] == {"a": 1, "b": 3}


@for_each("text", ["[" * 3000, "[{args: &g {x: *g}}]"])
def test_what_has_no_end_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "endless.yaml"
    path.write_text(f"applications: {text}")
    assert error_of(load, path).field == "config"


def test_a_file_that_is_right_can_be_checked_and_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(CONFIG), "--check"]) == 0
    assert capsys.readouterr().out == f"{CONFIG}: nothing is wrong\n"


@for_each("port", [-5, 0, 70_000, "80x", None, True, 8000.5])
def test_a_port_that_is_none_is_refused(port: object, tmp_path: Path) -> None:
    path, document = tmp_path / "port.yaml", yaml.safe_load(CONFIG.read_text())
    path.write_text(yaml.safe_dump({**document, "http_options": {"port": port}}))
    error = error_of(load, path)
    assert (error.field, error.value) == ("http_options.port", port)


def test_a_misspelt_field_of_serves_own_is_refused_where_serve_would_ignore_it(tmp_path: Path) -> None:
    path, document = tmp_path / "misspelt.yaml", yaml.safe_load(CONFIG.read_text())
    path.write_text(yaml.safe_dump({**document, "http_options": {"prot": 8001}}))
    error = error_of(load, path)
    assert (error.field, error.value) == ("http_options.prot", 8001)
    assert error.allowed.startswith("port, if that is meant")
    path.write_text(yaml.safe_dump({**document, "http_option": {"port": 8001}}))
    assert error_of(load, path).field == "http_option"


@for_each("args", ["", "7", "{model: 7}"])
def test_a_wrong_value_in_the_file_is_named(args: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(f"applications: [{{name: a, import_path: 'deployments.app:build', args: {args}}}]")
    assert error_of(load, path).field in ("applications.0.args", "model")


def test_a_scaling_policy_needs_serves_leave(tmp_path: Path) -> None:
    document = yaml.safe_load(CONFIG.read_text())
    application, path = document["applications"][0], tmp_path / "scaled.yaml"
    application["args"]["policies"]["scaling"] = "queue_depth"
    for pool in application["args"]["pools"]:
        pool["autoscaling"] = {"max_replicas": 8}
    path.write_text(yaml.safe_dump(document))
    error = error_of(load, path)
    assert (error.field, error.value) == ("external_scaler_enabled", False)
    assert "true, beside args, for policies.scaling: queue_depth" in error.allowed
    application["external_scaler_enabled"] = True
    path.write_text(yaml.safe_dump(document))
    assert load(path) == document


def test_a_file_without_http_options_can_be_given_a_port(tmp_path: Path) -> None:
    path = tmp_path / "bare.yaml"
    path.write_text(CONFIG.read_text().replace("  host: 127.0.0.1\n  port: 8000\n", ""))
    assert load(path, PORT)["http_options"] == {"port": PORT}


def test_two_deployments_share_no_folder() -> None:
    here, there = (environment(Path(place), InnerPorts(0), python_proxy=False) for place in ("/here", "/there"))
    shared = {name for name in here if here[name] == there[name]}
    assert not any("/here" in here[name] for name in shared)
    assert {"RAY_TMPDIR", "RAY_SERVE_HAPROXY_SOCKET_PATH"}.isdisjoint(shared)


@for_each(("python_proxy", "flag"), [(False, "1"), (True, "0")])
def test_the_plain_mode_is_without_haproxy(python_proxy: bool, flag: str) -> None:
    found = environment(Path("/place"), InnerPorts(0), python_proxy=python_proxy)
    assert found["RAY_SERVE_ENABLE_HA_PROXY"] == found["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == flag
    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_its_ray_has_a_token_whatever_the_shell_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert environment(Path("/place"), InnerPorts(0), python_proxy=False)["RAY_AUTH_MODE"] == "token"


def test_ray_is_told_of_each_inner_port_of_the_deployment_and_no_other() -> None:
    ports = InnerPorts(7)
    found = environment(Path("/place"), ports, python_proxy=False)

    proxy = ("HAPROXY_METRICS", "HAPROXY_STATS", "FALLBACK_PROXY_HTTP", "FALLBACK_PROXY_GRPC")
    assert [int(found[f"RAY_SERVE_{name}_PORT"]) for name in proxy] == list(ports.proxy)
    for kind, those in (("HTTP", ports.ingress_http), ("GRPC", ports.ingress_grpc)):
        ends = [int(found[f"RAY_SERVE_DIRECT_INGRESS_{end}_{kind}_PORT"]) for end in ("MIN", "MAX")]
        assert ends == [those[0], those[-1]]


def ready(**replicas: int) -> httpx.Response:
    return httpx.Response(200 if all(replicas.values()) else 503, json={"replicas": replicas})


def refusal(port: int = PORT) -> Exception:
    """What keeps a run from being ready."""
    with pytest.raises((ConfigError, LaunchFailed)) as caught, running(CONFIG, port):
        raise AssertionError("it answers")
    return caught.value


def test_a_run_that_dies_says_where_its_log_is(place: Path, serve_run: Callable[[str], None]) -> None:
    serve_run("echo no such module; exit 3")

    assert str(refusal()) == f"serve run ended with status 3 (no such module); its log: {place / 'serve.log'}"
    assert (place / "serve.log").read_text() == "no such module\n"


def test_ray_whose_node_was_late_is_started_again_and_not_for_ever(
    place: Path, serve_run: Callable[[str], None], tmp_path: Path
) -> None:
    late = "Exception: The current node timed out during startup. The GCS has become overloaded."
    serve_run(f"echo start >> {tmp_path / 'starts'}; echo '{late}'; exit 1")
    told: list[str] = []

    with pytest.raises(LaunchFailed, match="node timed out during startup"), running(CONFIG, PORT, tell=told.append):
        pass
    assert (tmp_path / "starts").read_text() == "start\n" * launch.MAX_STARTS
    assert sum("started again" in each for each in told) == launch.MAX_STARTS - 1


def test_ray_whose_node_was_late_once_answers_after_the_second_start(
    place: Path, serve_run: Callable[[str], None], answers: Answers, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    serve_run(f"if mkdir {started}; then echo 'node timed out during startup'; exit 1; fi; exec sleep 600")
    answers(*[httpx.ConnectError("refused")] * 5, ready(prefill=1))

    with running(CONFIG, PORT) as deployment:
        assert deployment.process.poll() is None
    assert deployment.process.poll() == -signal.SIGTERM


def test_a_run_that_is_never_ready_is_stopped(
    place: Path, serve_run: Callable[[str], None], answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_run("exec sleep 600")
    answers(httpx.ConnectError("refused"))
    monkeypatch.setattr(launch, "READY_PATIENCE_S", 0.05)
    stopped: list[subprocess.Popen[bytes]] = []
    stop = launch._stop

    def stop_and_tell(process: "subprocess.Popen[bytes]") -> None:
        stop(process)
        stopped.append(process)

    monkeypatch.setattr(launch, "_stop", stop_and_tell)

    assert str(refusal()) == f"not ready after 0 s; its log: {place / 'serve.log'}"
    assert [process.poll() for process in stopped] == [-signal.SIGTERM]


@for_each(
    ("proxy", "location"), [({}, "Disabled"), ({"haproxy": True}, "HeadOnly"), ({"python_proxy": True}, "HeadOnly")]
)
def test_a_proxy_can_be_asked_for_where_the_file_has_none(
    proxy: dict[str, Any], location: str, place: Path, serve_run: Callable[[str], None], answers: Answers
) -> None:
    serve_run("exec sleep 600")
    answers(ready(prefill=1))
    with running(CONFIG, PORT, **proxy):
        assert load(place / "serve.yaml")["proxy_location"] == location


def test_a_run_tells_how_far_it_is_and_is_stopped_at_the_end(
    place: Path, serve_run: Callable[[str], None], answers: Answers
) -> None:
    serve_run('echo "$@"; exec sleep 600')
    answers(
        httpx.ConnectError("refused"),
        httpx.ConnectError("refused"),
        httpx.Response(404, text="not found"),
        ready(prefill=1, decode=0),
        ready(prefill=1, decode=1),
    )
    told: list[str] = []

    with running(CONFIG, PORT, tell=told.append) as deployment:
        assert deployment.url == f"http://127.0.0.1:{PORT}"
        assert deployment.process.poll() is None
        assert load(place / "serve.yaml")["http_options"]["port"] == PORT

    assert deployment.process.poll() is not None
    assert deployment.log == place / "serve.log"
    assert told == [
        "Ray starts",
        "the gateway starts",
        "ready replicas: prefill: 1, decode: 0",
        "ready replicas: prefill: 1, decode: 1",
    ]


def test_a_port_that_somebody_has_starts_nothing_and_says_who(
    place: Path, serve_run: Callable[[str], None], tmp_path: Path
) -> None:
    """Before Ray starts, and not as an alert of HAProxy's in the log."""
    serve_run(f"touch {tmp_path / 'started'}")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = str(refusal(port))

    assert said.startswith(f"port: got {port}; allowed: ")
    assert f"process {os.getpid()} " in said
    assert not (tmp_path / "started").exists()


def test_a_deployment_that_a_killed_launcher_left_behind_is_named(place: Path, tmp_path: Path) -> None:
    listen = "import socket, sys; one = socket.create_server(('127.0.0.1', 0)); print(one.getsockname()[1], flush=True)"
    script = f"{listen}; sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", script, launch.SERVE_RUN], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert f"kill {process.pid} stops it" in str(refusal(port))


def test_what_the_run_leaves_behind_is_killed_with_it(
    place: Path, serve_run: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_run("sleep 600 & echo $!; wait")
    log = place / "serve.log"
    monkeypatch.setattr(httpx, "get", lambda url, **_: ready(unified=log.read_text().count("\n")))

    with running(CONFIG, PORT):
        child = psutil.Process(int(log.read_text()))

    assert all_end([child])


def test_a_wrong_configuration_starts_nothing(
    place: Path, serve_run: Callable[[str], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    serve_run(f"touch {tmp_path / 'started'}")
    assert main([str(tmp_path / "nowhere.yaml")]) == 2
    assert "config: got" in capsys.readouterr().out
    assert not (tmp_path / "started").exists()
