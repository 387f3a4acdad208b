"""Where a gateway's event log goes, and what its dispatcher's streams are called in it."""

import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import EventLogFile, NoEventLog
from cluster.event_log.frames import CLOSED, LogReader
from cluster.event_log.replay import replay
from deployments.config import ROOT, validated
from deployments.gateway.event_logs import LOGGER, open_event_log
from policies import ConfigError
from routing import ClientGone
from tests.cluster.logged import a_header
from tests.deployments.app_args import args, error_of
from tests.tables import for_each


@pytest.fixture(autouse=True)
def messages() -> Iterator[list[logging.LogRecord]]:
    """What is said to Serve's logger, which passes nothing on."""
    heard: list[logging.LogRecord] = []
    ear = logging.Handler(logging.WARNING)
    ear.emit = heard.append  # type: ignore[assignment,method-assign]
    LOGGER.addHandler(ear)
    yield heard
    LOGGER.removeHandler(ear)


def test_there_is_no_log_unless_the_configuration_names_a_folder() -> None:
    assert isinstance(open_event_log(None, a_header()), NoEventLog)


def test_a_log_is_named_after_its_gateway_and_process(tmp_path: Path) -> None:
    log = open_event_log(str(tmp_path / "new" / "folder"), a_header())
    log.on_event(1.0, ClientGone(request_id="q"), [])
    log.close()

    (path,) = (tmp_path / "new" / "folder").iterdir()
    assert path.name == f"gw-{os.getpid()}.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "tenants are in it"
    with path.open("rb") as file:
        result = replay(file)
    assert (result.is_same, result.num_records, result.end_reason) == (True, 1, CLOSED)


def test_a_relative_folder_is_in_the_applications(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (ROOT / "deployments").is_dir()
    monkeypatch.setattr("deployments.gateway.event_logs.ROOT", tmp_path)
    open_event_log("events", a_header()).close()
    assert len(list((tmp_path / "events").iterdir())) == 1


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    open_event_log(str(tmp_path), a_header()).close()

    with pytest.raises(ConfigError, match="File exists"):
        open_event_log(str(tmp_path), a_header())

    (path,) = tmp_path.iterdir()
    with path.open("rb") as file:
        assert LogReader(file).header == a_header()


def test_a_folder_that_cannot_be_made_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    error = error_of(open_event_log, str(tmp_path / "file" / "events"), a_header())
    assert error.field == "gateway.event_log"


def test_a_full_disk_is_no_reason_not_to_serve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: list[logging.LogRecord]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("deployments.gateway.event_logs.FileIO", full)
        log = open_event_log(str(tmp_path), a_header())

    assert isinstance(log, NoEventLog)
    (message,) = messages
    assert "there will be no event log" in message.getMessage()


def test_a_log_that_ends_early_is_said_once_in_serves_log(tmp_path: Path, messages: list[logging.LogRecord]) -> None:
    log = open_event_log(str(tmp_path), a_header())
    assert isinstance(log, EventLogFile)
    for _ in range(3):
        log.on_event(1.0, ClientGone(request_id="\ud800"), [])
    log.close()

    (message,) = messages
    assert message.levelno == logging.ERROR
    assert "ends early" in message.getMessage()


@for_each("folder", ["", 3, True])
def test_what_is_no_folder_is_refused(folder: object) -> None:
    assert error_of(validated, args(gateway={"event_log": folder})).field == "gateway.event_log"
