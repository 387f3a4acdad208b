"""A recorded trace as one traffic class of a workload."""

import calendar
import csv
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from math import inf
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import numpy as np

from cluster.seeds import Seeds
from loadtests.schema.ranges import require, require_at_least, require_not_negative, require_positive
from loadtests.workloads.content import ID_MASK, key_of
from loadtests.workloads.lengths import Limit, limits_of, require_limit
from loadtests.workloads.streams import ClassStreams, Floats, Ints
from loadtests.workloads.workload import LogicalRequest
from policies.errors import ConfigError
from policies.views import Priority

WHOLE_NUMBER = "a whole number, at least 0"
TIMESTAMP = "a date and time such as 2023-11-16 18:15:46.6805900, in UTC"
MILLISECONDS = "milliseconds, at least 0"
MOONCAKE_BLOCK_TOKENS = 512
FILES_KEPT = 4
"""So many traces are read once for all runs that a process makes of them."""
_DATE_AND_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d+)?(?:Z|\+00:00)?")


class TraceRow(NamedTuple):
    """One request. ``at_s`` counts from any origin; ``blocks`` identify the blocks of the prompt, if published."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSchema:
    """What a source's files mean.

    Args:
        bin_s: Width of the bins to which the source rounded its timestamps down; 0: not at all.
        block_tokens: Tokens in a block; 0: the source has no block ids.
        rows: Reads a file's text; the path is for messages.
    """

    bin_s: float
    block_tokens: int
    rows: Callable[[Path, str], Iterator[TraceRow]]


def read_trace(path: Path, schema: TraceSchema, sha256: str | None) -> list[TraceRow]:
    """All rows in the order of the file.

    Args:
        path: The file; ``.gz`` is unpacked.
        schema: What it means.
        sha256: What the unpacked file must hash to; ``None``: anything.

    Raises:
        ConfigError: The file can't be read, is another file, or is malformed (file, line, column, what is allowed).
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError("path", str(path), f"a trace that can be read ({error})") from error
    digest = hashlib.sha256(data).hexdigest()
    require(sha256 in {None, digest}, "sha256", sha256, f"{digest}, which is that of {path} (unpacked)")
    rows = list(schema.rows(path, text))
    require(len(rows) > 0, "path", str(path), "a trace with at least one row")
    return rows


def _rows_kept(path: Path, schema: TraceSchema, sha256: str | None) -> list[TraceRow]:
    """As :func:`read_trace`, once for as long as the file is the same."""
    if not path.is_file():
        return read_trace(path, schema, sha256)
    its = path.stat()
    return _rows_at(path, schema, sha256, (its.st_mtime_ns, its.st_size))


@lru_cache(maxsize=FILES_KEPT)
def _rows_at(path: Path, schema: TraceSchema, sha256: str | None, as_of: tuple[int, int]) -> list[TraceRow]:
    return read_trace(path, schema, sha256)


def _azure_rows(path: Path, text: str) -> Iterator[TraceRow]:
    table = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip() for name in next(table, [])]
    columns = "TIMESTAMP", "ContextTokens", "GeneratedTokens"
    missing = [name for name in columns if name not in header]
    require(not missing, f"{path}, line 1", header, f"a header with the columns {', '.join(columns)}")
    places = [header.index(name) for name in columns]
    origin: int | None = None
    for cells in table:
        if not cells:
            continue
        line = f"{path}, line {table.line_num}"
        require(len(cells) == len(header), line, cells, f"{len(header)} columns, as in the header")
        at, prompt, output = (cells[place].strip() for place in places)
        seconds, fraction = _date_and_time(f"{line}, column TIMESTAMP", at)
        origin = seconds if origin is None else origin
        yield TraceRow(
            (seconds - origin) + fraction,
            _whole_number(f"{line}, column ContextTokens", prompt),
            _whole_number(f"{line}, column GeneratedTokens", output),
        )


