"""Who did what to a deployment beside asking it: calls refused for whose they are, adapters, new configurations."""

import logging
import os
import queue
import threading
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from io import FileIO, TextIOWrapper
from logging.handlers import RotatingFileHandler

import msgspec

from deployments.config import ROOT
from policies.errors import ConfigError

FIELD = "gateway.audit_log"
FILE_BYTES, NUM_FORMER_FILES = 16 << 20, 4
"""Of the file that is written, and of those before it: five of them are some 400,000 lines."""
CLOSE_PATIENCE_S = 5.0
MOST_WAITING = 10_000
"""Lines, while a disk hangs; what comes then is counted, and not kept."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody has done, or tried to.

    Args:
        did: The path that was called, or what it was that came.
        status: What came of it, as HTTP has it.
        code: The error's, where it is one.
        what: To what: an adapter, what has changed.
        tenant: Who; empty where that is not known.
        client: The address that it came from, as the gateway sees it.
    """

    did: str
    status: int
    code: str = ""
    what: str = ""
    tenant: str = ""
    client: str = ""


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: str
    gateway: str
    entry: AuditEntry
    lines_lost: int = 0


class NoAuditLog:
    """Nobody wants to know."""

    def __bool__(self) -> bool:
        """Whether entries are kept, so that who it was is worth finding out."""
        return False

    def note(self, entry: AuditEntry) -> None:
        """Somebody has done something."""

    def close(self) -> None:
        """There is nothing to close."""


class AuditLog(NoAuditLog):
    """A line of JSON for each entry. A thread writes it. Make it with :func:`open_audit_log`.

    Args:
        file: Writes a line, and begins another file when one is full.
        gateway: Whose it is.
    """

    def __init__(self, file: logging.Handler, gateway: str) -> None:
        self._gateway = gateway
        self._num_lost = 0
        self._file = file
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="audit-log", daemon=True)
        self._thread.start()

    def __bool__(self) -> bool:
        return True

    def note(self, entry: AuditEntry) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = _Line(at=at, gateway=self._gateway, entry=entry, lines_lost=self._num_lost)
        try:
            self._waiting.put_nowait(logging.makeLogRecord({"msg": msgspec.json.encode(line).decode()}))
        except queue.Full:
            self._num_lost += 1
        else:
            self._num_lost = 0

    def close(self) -> None:
        """Writes what waits, as far as the disk takes it in time."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_PATIENCE_S)
        self._thread.join(CLOSE_PATIENCE_S)

    def _write(self) -> None:
        for line in iter(self._waiting.get, None):
            self._file.handle(line)
        self._file.close()


class _PrivateFiles(RotatingFileHandler):
    """Files that this user alone may read."""

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(FileIO(self.baseFilename, "a", opener=partial(os.open, mode=0o600)), "utf-8")


def open_audit_log(folder: str | None, gateway: str) -> NoAuditLog:
    """Begins one, ``<folder>/<gateway>-<pid>.audit.jsonl``, which nobody else may read; none, where no folder is named.

    Args:
        folder: Absolute, or relative to the application's folder; made when it is not there.
        gateway: Whose it is.

    Raises:
        ConfigError: The folder can't be made or written to.
    """
    if folder is None:
        return NoAuditLog()
    path = ROOT / folder / f"{gateway}-{os.getpid()}.audit.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _PrivateFiles(path, maxBytes=FILE_BYTES, backupCount=NUM_FORMER_FILES)
    except OSError as error:
        raise ConfigError(FIELD, folder, f"a folder that gateways can write to ({error})") from error
    return AuditLog(file, gateway)
