"""From an engine's log to samples: what each step computed, and how long it took.

A step's duration is the time from the end of the step before it to its own end, by the engine core's clock. That is
what a step costs whoever waits behind it: scheduling, the model, sampling and the core's own bookkeeping, and nothing
of the front end, which works meanwhile. It means something only where the engine had no time to be idle.

Two kinds of samples come of it. Undisturbed steps say what a step costs by itself: no request arrived in the middle,
and no sequence came or went just before, because the core unpacks and frees requests beside the model, and the steps
after a prompt find their caches cold. Steps under traffic have all of that, and say what a request costs beside its
steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from engines.calibration.runner import Measurement, RequestTiming
from engines.model.cost_model import StepWork, attention_pairs
from engines.vllm.step_log import EngineStep

TAKE_IN_S = 0.005
"""The core takes in what has arrived within this time of a step's end."""
UNSETTLED_STEPS = 2
"""So many decode steps after a prompt, and after a sequence's end, are slower than the ones that follow."""


class Region(StrEnum):
    """Kinds of steps: prompts alone, decoding alone, or both."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class StepSample(NamedTuple):
    """One step.

    Args:
        point: Where it was seen.
        region: Its kind.
        work: What it computed.
        seconds: How long it took.
    """

    point: str
    region: Region
    work: StepWork
    seconds: float


class TrafficStep(NamedTuple):
    """One step of a busy engine with requests coming and going.

    Args:
        work: What it computed.
        seconds: How long it took.
        is_settled: It only decodes, no request arrived beside it, and no sequence came or went shortly before.
    """

    work: StepWork
    seconds: float
    is_settled: bool


@dataclass(slots=True)
class _Progress:
    """How far a request is."""

    prompt_tokens: int
    computed: int
    generated: int = 0
    is_over: bool = False
    is_admitted: bool = False


class _StepBook:
    """Follows the requests of one measurement from step to step.

    Args:
        measurement: All of whose requests are finished.
    """

    def __init__(self, measurement: Measurement) -> None:
        firsts = {
            output.request_id: output
            for step in measurement.steps
            for output in step.outputs
            if output.queued_s is not None
        }
        self.queued_s = {request_id: output.queued_s or 0.0 for request_id, output in firsts.items()}
        self.on_their_way_s = [(each.submitted_s, self.queued_s[each.request_id]) for each in measurement.requests]

        def in_line(request: RequestTiming) -> float:
            return self.queued_s[request.request_id]

        self._progress = {
            each.request_id: _Progress(each.prompt_tokens, firsts[each.request_id].cached_tokens or 0)
            for each in sorted(measurement.requests, key=in_line)
        }

    def take(self, step: EngineStep) -> StepWork | None:
        """The work of the next step; ``None`` when the log does not add up, as after a preemption.

        Prompts are computed in the order in which the scheduler got them, each to its end before the next begins.
        """
        decoding = [each for each in self._progress.values() if each.generated and not each.is_over]
        context_tokens = sum(each.prompt_tokens + each.generated for each in decoding)
        left, pairs, num_chunks, num_admitted = step.prompt_tokens, 0, 0, 0
        for each in self._progress.values():
            chunk = min(each.prompt_tokens - each.computed, left)
            if chunk > 0:
                pairs += attention_pairs(chunk, each.computed)
                each.computed += chunk
                left -= chunk
                num_chunks += 1
                num_admitted += not each.is_admitted
                each.is_admitted = True
        for output in step.outputs:
            self._progress[output.request_id].generated += output.num_tokens
            self._progress[output.request_id].is_over |= output.is_last
        if left or num_chunks != step.prompt_sequences or len(decoding) != step.decode_sequences:
            return None
        new_tokens, sequences = step.prompt_tokens + len(decoding), num_chunks + len(decoding)
        return StepWork(new_tokens, pairs, sequences, context_tokens, num_admitted)


def works_of(measurement: Measurement) -> list[StepWork]:
    """What each step of a measurement computed; those that do not add up are left out."""
    book = _StepBook(measurement)
    return [work for work in map(book.take, measurement.steps) if work is not None]


def samples_of(measurement: Measurement) -> list[StepSample]:
    """The steps of a measurement that followed another one at once and that no request disturbed."""
    book = _StepBook(measurement)
    works = [book.take(step) for step in measurement.steps]
    settled = _settled(measurement.steps)
    return [
        StepSample(measurement.point, _region(step), work, step.ended_s - before.ended_s)
        for (before, step), work, is_settled in zip(pairwise(measurement.steps), works[1:], settled[1:], strict=True)
        if work is not None
        and (is_settled or step.prompt_tokens)
        and not _is_disturbed(before.ended_s, step.ended_s, book.on_their_way_s)
    ]


def shared_steps_of(measurement: Measurement, num_sequences: int, prefix_tokens: int) -> list[StepSample]:
    """The undisturbed steps in which so many sequences decode that have so many tokens in common."""
    shared_tokens = (num_sequences - 1) * prefix_tokens
    return [
        each._replace(work=each.work._replace(shared_tokens=shared_tokens))
        for each in samples_of(measurement)
        if each.region is Region.DECODE and each.work.sequences == num_sequences
    ]


def traffic_steps_of(measurement: Measurement) -> list[TrafficStep]:
    """The steps of a measurement before which the engine had no time to be idle, disturbed or not."""
    book = _StepBook(measurement)
    works = [book.take(step) for step in measurement.steps]
    settled = _settled(measurement.steps)
    found: list[TrafficStep] = []
    alive: set[str] = set()
    for index, step in enumerate(measurement.steps):
        work = works[index]
        if alive and work is not None:
            began_s = measurement.steps[index - 1].ended_s
            is_alone = not _is_disturbed(began_s, step.ended_s, book.on_their_way_s)
            found.append(TrafficStep(work, step.ended_s - began_s, settled[index] and is_alone))
        alive |= {output.request_id for output in step.outputs}
        alive -= {output.request_id for output in step.outputs if output.is_last}
    return found


def _settled(steps: Sequence[EngineStep]) -> list[bool]:
    """Whether each step only decodes, and the caches have got over whatever came or went before."""
    found: list[bool] = []
    num_quiet, has_ended = 0, False
    for step in steps:
        num_quiet = 0 if step.prompt_tokens or has_ended else num_quiet + 1
        found.append(num_quiet > UNSETTLED_STEPS)
        has_ended = any(output.is_last for output in step.outputs)
    return found


def _is_disturbed(began_s: float, ended_s: float, on_their_way_s: Iterable[tuple[float, float]]) -> bool:
    """Whether a request was on its way to the scheduler: into an idle engine, or beside the step."""
    return any(submitted_s < ended_s and queued_s > began_s + TAKE_IN_S for submitted_s, queued_s in on_their_way_s)


def _region(step: EngineStep) -> Region:
    if not step.decode_sequences:
        return Region.PREFILL
    return Region.MIXED if step.prompt_tokens else Region.DECODE
