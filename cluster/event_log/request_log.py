"""Finished requests out of gateways' event logs, as lines of JSON to train a length model from.

``python -m cluster.event_log.request_log LOG.. --output requests.jsonl``
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from cluster.event_log.frames import EventLogUnreadable, LogReader
from policies.views import RequestView
from routing.request.effects import Effect, OutcomeKind, Respond
from routing.request.events import Arrived, AttemptFinished
from routing.sizing.length_log import LoggedRequest, write_log


class FinishedRequests:
    """The requests of a log that were answered in full, in the order in which they ended.

    The attempt whose end completes a request is the one that gave the answer; of failed, cancelled and refused requests
    nobody knows how long their answers would have been.

    Args:
        file: At the log's first byte.

    Raises:
        EventLogUnreadable: It is not a log, or a damaged one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._reader = LogReader(file)
        self.num_seen = 0
        """Requests that have been read of so far, however they ended."""

    def __iter__(self) -> Iterator[LoggedRequest]:
        """All of them; raises as the constructor does."""
        waiting: dict[str, RequestView] = {}
        for record in self._reader:
            if isinstance(record.event, Arrived):
                self.num_seen += 1
                waiting[record.event.request.request_id] = record.event.request
            for request_id, is_complete in _ended(self._reader.answer(record)):
                request = waiting.pop(request_id, None)
                if request is not None and is_complete and isinstance(record.event, AttemptFinished):
                    yield _logged(request, record.event.output_tokens)


def _logged(request: RequestView, output_tokens: int) -> LoggedRequest:
    return LoggedRequest(
        prompt_tokens=request.prompt_tokens,
        max_output_tokens=request.max_output_tokens,
        output_tokens=output_tokens,
        tenant=request.tenant,
        ngrams=request.prompt_ngrams,
    )


def _ended(answer: Sequence[Effect] | str) -> Iterator[tuple[str, bool]]:
    """Requests that a call ended, and whether they were completed."""
    for effect in () if isinstance(answer, str) else answer:
        if isinstance(effect, Respond):
            yield effect.request_id, effect.outcome.kind is OutcomeKind.COMPLETED


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m cluster.event_log.request_log", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("log", type=Path, nargs="+", help="an event log, as a gateway writes it")
    parser.add_argument("--output", type=Path, required=True, help="where the requests go (JSON lines)")
    options = parser.parse_args(arguments)
    requests: list[LoggedRequest] = []
    num_seen = 0
    for path in options.log:
        try:
            with path.open("rb") as file:
                finished = FinishedRequests(file)
                requests.extend(finished)
                num_seen += finished.num_seen
        except (OSError, EventLogUnreadable) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
    if not requests:
        print(f"{num_seen:,} requests seen, none finished: nothing to write", file=sys.stderr)
        return 2
    try:
        write_log(options.output, requests)
    except OSError as error:
        print(f"--output {options.output}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{len(requests):,} requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
