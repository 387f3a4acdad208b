"""A run on disk: ``run.json`` says what was run and what it came to, ``requests.jsonl.gz`` holds a line for each try.

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
from loadtests.results.client_health import ClientHealth
from loadtests.results.marks import Judgement
from loadtests.results.metrics import ALL, ClassSlo, Figure, Figures
from policies.errors import ConfigError

VERSION = 1
"""Of the folder's format."""
MET, MISSED, NOT_JUDGED = "met", "missed", "not judged"
RUN_FILE, REQUESTS_FILE = "run.json", "requests.jsonl.gz"
SIMULATOR, ASYNCIO, LOCUST = DRIVERS = ("simulator", "asyncio", "locust")


class TryDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a driver knows of one try beside its row in the run's table.

    Args:
        lane: Where the router put it; empty where nobody says.
        longest_gap_s: The longest time between two events that carried tokens; NaN without two.
        stages_s: The service's own account of where the time went, by stage; empty where it gives none.
    """

    lane: str = ""
    longest_gap_s: float = math.nan
    stages_s: dict[str, float] = {}


NO_DETAILS = TryDetails()


class MarkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one of the scenario's marks.

    Args:
        text: The mark in words, with its limit.
        value: What was held against the limit; ``None`` where it could not be judged.
        verdict: ``MET``, ``MISSED`` or ``NOT_JUDGED``.
        problem: Why it was not judged; empty otherwise.
    """

    text: str
    value: float | None
    verdict: str
    problem: str = ""


def mark_result(judgement: Judgement) -> MarkResult:
    """What became of a mark that was judged, or could not be."""
    if judgement.has_passed is None:
        return MarkResult(text=judgement.mark.text, value=None, verdict=NOT_JUDGED, problem=judgement.problem)
    verdict = MET if judgement.has_passed else MISSED
    return MarkResult(text=judgement.mark.text, value=judgement.value, verdict=verdict)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What a deployment said of itself at one time of the run.

    Args:
        at_s: On the run's clock.
        gauges: Values by name: ``queue_requests``, ``queue_work_s``, ``shed_fraction``, ``requests_open``, and others.
    """

    at_s: float
    gauges: dict[str, float]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What ``run.json`` holds.

    Args:
        version: Of the format.
        scenario: The scenario's name.
        description: The question that it answers.
        driver: One of ``DRIVERS``.
        variant: ``policy``, or the scenario's baseline that was run.
        target: What served: a base URL, or the profile and fleet of the simulator.
        seed: Of the plan.
        started_at: Date and time, ISO 8601; empty in virtual time.
        duration_s: For how long there were arrivals, on the run's clock.
        warm_up_s: What was wanted before is not measured.
        rate_fraction: Rate of the plan's arrivals, as a fraction of the scenario's.
        traffic_classes: Names, in the table's order.
        slos: The SLOs of each.
        figures: Every metric by traffic class that is defined there; see :func:`defined`.
        marks: The scenario's marks.
        verdict: ``PASS``, ``FAIL`` or ``INVALID``.
        problems: Why it is invalid, a sentence each.
        notes: What a reader has to know.
        health: How the client fared; ``None`` in virtual time.
        moments: What the deployment said of itself, in order of time.
        versions: Of the packages that matter.
    """

    version: int = VERSION
    scenario: str
    description: str
    driver: str
    variant: str
    target: str
    seed: int
    started_at: str
    duration_s: float
    warm_up_s: float
    rate_fraction: float
    traffic_classes: tuple[str, ...]
    slos: dict[str, ClassSlo]
    figures: dict[str, dict[str, Figure]]
    marks: tuple[MarkResult, ...]
    verdict: str
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    health: ClientHealth | None
    moments: tuple[Moment, ...]
    versions: dict[str, str]


class SavedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its folder has it.

    Args:
        record: What was run, and what it came to.
        table: A row for each try; what replicas did is not kept.
        details: What else is known of each row, in the same order; empty where nothing is.
    """

    record: RunRecord
    table: RunTable
    details: Sequence[TryDetails] = ()


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One try; see :class:`cluster.sim.run_table.RunTable` for the columns."""

    intent: int
    session: int
    is_last: bool
    try_index: int
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


def write_requests(folder: Path, table: RunTable, details: Sequence[TryDetails] = ()) -> None:
    """Writes the requests alone. The record of an earlier run goes, so that the folder holds no run until it has one.

    Args:
        folder: Where to.
        table: A row for each try.
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
        record = msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=RunRecord)
        if record.version != VERSION:
            raise ConfigError(str(folder / RUN_FILE), record.version, f"a run of version {VERSION}")
        decoder = msgspec.json.Decoder(_Line)
        with gzip.open(folder / REQUESTS_FILE) as file:
            lines = [decoder.decode(line) for line in file]
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise ConfigError("RUN", str(folder), f"a folder with {RUN_FILE} and {REQUESTS_FILE} ({error})") from error
    offered = record.figures.get(ALL, {}).get("offered_intents")
    if not lines and offered is not None and offered.value:
        raise ConfigError(str(folder / REQUESTS_FILE), "no line", f"the requests that {RUN_FILE} speaks of")
    details = [_details_of(line) for line in lines]
    return SavedRun(record=record, table=_table(lines, record), details=details)


def defined(figures: Figures) -> dict[str, dict[str, Figure]]:
    """Figures without those that are NaN, which JSON does not know."""
    return {
        group: {name: figure for name, figure in of_group.items() if math.isfinite(figure.value)}
        for group, of_group in figures.items()
    }


def _lines(table: RunTable, known: Sequence[TryDetails]) -> Iterator[_Line]:
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


def _details_of(line: _Line) -> TryDetails:
    gap_s = math.nan if line.longest_gap_s is None else line.longest_gap_s
    return TryDetails(lane=line.lane, longest_gap_s=gap_s, stages_s=line.stages_s)


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
