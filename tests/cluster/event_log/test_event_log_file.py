"""A log is written off the hot path, and whatever becomes of its disk, nobody is held up."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest

from cluster import DispatcherListener, EventLogFile, NoEventLog
from cluster.event_log.frames import CLOSED, LogReader
from routing import FirstTokenReceived, OutcomeKind, Respond, SetTimer
from routing.request.effects import Outcome
from tests.cluster.logged import a_header
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
EVENT = FirstTokenReceived(attempt_id="q.0")
TIMER = SetTimer(token="q:deadline", at_s=60.0)


class SmallDisk(FileIO):
    """A file on a disk that has room for so many bytes, writes what fits, and then says that it is full."""

    room_bytes = 2000

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        room = self.room_bytes - self.tell()
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data[:room])


class HungDisk(FileIO):
    """A file whose writes take until the test lets them go on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x")
        self.goes_on = threading.Event()

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        assert self.goes_on.wait(60)
        return super().write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gw.log"


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def begin(path: Path, complaints: list[str]) -> Iterator[Callable[[], EventLogFile]]:
    """Begins a log at ``path``; it is closed when the test is over."""
    begun: list[EventLogFile] = []

    def make() -> EventLogFile:
        begun.append(EventLogFile(FileIO(path, "x"), a_header(), complaints.append))
        return begun[-1]

    yield make
    for each in begun:
        each.close()


def read(path: Path) -> tuple[list[float], str | None, int]:
    """Times of the records, the reason of the end, and bytes of a record that is not whole."""
    with path.open("rb") as file:
        reader = LogReader(file)
        times = [record.now_s for record in reader]
    return times, reader.end_reason, reader.cut_off_bytes


def tell(log: DispatcherListener, number: int) -> None:
    for now in range(number):
        log.on_event(float(now), EVENT, [TIMER])


def test_what_was_told_is_in_the_file_once_the_log_is_closed(
    begin: Callable[[], EventLogFile], path: Path, complaints: list[str]
) -> None:
    log = begin()
    tell(log, 10_000)

    log.close()

    assert read(path) == ([float(now) for now in range(10_000)], CLOSED, 0)
    assert complaints == []


def test_what_was_told_is_in_the_file_soon_without_anybody_closing_it(
    begin: Callable[[], EventLogFile], path: Path
) -> None:
    log = begin()
    tell(log, 3)

    wait_until(lambda: path.stat().st_size > 0 and len(read(path)[0]) == 3, "the records are on the disk")

    assert read(path)[1] is None, "the end is still to come"


def test_an_exception_is_in_the_log_by_name(begin: Callable[[], EventLogFile], path: Path) -> None:
    log = begin()
    log.on_error(1.0, EVENT, KeyError("q"))
    log.close()

    with path.open("rb") as file:
        (record,) = LogReader(file)
    assert bytes(record.answer) == b"\xa8KeyError"


def test_what_comes_after_the_end_is_dropped(begin: Callable[[], EventLogFile], path: Path) -> None:
    log = begin()
    tell(log, 2)
    log.close()
    tell(log, 2)
    log.close()

    assert read(path) == ([0.0, 1.0], CLOSED, 0)


def test_a_full_disk_ends_the_log_with_a_word_and_nobody_is_held_up(path: Path, complaints: list[str]) -> None:
    log = EventLogFile(SmallDisk(path, "x"), a_header(), complaints.append)
    tell(log, 1000)
    wait_until(lambda: bool(complaints), "somebody is told")
    tell(log, 1000)

    log.close()

    times, reason, cut_off_bytes = read(path)
    assert reason is not None
    assert "No space left" in reason
    assert cut_off_bytes == 0, "what was written in part is taken back"
    assert times == [float(now) for now in range(len(times))]
    assert len(complaints) == 1
    assert str(path) in complaints[0]


def test_a_disk_without_room_for_a_header_leaves_no_log(path: Path, complaints: list[str]) -> None:
    class FullDisk(SmallDisk):
        room_bytes = 0

    log = EventLogFile(FullDisk(path, "x"), a_header(), complaints.append)
    tell(log, 10)
    wait_until(lambda: bool(complaints), "somebody is told")
    log.close()

    assert path.read_bytes() == b""


def test_a_limit_of_the_system_is_met_as_a_full_disk_is(path: Path) -> None:
    """The same with nothing but the operating system between the log and its file."""
    program = (
        "import resource, sys\n"
        "from io import FileIO\n"
        "from cluster import EventLogFile\n"
        "from tests.cluster.logged import a_header\n"
        "from tests.cluster.event_log.test_event_log_file import tell\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "log = EventLogFile(FileIO(sys.argv[1], 'x'), a_header(), print)\n"
        "tell(log, 1000)\n"
        "log.close()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, path], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )

    assert "File too large" in done.stdout
    assert "File too large" in (read(path)[1] or "")


def test_a_disk_that_hangs_costs_bounded_memory_and_then_the_log(path: Path, complaints: list[str]) -> None:
    disk = HungDisk(path)
    log = EventLogFile(disk, a_header(), complaints.append, max_waiting_bytes=1000)
    tell(log, 5000)

    assert sum(map(len, log._waiting)) < 1200

    disk.goes_on.set()
    log.close()
    times, reason, _ = read(path)
    assert times == [float(now) for now in range(len(times))], "no gaps"
    assert 0 < len(times) < 50
    assert reason == "events came faster than they could be written"
    assert len(complaints) == 1


def test_what_is_written_makes_room_for_more(path: Path, complaints: list[str]) -> None:
    """Over its life a log may be much longer than what may wait at a time."""
    log = EventLogFile(FileIO(path, "x"), a_header(), complaints.append, max_waiting_bytes=1000)
    for _ in range(4):
        tell(log, 10)
        wait_until(lambda: log._taken_bytes == log._written_bytes, "all of it is on the disk")
    taken_bytes = log._taken_bytes
    log.close()

    assert taken_bytes > 2000
    assert (len(read(path)[0]), read(path)[1], complaints) == (40, CLOSED, [])


def test_a_value_that_cannot_be_written_down_ends_the_log_and_nothing_else(
    begin: Callable[[], EventLogFile], path: Path, complaints: list[str]
) -> None:
    """A policy can put anything into an effect."""
    log = begin()
    tell(log, 2)
    odd = Respond(request_id="q", outcome=Outcome(kind=OutcomeKind.REFUSED, retry_after_s=1j))  # type: ignore[arg-type]

    log.on_event(2.0, EVENT, [TIMER, odd])
    log.close()

    times, reason, cut_off_bytes = read(path)
    assert (times, cut_off_bytes) == ([0.0, 1.0], 0)
    assert reason is not None
    assert "complex" in reason
    assert len(complaints) == 1


def test_no_event_log_takes_whatever_it_is_told() -> None:
    log = NoEventLog()
    tell(log, 1)
    log.on_error(1.0, EVENT, KeyError("q"))
    log.close()
