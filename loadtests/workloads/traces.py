"""A recorded trace as one traffic class of a workload."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cluster.seeds import Seeds
from loadtests.schema.checks import require, require_at_least, require_not_negative, require_positive
from loadtests.workloads.content import ID_MASK, key_of
from loadtests.workloads.limits import Limit, limits_of, require_limit
from loadtests.workloads.streams import ClassStreams, Floats, Ints
from loadtests.workloads.trace_files import SCHEMAS, TraceRow, read_trace
from loadtests.workloads.workload import Intent
from policies.views import Priority

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

    intents: list[Intent]
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
        timeout_s: How long a client waits for a whole answer, each try anew.
        sha256: What the unpacked file must hash to; ``None``: anything.
        speed: Seconds of the trace in one second of the replay.
        rate_per_s: Mean rate of the replay, instead of ``speed``; ``None``: ``speed`` says.
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
        require_not_negative("from_s", self.from_s)
        require(self.for_s > 0, "for_s", self.for_s, "a number above 0")

    def intents(self, index: int, seeds: Seeds, until_s: float) -> Iterator[Intent]:
        return iter(self.replay(index, seeds, until_s).intents)

    def replay(self, index: int, seeds: Seeds, until_s: float = inf) -> TraceReplay:
        """The whole replay, read from the file now.

        Args:
            index: Number of the traffic class.
            seeds: The run's random streams.
            until_s: Nothing is scheduled at this time or later.

        Raises:
            ConfigError: The file can't be read, is malformed, or has no span of time that ``rate_per_s`` could scale.
        """
        rows = read_trace(Path(self.path), SCHEMAS[self.schema], self.sha256)
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
    ) -> Iterator[Intent]:
        unit_tokens = SCHEMAS[self.schema].block_tokens
        salt = key_of(self.name, "trace") & ID_MASK  # sources number their blocks from 0: two of them share no text
        picked = zip(order.tolist(), *(column[order].tolist() for column in columns), strict=True)
        for row, at_s, prompt_tokens, output_tokens, limit in picked:
            whole_blocks = prompt_tokens // unit_tokens if unit_tokens else 0
            content = tuple(block ^ salt for block in rows[row].blocks[:whole_blocks])
            yield at_s, index, prompt_tokens, (output_tokens, limit), self.timeout_s, content, unit_tokens, None