def _date_and_time(place: str, text: str) -> tuple[int, float]:
    """Whole seconds and their fraction, apart: together, a float of this century holds no 100 ns."""
    match = _DATE_AND_TIME.fullmatch(text)
    require(match is not None, place, text, TIMESTAMP)
    assert match is not None
    try:
        whole = datetime.fromisoformat(f"{match[1]}T{match[2]}")
    except ValueError as error:
        raise ConfigError(place, text, TIMESTAMP) from error
    return calendar.timegm(whole.timetuple()), float(match[3] or 0.0)


def _whole_number(place: str, text: str) -> int:
    require(text.isascii() and text.isdigit(), place, text, WHOLE_NUMBER)
    return int(text)


def _mooncake_rows(path: Path, text: str) -> Iterator[TraceRow]:
    before: dict[int, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = _mooncake_row(f"{path}, line {number}", line)
        _check_chain(f"{path}, line {number}, column hash_ids", row.blocks, before)
        yield row


def _mooncake_row(place: str, line: str) -> TraceRow:
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(place, line[:80], f"a JSON object ({error})") from error
    require(isinstance(fields, dict), place, line[:80], "a JSON object")
    prompt_tokens = _count(place, fields, "input_length")
    blocks = fields.get("hash_ids")
    num_blocks = -(-prompt_tokens // MOONCAKE_BLOCK_TOKENS)
    are_ids = isinstance(blocks, list) and all(type(each) is int and each >= 0 for each in blocks)
    allowed = f"a list of {num_blocks} ids, one for each {MOONCAKE_BLOCK_TOKENS} tokens of input_length"
    require(are_ids and len(blocks) == num_blocks, f"{place}, column hash_ids", blocks, allowed)
    at_ms = fields.get("timestamp")
    require(type(at_ms) in {int, float} and at_ms >= 0, f"{place}, column timestamp", at_ms, MILLISECONDS)
    return TraceRow(at_ms / 1000.0, prompt_tokens, _count(place, fields, "output_length"), tuple(blocks))


def _count(place: str, fields: Mapping[str, object], column: str) -> int:
    value = fields.get(column)
    require(type(value) is int and value >= 0, f"{place}, column {column}", value, WHOLE_NUMBER)
    assert isinstance(value, int)
    return value


def _check_chain(place: str, blocks: tuple[int, ...], before: dict[int, int]) -> None:
    """Equal ids mean equal text up to and including the block, so each has one predecessor in the whole file."""
    previous = -1
    for block in blocks:
        require(before.setdefault(block, previous) == previous, place, block, "ids that follow the same id everywhere")
        previous = block


SCHEMAS: Mapping[str, TraceSchema] = {
    "azure": TraceSchema(bin_s=0.0, block_tokens=0, rows=_azure_rows),
    "mooncake": TraceSchema(bin_s=3.0, block_tokens=MOONCAKE_BLOCK_TOKENS, rows=_mooncake_rows),
}
"""Azure's LLM inference traces (CSV) and Mooncake's request traces (JSON lines, chained blocks of 512 tokens)."""
ZERO_TOKENS = "zero_tokens"
"""Why a row is dropped: an empty prompt or answer, which is how sources record failures."""
AFTER_END = "after_end"
"""Why a row is dropped: it comes after the time for which the trace is replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """What became of a trace's rows: ``rows_read == emitted + sum(dropped.values())``.

    Args:
        rows_read: Rows in the file.
        emitted: Rows that became requests.
        dropped: Rows that did not, by reason.
        clamped: Emitted rows that were cut to the context length.
        source_rate_per_s: Rows with tokens per second of the trace's own time.
        speed: Seconds of the trace in one second of the replay.
    """

    rows_read: int
    emitted: int
    dropped: Mapping[str, int]
    clamped: int
    source_rate_per_s: float
    speed: float


class TraceReplay(NamedTuple):
    """The requests of a trace in order of time, and what became of its rows."""

    logical_requests: list[LogicalRequest]
    report: TraceReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace that is replayed.

    Timestamps that the source rounded down are moved by a uniform draw within their bin; raw, they would send a burst
    of requests at every bin's edge. Compressing time shortens the gaps between the turns of a conversation too, and so
    raises what a prefix cache can hit. A prompt's block ids become its content, for whole blocks alone; the answers'
    text is not in the trace, so nobody shares it.

    Args:
        name: Names the traffic class in tables, SLOs and random streams.
        path: The file; ``.gz`` is unpacked.
        schema: What the file means: ``azure`` or ``mooncake``.
        timeout_s: How long a client waits for a whole answer, each request anew.
        sha256: What the unpacked file must hash to; ``None``: anything.
        speed: Seconds of the trace in one second of the replay.
        rate_per_s: Mean rate of the replay, instead of ``speed``; ``None``: ``speed`` says.
        rows_from_s: Rows before this time are left out, in the trace's own seconds after its first row.
        rows_until_s: Likewise those at this time and later. ``rate_per_s`` is that of the rows in between.
        max_output_tokens: What clients allow; ``"exact"`` or lengths.
        max_context_tokens: Longer requests are cut to this: the prompt's end first, and the answer only when it alone
            is longer; clients allow no more than what then is left. ``None``: as recorded.
        from_s: When the replay begins.
        for_s: For how long it goes on, in the replay's time.
        priority: How much its requests matter when there is not room for all.
        tenant: Who pays for them.

    Raises:
        ConfigError: A value is out of its range, or ``speed`` and ``rate_per_s`` are both given.
    """

    name: str
    path: str
    schema: str
    timeout_s: float
    sha256: str | None = None
    speed: float = 1.0
    rate_per_s: float | None = None
    rows_from_s: float = 0.0
    rows_until_s: float = inf
    max_output_tokens: Limit = "exact"
    max_context_tokens: int | None = None
    from_s: float = 0.0
    for_s: float = inf
    priority: Priority = Priority.STANDARD
    tenant: str = ""

    def __post_init__(self) -> None:
        require(self.name != "", "name", self.name, "a word that is not empty")
        require(self.schema in SCHEMAS, "schema", self.schema, f"one of {sorted(SCHEMAS)}")
        require_positive("timeout_s", self.timeout_s)
        require_positive("speed", self.speed)
        if self.rate_per_s is not None:
            require_positive("rate_per_s", self.rate_per_s)
            require(self.speed == 1.0, "speed", self.speed, "1, because rate_per_s is given too")
        require_limit(self.max_output_tokens)
        if self.max_context_tokens is not None:
            require_at_least("max_context_tokens", self.max_context_tokens, 2)
        require_not_negative("rows_from_s", self.rows_from_s)
        allowed = f"more than rows_from_s, which is {self.rows_from_s:g}"
        require(self.rows_until_s > self.rows_from_s, "rows_until_s", self.rows_until_s, allowed)
        require_not_negative("from_s", self.from_s)
        require(self.for_s > 0, "for_s", self.for_s, "a number above 0")

    def scaled(self, factor: float) -> Self:
        """The same rows in a ``factor``-th of the time."""
        if self.rate_per_s is None:
            return replace(self, speed=factor * self.speed)
        return replace(self, rate_per_s=factor * self.rate_per_s)

    def steady(self, until_s: float) -> Self:
        """As it is: a trace has its own times."""
        return self

    def requests_per_s(self, until_s: float) -> float:
        return self.replay(0, Seeds(0), until_s).report.emitted / until_s

    def logical_requests(self, index: int, seeds: Seeds, until_s: float) -> Iterator[LogicalRequest]:
        return iter(self.replay(index, seeds, until_s).logical_requests)

    @property
    def kills_for_s(self) -> float:
        """Nobody dies of what was recorded."""
        return 0.0

    def adapters_of(self, seeds: Seeds) -> Iterator[str]:
        return repeat("")

    def replay(self, index: int, seeds: Seeds, until_s: float = inf) -> TraceReplay:
        """The whole replay, read from the file now.

        Args:
            index: Number of the traffic class.
            seeds: The run's random streams.
            until_s: Nothing is scheduled at this time or later.

        Raises:
            ConfigError: The file can't be read, is malformed, has no row in the window, or no span of time that
                ``rate_per_s`` could scale.
        """
        rows = self._in_window(_rows_kept(Path(self.path), SCHEMAS[self.schema], self.sha256))
        prompts, outputs = (np.array([row[column] for row in rows], dtype=np.int64) for column in (1, 2))
        has_tokens = (prompts > 0) & (outputs > 0)
        source_rate_per_s = self._source_rate_per_s(rows, int(has_tokens.sum()))
        speed = self.speed if self.rate_per_s is None else self._speed_for(source_rate_per_s)
        times_s = self._times_s(rows, ClassStreams(seeds, self.name), speed)
        in_time = times_s < min(until_s, self.from_s + self.for_s)
        emitted = np.flatnonzero(has_tokens & in_time)
        order = emitted[np.argsort(times_s[emitted], kind="stable")]
        kept_prompts, kept_outputs = self._fit(prompts, outputs)
        limits = self._limits(kept_prompts, kept_outputs, seeds)
        report = TraceReport(
            rows_read=len(rows),
            emitted=len(order),
            dropped={ZERO_TOKENS: int((~has_tokens).sum()), AFTER_END: int((has_tokens & ~in_time).sum())},
            clamped=int(((kept_prompts < prompts) | (kept_outputs < outputs))[order].sum()),
            source_rate_per_s=source_rate_per_s,
            speed=speed,
        )
        return TraceReplay(
            list(self._requests(index, rows, order, (times_s, kept_prompts, kept_outputs, limits))), report
        )

    def _in_window(self, rows: list[TraceRow]) -> list[TraceRow]:
        first_s = min(row.at_s for row in rows)
        found = [row for row in rows if self.rows_from_s <= row.at_s - first_s < self.rows_until_s]
        last_s = max(row.at_s for row in rows) - first_s
        require(len(found) > 0, "rows_from_s", self.rows_from_s, f"a window with a row; the last one is at {last_s:g}")
        return found

    def _source_rate_per_s(self, rows: list[TraceRow], num_requests: int) -> float:
        times_s = [row.at_s for row in rows]
        span_s = max(times_s) - min(times_s) + SCHEMAS[self.schema].bin_s
        return num_requests / span_s if span_s > 0 else 0.0

    def _speed_for(self, source_rate_per_s: float) -> float:
        require(
            source_rate_per_s > 0, "rate_per_s", self.rate_per_s, f"none: {self.path} has no rate that could be scaled"
        )
        assert self.rate_per_s is not None
        return self.rate_per_s / source_rate_per_s

    def _times_s(self, rows: list[TraceRow], streams: ClassStreams, speed: float) -> Floats:
        recorded_s = np.array([row.at_s for row in rows])
        jitter_s = streams.generator("jitter").random(len(rows)) * SCHEMAS[self.schema].bin_s
        times_s: Floats = self.from_s + (recorded_s - recorded_s.min() + jitter_s) / speed
        return times_s

    def _fit(self, prompts: Ints, outputs: Ints) -> tuple[Ints, Ints]:
        if self.max_context_tokens is None:
            return prompts, outputs
        fitting_outputs = np.minimum(outputs, self.max_context_tokens - 1)
        return np.minimum(prompts, self.max_context_tokens - fitting_outputs), fitting_outputs

    def _limits(self, prompts: Ints, outputs: Ints, seeds: Seeds) -> Ints:
        draws = ClassStreams(seeds, self.name).generator("max_output_tokens").random(len(outputs))
        limits = limits_of(self.max_output_tokens, outputs, iter((draws,)))
        return limits if self.max_context_tokens is None else np.minimum(limits, self.max_context_tokens - prompts)

    def _requests(
        self, index: int, rows: list[TraceRow], order: Ints, columns: tuple[Floats, Ints, Ints, Ints]
    ) -> Iterator[LogicalRequest]:
        unit_tokens = SCHEMAS[self.schema].block_tokens
        salt = key_of(self.name, "trace") & ID_MASK  # sources number their blocks from 0: two of them share no text
        picked = zip(order.tolist(), *(column[order].tolist() for column in columns), strict=True)
        for row, at_s, prompt_tokens, output_tokens, limit in picked:
            whole_blocks = prompt_tokens // unit_tokens if unit_tokens else 0
            content = tuple(block ^ salt for block in rows[row].blocks[:whole_blocks])
            yield at_s, index, prompt_tokens, (output_tokens, limit), self.timeout_s, content, unit_tokens, None
