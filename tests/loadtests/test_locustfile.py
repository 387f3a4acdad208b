"""The locustfile as load testers use it: distributed, in the browser, interrupted, and with what can't be run."""

import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.peer_port import free_port
from loadtests.drivers.live_run import plan_of
from loadtests.results.run_folder import read
from tests.loadtests.live_drivers import LOCUST, PATIENCE_S, locust_command, run
from tests.loadtests.live_scenarios import write_scenario
from tests.loadtests.timed_server import ROOT, timed_server
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with timed_server() as found:
        yield found


def test_two_workers_send_the_plan_that_one_would_and_tags_choose_classes(url: str, tmp_path: Path) -> None:
    """Every logical request of the chosen class once, from whichever process; and one verdict of all together."""
    scenario = write_scenario(tmp_path)
    arguments = ["--headless", "--tags", "short", "--processes", "2", "--save", str(tmp_path / "run")]
    port = str(free_port("127.0.0.1"))
    process = run(locust_command(scenario, url, *arguments, "--master-bind-port", port, "--master-port", port))

    plan = plan_of(str(scenario), seed=1, rate_fraction=1.0, salt="", classes=["short"])
    planned = [(each.request.logical_request, each.at_s) for each in plan.clients().arrivals()]
    saved = read(tmp_path / "run")
    assert (
        sorted(zip(saved.table.logical_request.tolist(), saved.table.scheduled_s.tolist(), strict=True))
        == planned
        != []
    )
    assert set(saved.table.traffic_class.tolist()) == {0}
    assert process.returncode == {"PASS": 0, "FAIL": 1, "INVALID": 2}[saved.record.verdict]
    assert saved.record.health is not None
    assert saved.record.health.sent == len(saved.table)


def test_a_worker_that_can_not_take_its_order_ends_the_run_and_says_why(url: str, tmp_path: Path) -> None:
    """A scenario file that is on the master's machine alone; nobody waits for a share that never comes."""
    name = write_scenario(tmp_path).name
    port = str(free_port("127.0.0.1"))
    worker = subprocess.Popen(
        [sys.executable, *LOCUST, "--worker", "--master-port", port], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        locustfile = [
            "-f",
            str(ROOT / "loadtests" / "locustfile.py"),
            "--headless",
            "--master",
            "--expect-workers",
            "1",
        ]
        options = ["--master-bind-port", port, "--scenario", name, "--host", url, "--save", "run"]
        command = [sys.executable, "-m", "locust", *locustfile, *options]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=False)
    finally:
        worker.terminate()
        worker.wait(PATIENCE_S)

    (problem, *_) = read(tmp_path / "run").record.problems
    assert process.returncode == 2
    assert problem.startswith("a worker failed: the order could not be taken: ConfigError: scenario: got 'small.yaml'")


