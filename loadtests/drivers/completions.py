"""A planned request as an OpenAI completion over HTTP: what is sent, and what becomes of every way in which it can end.

Nothing in here sends anything, so that every driver, whatever its event loop, asks for the same and reads the same.
"""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

import msgspec

from cluster.sim.traffic import PlannedRequest
from loadtests.drivers.endings import Header, printable
from loadtests.drivers.prompts import PromptTokens
from policies.decisions import Reason
from routing.request.effects import Outcome, OutcomeKind

HEADERS = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
"""Of every request; a compressed stream could not be split into events as they come."""
GATEWAY_HEADER = "x-spillway-gateway"
LANE_HEADER = "x-spillway-lane"
DEGRADED_HEADER = "x-spillway-degraded"
RETRY_COUNT_HEADER = "x-stainless-retry-count"
KEY_HEADER = "idempotency-key"
LAST_EVENT_HEADER = "last-event-id"
BUDGET_HEADER = "x-spillway-latency-budget"
ATTEMPTS_HEADER = "x-spillway-attempts"
TIMING_HEADER = "server-timing"
KEY_VARIABLE = "SPILLWAY_KEY"
"""Environment variable with the key of a deployment that asks for one; on a command line everybody could read it."""
MOST_STAGE_MS = 1e9
GAVE_UP = Outcome(kind=OutcomeKind.CANCELLED, reason=Reason.CLIENT_GONE)
_ATTEMPTS = re.compile(r"(\d{1,4});hedges=(\d{1,4})", re.ASCII)


def authorization() -> dict[str, str]:
    """The header with the key that the environment has; none without one."""
    key = os.environ.get(KEY_VARIABLE, "")
    return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go.

    Args:
        base_url: Such as ``http://127.0.0.1:8000``.
        model: The model's name there.
        asks_token_ids: Whether events are to carry token ids (``return_token_ids``, in spillway and vLLM), so that a
            token counts even while its text is held back in the middle of a character.
        asks_latency_budget: Whether answers are to say where their time went, which takes a gateway a little longer.
        authorization: The header with the key, where the deployment asks for one.
        reads_bytes_per_s: How fast its clients read answers.
        reconnects: Whether a client whose connection breaks comes back once, for the rest of its answer or for all of
            it; each request has an idempotency key then.
        run: Begins idempotency keys, so that those of another run of the same plan are others.
    """

    base_url: str
    model: str
    asks_token_ids: bool = True
    asks_latency_budget: bool = False
    authorization: dict[str, str] = field(default_factory=dict, repr=False)
    reads_bytes_per_s: float = math.inf
    reconnects: bool = False
    run: str = field(default_factory=lambda: uuid4().hex[:8], repr=False, compare=False)

    @property
    def url(self) -> str:
        """Where completions are posted."""
        return f"{self.base_url}/v1/completions"

    def headers(self, request: PlannedRequest, last_event_id: str = "") -> dict[str, str]:
        """The request's own headers, beside ``HEADERS``; of one that comes back, after which event."""
        name = request.idempotency_key or (request.request_id if self.reconnects else "")
        count = {RETRY_COUNT_HEADER: str(request.retry_count)} if request.retry_count else {}
        key = {KEY_HEADER: f"{self.run}-{name}"} if name else {}
        last = {LAST_EVENT_HEADER: last_event_id} if last_event_id else {}
        session = {"x-session-id": request.session_id} if request.session_id else {}
        asked = {BUDGET_HEADER: "1"} if self.asks_latency_budget else {}
        return {**self.authorization, **session, **asked, **count, **key, **last}

    def body(self, request: PlannedRequest, prompts: PromptTokens) -> bytes:
        """What is posted for a request: exactly so many tokens, whatever the model would say."""
        body = {
            "model": request.adapter or self.model,
            "prompt": prompts.of(request),
            "max_tokens": request.output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return msgspec.json.encode(body | {"return_token_ids": True} if self.asks_token_ids else body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the head of a response says beside its status.

    Args:
        gateway: Who answered; empty where nobody says.
        lane: Where the router put the request, likewise.
        attempts: Attempts that the service had made for it by then; ``None`` where it says nothing.
        hedges: How many of them were beside another; 0 likewise.
        is_degraded: Whether it says that the answer is less than was asked for.
        stages_s: Where its time had gone by then, by stage (``Server-Timing``); empty likewise.
    """

    gateway: str = ""
    lane: str = ""
    is_degraded: bool = False
    attempts: int | None = None
    hedges: int = 0
    stages_s: dict[str, float] = field(default_factory=dict)


NO_HEAD = Head()


def head_of(header: Header) -> Head:
    """Reads the head of a response."""
    found = _ATTEMPTS.fullmatch(header(ATTEMPTS_HEADER) or "")
    return Head(
        gateway=printable(header(GATEWAY_HEADER) or ""),
        lane=printable(header(LANE_HEADER) or ""),
        is_degraded=header(DEGRADED_HEADER) is not None,
        attempts=int(found[1]) if found else None,
        hedges=int(found[2]) if found else 0,
        stages_s=dict(_stages_s(header(TIMING_HEADER) or "")),
    )


def _stages_s(timing: str) -> Iterator[tuple[str, float]]:
    """What ``Server-Timing`` says, which has milliseconds; entries without a duration, of proxies, are left out."""
    for entry in timing.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            with suppress(ValueError):
                key, text = parameter.split("=")
                if key == "dur" and 0 <= (duration_ms := float(text)) < MOST_STAGE_MS:
                    yield printable(name), duration_ms / 1e3
