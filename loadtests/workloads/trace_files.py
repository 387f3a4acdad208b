"""Reads published request traces. Columns are found by name, and whatever a source means is declared here, not guessed.

Nothing is downloaded: the user gives a path, and the sha256 that the file should have.
"""

import calendar
import csv
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtests.schema.checks import require
from policies.errors import ConfigError

WHOLE_NUMBER = "a whole number, at least 0"
TIMESTAMP = "a date and time such as 2023-11-16 18:15:46.6805900, in UTC"
MILLISECONDS = "milliseconds, at least 0"
MOONCAKE_BLOCK_TOKENS = 512

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