def page(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        body: bytes = answer.read()
        return body


def lines_of(port: int) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(page(port, "/stats/requests"))["extended_stats"][0]["data"]
    except OSError:
        return []
    return found


def test_the_page_has_a_table_of_lanes_and_classes_and_an_interrupted_run_leaves_its_folder(
    url: str, tmp_path: Path
) -> None:
    """SIGTERM in the middle: what had ended is written, and the run is invalid."""
    port = free_port("127.0.0.1")
    scenario = write_scenario(tmp_path, duration_s=600.0, rate_per_s=10.0)
    arguments = [
        "--web-host",
        "127.0.0.1",
        "--web-port",
        str(port),
        "--autostart",
        "--autoquit",
        "0",
        "--save",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen(locust_command(scenario, url, *arguments), cwd=ROOT, stdout=subprocess.PIPE)
    try:
        wait_until(lambda: {each["traffic_class"] for each in lines_of(port)} == {"short", "long"}, "both classes")
        (line,) = (each for each in lines_of(port) if each["traffic_class"] == "short")
        html = page(port, "/").decode()
    finally:
        process.terminate()
        printed, _ = process.communicate(timeout=PATIENCE_S)

    assert line["completed"] > 0
    assert line["ttft_p50_ms"] > 0
    assert "Lanes and classes" in html
    record = read(tmp_path / "run").record
    assert (process.returncode, record.verdict) == (2, "INVALID")
    assert any("interrupted" in problem for problem in record.problems)
    assert "small: INVALID" in printed.decode()


def test_sigterm_ends_a_headless_run_as_ctrl_c_does(url: str, tmp_path: Path) -> None:
    """What had ended by then is printed and written; locust's own handler comes only after a headless test."""
    scenario = write_scenario(tmp_path, duration_s=600.0, rate_per_s=10.0)
    command = locust_command(scenario, url, "--headless", "--save", str(tmp_path / "run"))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        try:
            next(line for line in process.stderr if "All users spawned" in line)
        finally:
            process.terminate()
        printed, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, read(tmp_path / "run").record.verdict) == (2, "INVALID")
    assert "small: INVALID" in printed


INTERRUPTED_ELSEWHERE = """
import os, signal, sys
from loadtests.locustfile import end_in_order
import gevent

def interrupt():
    try:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        gevent.sleep(30)
    except KeyboardInterrupt:
        print("the wrong greenlet")

end_in_order()
gevent.spawn(interrupt)
try:
    gevent.sleep(30)
except KeyboardInterrupt:
    print("the main greenlet")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_interrupt_reaches_the_main_greenlet_whichever_runs_when_it_comes(name: str) -> None:
    """Python would raise it where the process is, and a thread that ends of it ends alone."""
    command = [sys.executable, "-c", INTERRUPTED_ELSEWHERE, name]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert ended.stdout == "the main greenlet\n"


def start(port: int, **form: str) -> dict[str, Any]:
    """Presses the button of locust's form."""
    body = urllib.parse.urlencode({"user_count": "1", "spawn_rate": "1"} | form).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/swarm", data=body, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def state(port: int) -> str:
    try:
        found: str = json.loads(page(port, "/stats/requests"))["state"]
    except OSError:
        return "not up"
    return found


def test_a_wrong_form_is_answered_in_the_page_and_the_next_runs_have_folders_of_their_own(
    url: str, tmp_path: Path
) -> None:
    """Neither a wrong value nor a wrong host is in the way of what comes after it."""
    port = free_port("127.0.0.1")
    arguments = ["--web-host", "127.0.0.1", "--web-port", str(port), "--save", str(tmp_path / "run")]
    command = locust_command(write_scenario(tmp_path), url, *arguments)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: state(port) == "ready", "locust is up")
        wrong = [start(port, rate_fraction="abc"), start(port, rate_fraction="0"), start(port, scenario="nowhere")]
        assert start(port, host="http://127.0.0.1:9")["success"]
        wait_until(lambda: state(port) == "stopped", "the run without a deployment is over")
        for folder in ("run", "run-2"):
            assert start(port, host=url)["success"]
            wait_until((tmp_path / folder / "junit.xml").exists, f"{folder} is written")
            wait_until(lambda: state(port) == "stopped", "the run is over")
    finally:
        process.terminate()
        process.wait(PATIENCE_S)

    assert [each["success"] for each in wrong] == [False] * 3
    assert [each["message"].split(":")[0] for each in wrong] == ["rate_fraction", "rate_fraction", "scenario"]
    sent = [read(tmp_path / folder).table.logical_request.tolist() for folder in ("run", "run-2")]
    assert sorted(sent[0]) == sorted(sent[1]) != []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["--tags", "tall"], "traffic classes", id="tag"),
        pytest.param(["--exclude-tags", "short", "long"], "not all that are sent", id="all-excluded"),
        pytest.param(["--save", __file__], "a folder that can be written", id="save-to-a-file"),
    ],
)
def test_what_can_not_be_run_is_exit_status_2_and_says_why(
    arguments: list[str], says: str, url: str, tmp_path: Path
) -> None:
    process = run(locust_command(write_scenario(tmp_path), url, "--headless", *arguments))

    assert process.returncode == 2
    assert says in process.stderr
