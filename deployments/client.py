"""Streams answers, and goes on with them when the connection breaks: what was missed comes by way of another gateway.

    for event in stream("http://127.0.0.1:8000/v1/completions", {"model": "tiny-llama", "prompt": "Hello"}):
        print(event["choices"][0]["text"], end="")

The whole protocol is two headers: an ``idempotency-key`` of its own with each request, and ``last-event-id`` beside it
when the same request is sent again for the rest.
"""

import json
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx

RETRY_STATUSES = frozenset({429, 503})
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


def stream(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None, *, patience_s: float = 30.0
) -> Iterator[dict[str, Any]]:
    """Each event of a streamed answer, once and in order; an event with ``error`` is the last.

    An answer whose events have no ids can't be gone on with: what breaks it off then is raised.

    Args:
        url: Of ``/v1/completions`` or ``/v1/chat/completions``.
        body: The request.
        headers: More of them, such as ``authorization``.
        patience_s: How long nothing may come, broken connections and refusals included.

    Raises:
        httpx.HTTPStatusError: It is refused: for good, or still when patience is at an end.
        httpx.TransportError: No gateway can be reached for so long.
    """
    sent = {**(headers or {}), "idempotency-key": str(uuid.uuid4())}
    heard_s, pause_s, has_ids = time.monotonic(), FIRST_PAUSE_S, True
    with httpx.Client(timeout=patience_s) as http:
        while True:
            try:
                for event_id, data in _events(http, url, {**body, "stream": True}, sent):
                    if data == "[DONE]":
                        return
                    event: dict[str, Any] = json.loads(data)
                    yield event
                    if "error" in event:
                        return
                    sent |= {"last-event-id": event_id} if event_id else {}
                    has_ids = has_ids and bool(event_id)
                    heard_s, pause_s = time.monotonic(), FIRST_PAUSE_S
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                pause_s = max(min(2.0 * pause_s, LONGEST_PAUSE_S), _asked_to_wait_s(error))
                if time.monotonic() + pause_s > heard_s + patience_s or _is_final(error) or not has_ids:
                    raise
                threading.Event().wait(pause_s)


def _events(
    http: httpx.Client, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Id and data of each event, as far as it has come whole."""
    with http.stream("POST", url, json=body, headers=headers) as response:
        if response.is_error:
            response.read()
            response.raise_for_status()
        event_id, data = "", ""
        for line in _lines(response.iter_bytes()):
            name, _, value = line.partition(": ")
            if name == "id":
                event_id = value
            elif name == "data":
                data = value
            elif not line and data:
                yield event_id, data
                event_id, data = "", ""
        raise httpx.RemoteProtocolError("the stream ended before its last event")


def _lines(parts: Iterable[bytes]) -> Iterator[str]:
    """Cut at line feeds alone: other characters that end lines may be in an answer."""
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode()


def _is_final(error: httpx.HTTPError) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in RETRY_STATUSES


def _asked_to_wait_s(error: httpx.HTTPError) -> float:
    said = error.response.headers.get("retry-after", "") if isinstance(error, httpx.HTTPStatusError) else ""
    return float(said) if said.isdigit() else 0.0
