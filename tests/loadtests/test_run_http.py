"""The asyncio runner's command line: what it leaves, and its exit status."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import loadtests.results.client_health
from loadtests.results.run_folder import read
from loadtests.run_http import main
from tests.loadtests.completion_server import Answer, CompletionServer, refusing, silence, whole
from tests.loadtests.live_scenarios import write_scenario
from tests.waiting import until


@pytest.fixture
def _any_client_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server shares this process and its core: how late the client is says nothing here."""
    monkeypatch.setattr(loadtests.results.client_health, "MOST_LAG_S", 1e9)
    monkeypatch.setattr(loadtests.results.client_health, "MOST_CPU_FRACTION", 1e9)
    monkeypatch.setattr(loadtests.results.client_health, "LEAST_ACHIEVED_FRACTION", 0.0)


async def run_against(answer: Answer | None, path: Path, *arguments: str) -> tuple[int, CompletionServer]:
    async with CompletionServer(answer) as server:
        return await server.in_a_thread(main, [str(path), "--host", server.url, *arguments]), server


@pytest.mark.usefixtures("_any_client_will_do")
async def test_a_run_that_meets_its_checks_leaves_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, server = await run_against(None, write_scenario(tmp_path), "--save", str(tmp_path / "run"))

    saved = read(tmp_path / "run")
    assert (status, saved.record.verdict, saved.record.driver) == (0, "PASS", "asyncio")
    assert len(saved.table) == len(server.bodies) > 5
    assert {body["model"] for body in server.bodies} == {"served-model"}
    assert (tmp_path / "run" / "junit.xml").exists()
    assert "small: PASS" in capsys.readouterr().out


@pytest.mark.usefixtures("_any_client_will_do")
async def test_a_missed_check_is_exit_status_1(tmp_path: Path) -> None:
    """A refusal by policy is a miss and says why."""
    answer = refusing(429, "shed", **{"x-spillway-lane": "long"})
    status, _ = await run_against(answer, write_scenario(tmp_path), "--save", str(tmp_path / "run"))

    saved = read(tmp_path / "run")
    assert (status, saved.record.verdict) == (1, "FAIL")
    assert saved.record.health is not None
    assert set(saved.record.health.errors) == {"HTTP 429 shed"}
    assert {each.lane for each in saved.details} == {"long"}


@pytest.mark.usefixtures("_any_client_will_do")
async def test_what_is_due_beyond_the_guard_is_dropped_and_the_run_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is neither queued nor sent later."""
    ended = asyncio.Event()

    async def answer(request: Any, body: Any) -> Any:
        await ended.wait()
        return await whole(request, body)

    async with CompletionServer(answer) as server:
        arguments = [str(write_scenario(tmp_path)), "--host", server.url, "--max-in-flight", "2"]
        running = asyncio.create_task(server.in_a_thread(main, arguments))
        await until(lambda: server.num_open == 2, "the guard is reached")
        await asyncio.wait((running,), timeout=2.0)  # the plan's end: all of it was due by then
        ended.set()
        status = await running

    assert (status, len(server.bodies)) == (2, 2)
    assert "were not sent, because too many were in flight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["nowhere", "--host", "http://127.0.0.1:9"], "a name in the library", id="scenario"),
        pytest.param(["ragged", "--host", "http://127.0.0.1:9"], "base URL of an OpenAI endpoint", id="host"),
        pytest.param(["ragged", "--host", "x", "--rate-fraction", "2"], "above 0 and at most 1", id="fraction"),
        pytest.param(["ragged", "--host", "x", "--tags", "tall"], "traffic classes", id="tag"),
        pytest.param(["ragged", "--host", "x", "--duration", "4"], "less than duration_s", id="duration"),
    ],
)
def test_what_can_not_be_run_is_exit_status_2_and_says_why(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


async def test_an_interrupt_leaves_what_there_is_and_an_invalid_run(tmp_path: Path) -> None:
    """What had ended by then is in the folder; SIGTERM is Ctrl-C, which a job in the background does not hear."""

    async def answer(request: Any, body: Any) -> Any:
        return await (whole if len(server.bodies) < 3 else silence)(request, body)

    async with CompletionServer(answer) as server:
        command = ["-m", "loadtests.run_http", str(write_scenario(tmp_path)), "--host", server.url]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, "--save", str(tmp_path / "run"), stdout=asyncio.subprocess.DEVNULL
        )
        await until(lambda: server.num_open >= 3, "requests that are never answered are in flight")
        process.terminate()
        status = await asyncio.wait_for(process.wait(), 60)

    record = read(tmp_path / "run").record
    assert (status, record.verdict) == (2, "INVALID")
    assert record.problems[0].startswith("the run was interrupted")
    assert len(read(tmp_path / "run").table) == 2
    assert (tmp_path / "run" / "junit.xml").exists()
