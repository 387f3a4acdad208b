"""Feeds an event log to a fresh dispatcher: the same events must lead to the same effects, byte for byte.

``python -m cluster.event_log.replay LOG [--show]``

Exit status: 0 when all effects are the same, 1 when some are not, 2 when the log can't be read or its dispatcher can't
be built. ``--show`` prints the log as JSON lines instead, and builds nothing.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from cluster.event_log.frames import CLOSED, EventLogUnreadable, LogReader, LogRecord, encode_answer, header_document
from policies.contracts import Need
from policies.errors import ConfigError
from routing.assembly import NO_BREAKERS, build_dispatcher
from routing.breakers.breaker import PolicyFailure
from routing.breakers.breakers import Breakers
from routing.dispatcher import Dispatcher
from routing.request.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a replay left the log.

    Args:
        record: Number of the record, from 1.
        now_s: Its time.
        event: What the dispatcher was told.
        wanted: What the log says that it answered: effects as msgpack has them, or an exception's name.
        got: What it answered this time.
    """

    record: int
    now_s: float
    event: Event
    wanted: Any
    got: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What came of a replay.

    Args:
        num_records: Records that led to the same effects.
        difference: The first that did not.
        end_reason: Why the log ends; ``None`` when the process was killed, or the end was not reached.
        cut_off_bytes: Bytes of a last frame that is not whole.
    """

    num_records: int
    difference: Difference | None = None
    end_reason: str | None = None
    cut_off_bytes: int = 0

    @property
    def is_same(self) -> bool:
        """Whether all whole records led to the same effects."""
        return self.difference is None


def replay(file: BinaryIO) -> ReplayResult:
    """Builds the dispatcher that the log's header describes and tells it all that the log says.

    Args:
        file: The log, at its first byte.

    Raises:
        EventLogUnreadable: It is not a log, or a damaged one.
        ConfigError: A policy or planner that does not exist here, or does not fit.
    """
    log = LogReader(file)
    header = log.header
    breakers = Breakers(_ignore, lambda: 0.0) if header.has_breakers else NO_BREAKERS  # no log says how long it took
    dispatcher = build_dispatcher(
        header.dispatcher, rng_for=header.streams.stream, provided=frozenset(Need), breakers=breakers
    )
    for record in log:
        got = _answer(dispatcher, record)
        if got != bytes(record.answer):
            return ReplayResult(num_records=log.num_records - 1, difference=_difference(log.num_records, record, got))
    return ReplayResult(num_records=log.num_records, end_reason=log.end_reason, cut_off_bytes=log.cut_off_bytes)


def _ignore(failure: PolicyFailure) -> None:
    """It was counted when it happened."""


def show(file: BinaryIO) -> Iterator[str]:
    """The log as lines of JSON.

    Raises:
        EventLogUnreadable: It is not a log, or a damaged one.
    """
    log = LogReader(file)
    yield json.dumps({"header": header_document(log.header)})
    for record in log:
        answer = _plain(record.answer)
        key = "raised" if isinstance(answer, str) else "effects"
        event = msgspec.to_builtins(record.event)
        yield json.dumps({"record": log.num_records, "now_s": record.now_s, "event": event, key: answer})
    yield json.dumps({"end": log.end_reason, "cut_off_bytes": log.cut_off_bytes})


def _answer(dispatcher: Dispatcher, record: LogRecord) -> bytes:
    """What it answers, exceptions included: a log in which something is missing can lead to any."""
    try:
        return encode_answer(dispatcher.handle(record.event, record.now_s))
    except Exception as error:
        return encode_answer(type(error).__name__)


def _difference(number: int, record: LogRecord, got: bytes) -> Difference:
    return Difference(
        record=number, now_s=record.now_s, event=record.event, wanted=_plain(record.answer), got=_plain(got)
    )


def _plain(answer: bytes | msgspec.Raw) -> Any:
    return msgspec.msgpack.decode(answer)


def _report(result: ReplayResult) -> str:
    if (difference := result.difference) is not None:
        return "\n".join(
            (
                f"different: record {difference.record}, at {difference.now_s!r} s",
                f"  event   {json.dumps(msgspec.to_builtins(difference.event))}",
                f"  wanted  {json.dumps(difference.wanted)}",
                f"  got     {json.dumps(difference.got)}",
                f"The {result.num_records} records before it led to the same effects.",
            )
        )
    lines = [f"same: {result.num_records} records led to the same effects, byte for byte"]
    if result.cut_off_bytes:
        lines.append(f"The last record is cut off ({result.cut_off_bytes} bytes of it are there): valid up to there.")
    if result.end_reason is None:
        lines.append("The log has no end: its process was killed, or is still writing.")
    elif result.end_reason != CLOSED:
        lines.append(f"The log ends before its dispatcher did: {result.end_reason}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cluster.event_log.replay", description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path, help="an event log, as a gateway writes it")
    parser.add_argument("--show", action="store_true", help="print the log as JSON lines instead")
    options = parser.parse_args(arguments)
    try:
        with options.log.open("rb") as file:
            if options.show:
                for line in show(file):
                    print(line)
                return 0
            result = replay(file)
    except BrokenPipeError:  # whoever read the lines has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, EventLogUnreadable, ConfigError) as error:
        print(f"{options.log}: {error}", file=sys.stderr)
        return 2
    print(_report(result))
    return 0 if result.is_same else 1


if __name__ == "__main__":
    sys.exit(main())
