"""A run on disk: ``run.json`` says what was run and what it came to, ``requests.jsonl.gz`` holds a line for each
request.

Whoever drove the scenario leaves the same folder, so that a report can lay a simulated run beside one over HTTP.
"""

import gzip
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cluster.sim.run_table import OUTCOMES, REASONS, ROW_TYPE, RunTable
from loadtests.results.metrics import ALL
from loadtests.results.run_record import VERSION, RequestDetails, RunRecord
from policies.errors import ConfigError

RUN_FILE, REQUESTS_FILE = "run.json", "requests.jsonl.gz"
SIMULATOR, ASYNCIO, LOCUST = DRIVERS = ("simulator", "asyncio", "locust")
NO_DETAILS = RequestDetails()


class SavedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its folder has it.

    Args:
        record: What was run, and what it came to.
        table: A row for each request; what replicas did is not kept.
        details: What else is known of each row, in the same order; empty where nothing is.
    """

    record: RunRecord
    table: RunTable
    details: Sequence[RequestDetails] = ()


class _Version(msgspec.Struct, frozen=True):
    """What every version of ``run.json`` has."""

    version: int


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request; see :class:`cluster.sim.run_table.RunTable` for the columns."""

    logical_request: int
    session: int
    is_last: bool
    retry_index: int
    traffic_class: str
    scheduled_s: float
    sent_s: float | None
    first_token_s: float | None
    end_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    full_output_tokens: int
    outcome: str
    reason: str
    attempts: int
    hedges: int
    computed_prompt_tokens: int
    gateway: int
    lane: str = ""
    longest_gap_s: float | None = None
    stages_s: dict[str, float] = {}


_TIMES = ("sent_s", "first_token_s")


def write(folder: Path, saved: SavedRun) -> None:
    """Writes the folder, over a run that it may hold already.

    Raises:
        OSError: It can't be written.
    """
    write_requests(folder, saved.table, saved.details)
    write_record(folder, saved.record)


def write_requests(folder: Path, table: RunTable, details: Sequence[RequestDetails] = ()) -> None:
    """Writes the requests alone. The record of an earlier run goes, so that the folder holds no run until it has one.

    Args:
        folder: Where to.
        table: A row for each request.
        details: What else is known of each row, in the same order; empty where nothing is.

    Raises:
        OSError: It can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN_FILE).unlink(missing_ok=True)
    encoder = msgspec.json.Encoder()
    with gzip.open(folder / REQUESTS_FILE, "wb", compresslevel=6) as file:
        file.writelines(encoder.encode(line) + b"\n" for line in _lines(table, details))


def write_record(folder: Path, record: RunRecord) -> None:
    """Writes what a run came to, which makes the folder a run.

    Raises:
        OSError: It can't be written.
    """
    encoded = msgspec.json.encode(record)
    (folder / RUN_FILE).write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")


def read(folder: Path) -> SavedRun:
    """Reads a folder.

    Raises:
        ConfigError: It holds no run of this version.
    """
    try:
        written = (folder / RUN_FILE).read_bytes()
        version = msgspec.json.decode(written, type=_Version).version
        if version != VERSION:
            allowed = f"a run of version {VERSION}; the release that made this one reads it"
            raise ConfigError(str(folder / RUN_FILE), version, allowed)
        record = msgspec.json.decode(written, type=RunRecord)
        decoder = msgspec.json.Decoder(_Line)
        with gzip.open(folder / REQUESTS_FILE) as file:
            lines = [decoder.decode(line) for line in file]
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise ConfigError("RUN", str(folder), f"a folder with {RUN_FILE} and {REQUESTS_FILE} ({error})") from error
    offered = record.metrics.get(ALL, {}).get("offered_requests")
    if not lines and offered is not None and offered.value:
        raise ConfigError(str(folder / REQUESTS_FILE), "no line", f"the requests that {RUN_FILE} speaks of")
    details = [_details_of(line) for line in lines]
    return SavedRun(record=record, table=_table(lines, record), details=details)


def _lines(table: RunTable, known: Sequence[RequestDetails]) -> Iterator[_Line]:
    classes, details = table.traffic_classes, known or [NO_DETAILS] * len(table)
    columns = {name: getattr(table, name).tolist() for name in ROW_TYPE.names or ()}
    columns["traffic_class"] = [classes[index] for index in columns["traffic_class"]]
    columns["outcome"] = [OUTCOMES[index] for index in columns["outcome"]]
    columns["reason"] = [REASONS[index] for index in columns["reason"]]
    for name in _TIMES:
        columns[name] = [_finite(value) for value in columns[name]]
    for row, detail in zip(zip(*columns.values(), strict=True), details, strict=True):
        values: dict[str, Any] = dict(zip(columns, row, strict=True))
        yield _Line(**values, lane=detail.lane, longest_gap_s=_finite(detail.longest_gap_s), stages_s=detail.stages_s)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _details_of(line: _Line) -> RequestDetails:
    gap_s = math.nan if line.longest_gap_s is None else line.longest_gap_s
    return RequestDetails(lane=line.lane, longest_gap_s=gap_s, stages_s=line.stages_s)


def _table(lines: Sequence[_Line], record: RunRecord) -> RunTable:
    numbers = {"traffic_class": record.traffic_classes, "outcome": OUTCOMES, "reason": REASONS}
    columns: dict[str, Any] = {}
    for name in ROW_TYPE.names or ():
        values = [getattr(line, name) for line in lines]
        if name in numbers:
            number_of = {text: number for number, text in enumerate(numbers[name])}
            values = [number_of[value] for value in values]
        columns[name] = np.array([math.nan if value is None else value for value in values], dtype=ROW_TYPE[name])
    ended_s = max((line.end_s for line in lines), default=0.0)
    return RunTable(traffic_classes=record.traffic_classes, duration_s=ended_s, **columns)
