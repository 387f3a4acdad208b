"""Finished requests as lines of JSON: what a length model is trained from."""

from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Annotated

import msgspec

from policies.errors import ConfigError
from policies.views import RequestView

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
AtLeastZero = Annotated[int, msgspec.Meta(ge=0)]


class LoggedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request that was answered in full.

    Args:
        prompt_tokens: Length of the prompt.
        max_output_tokens: Upper bound of the output that it came with.
        output_tokens: Length of the answer.
        tenant: Who paid for it; empty when nobody said.
        ngrams: Hashed n-grams of the prompt; see :func:`routing.sizing.prompt_ngrams.hashed_ngrams`.
    """

    prompt_tokens: AtLeastOne
    max_output_tokens: AtLeastOne
    output_tokens: AtLeastZero
    tenant: str = ""
    ngrams: tuple[AtLeastZero, ...] = ()

    def view(self) -> RequestView:
        """The request as predictors see it."""
        return RequestView(
            request_id="",
            prompt_tokens=self.prompt_tokens,
            max_output_tokens=self.max_output_tokens,
            arrival_s=0.0,
            deadline_s=inf,
            tenant=self.tenant,
            prompt_ngrams=self.ngrams,
        )


_decode = msgspec.json.Decoder(LoggedRequest).decode


def read_log(path: Path) -> list[LoggedRequest]:
    """All requests of a file, which has them in order of time, one JSON object a line.

    Raises:
        ConfigError: The file can't be read, a line is none, or has an answer that is longer than its bound (file,
            line, what is wrong).
    """
    requests = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError("log", str(path), f"a file that can be read ({error})") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                requests.append(_read_line(line))
            except (msgspec.MsgspecError, ValueError) as error:
                shown = line[:80].decode(errors="replace")
                raise ConfigError(f"{path}, line {number}", shown, f"a logged request ({error})") from error
    return requests


def _read_line(line: bytes) -> LoggedRequest:
    """Raises ``ValueError`` for a request that can't have been: its numbers are not what their names say."""
    request = _decode(line)
    if request.output_tokens > request.max_output_tokens:
        raise ValueError(f"an answer of {request.output_tokens} tokens where {request.max_output_tokens} were allowed")
    return request


def write_log(path: Path, requests: Iterable[LoggedRequest]) -> None:
    """Writes what :func:`read_log` reads.

    Raises:
        OSError: The file can't be written.
    """
    path.write_bytes(msgspec.json.Encoder().encode_lines(requests))
