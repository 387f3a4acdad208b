"""What a run leaves behind: one row for each request, in columns, from whichever host ran it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from cluster.traffic import PlannedRequest
from policies.decisions import Reason
from routing.effects import Outcome, OutcomeKind

OUTCOMES: tuple[str, ...] = (*(kind.value for kind in OutcomeKind), "abandoned")
"""What the ``outcome`` column points into. ``abandoned``: never sent, because an earlier turn of its session failed."""
REASONS: tuple[str, ...] = ("", *(reason.value for reason in Reason))
"""What the ``reason`` column points into."""

_OUTCOME_INDEX = {name: index for index, name in enumerate(OUTCOMES)}
_REASON_INDEX = {name: index for index, name in enumerate(REASONS)}
_COLUMNS = {
    "intent": "q",
    "scheduled_s": "d",
    "sent_s": "d",
    "first_token_s": "d",
    "end_s": "d",
    "prompt_tokens": "i",
    "output_tokens": "i",
    "cached_tokens": "i",
    "try_index": "h",
    "traffic_class": "h",
    "attempts": "h",
    "outcome": "b",
    "reason": "b",
    "is_last": "?",
}
_PACK_ROW = Struct("<" + "".join(_COLUMNS.values())).pack
_ROW_TYPE = np.dtype([(name, f"<{code}") for name, code in _COLUMNS.items()])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTotals:
    """What one replica did in a run.

    Args:
        replica_id: Who.
        role: Its role's name.
        up_s: How long it was there.
        busy_s: Time in which it made steps.
        prompt_tokens: Prompt tokens it computed, recomputation included.
        cached_tokens: Prompt tokens it found in its prefix cache.
        output_tokens: Tokens it generated.
        preemptions: Sequences it threw out of the batch for want of KV blocks.
        attempts: Attempts it took.
    """

    replica_id: str
    role: str
    up_s: float
    busy_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """Every try of every intent. All arrays have the same length; rows are in the order in which requests ended.

    Args:
        traffic_classes: Names of the traffic classes.
        intent: Number of the intent (int64).
        is_last: Whether no try of the intent followed this one (bool). Intents offered = ``is_last.sum()``.
        try_index: 0 for the first try (int16).
        traffic_class: Index into ``traffic_classes`` (int16).
        scheduled_s: When the user wanted it; latencies count from here (float64, seconds).
        sent_s: When this try was sent (float64).
        first_token_s: When the first token reached the client; NaN if none did (float64).
        end_s: When the last token or the verdict reached the client (float64).
        prompt_tokens: Length of the prompt (int32).
        output_tokens: Tokens that reached the client (int32).
        cached_tokens: Prompt tokens that the replica which computed the prompt found in its cache; 0 for a try that did
            not complete (int32).
        outcome: Index into ``OUTCOMES`` (int8).
        reason: Index into ``REASONS`` (int8).
        attempts: Dispatches that this try led to, hedges included (int16).
        replicas: What each replica did.
        duration_s: When the last request ended.
    """

    traffic_classes: Sequence[str]
    intent: NDArray[np.int64]
    is_last: NDArray[np.bool_]
    try_index: NDArray[np.int16]
    traffic_class: NDArray[np.int16]
    scheduled_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    cached_tokens: NDArray[np.int32]
    outcome: NDArray[np.int8]
    reason: NDArray[np.int8]
    attempts: NDArray[np.int16]
    replicas: Sequence[ReplicaTotals] = field(default_factory=tuple)
    duration_s: float = 0.0

    def __len__(self) -> int:
        return len(self.intent)


class RunRecorder:
    """Gathers the rows of a run, 61 bytes each.

    Args:
        traffic_classes: Names of the traffic classes.
    """

    def __init__(self, traffic_classes: Sequence[str]) -> None:
        self._traffic_classes = tuple(traffic_classes)
        self._rows = bytearray()
        self.last_end_s = 0.0

    def add(
        self,
        request: PlannedRequest,
        *,
        sent_s: float,
        first_token_s: float,
        end_s: float,
        output_tokens: int,
        outcome: Outcome,
        num_attempts: int,
        is_last: bool,
        cached_tokens: int = 0,
    ) -> None:
        """Adds the row of a request that has ended; see :class:`RunTable` for the columns."""
        self.last_end_s = max(self.last_end_s, end_s)
        self._rows += _PACK_ROW(
            request.intent,
            request.scheduled_s,
            sent_s,
            first_token_s,
            end_s,
            request.prompt_tokens,
            output_tokens,
            cached_tokens,
            request.try_index,
            request.traffic_class,
            num_attempts,
            _OUTCOME_INDEX[outcome.kind],
            _REASON_INDEX[outcome.reason or ""],
            is_last,
        )

    def table(self, replicas: Sequence[ReplicaTotals]) -> RunTable:
        """All rows so far."""
        rows = np.frombuffer(bytes(self._rows), dtype=_ROW_TYPE)
        columns = {name: np.ascontiguousarray(rows[name]) for name in _COLUMNS}
        return RunTable(
            traffic_classes=self._traffic_classes,
            replicas=tuple(replicas),
            duration_s=self.last_end_s,
            **columns,
        )
