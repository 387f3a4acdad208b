"""From an engine's log to samples: what each step computed, and how long it took.

A step's duration is the time from the end of the step before it to its own end, by the engine core's clock. That is
what a step costs whoever waits behind it: scheduling, the model, sampling and the core's own bookkeeping, and nothing
of the front end, which works meanwhile. It means something only where the engine had no time to be idle.

Two kinds of samples come of it. Undisturbed steps say what a step costs by itself: no request arrived in the middle,
and no sequence came or went just before, because the core unpacks and frees requests beside the model, and the steps
after a prompt find their caches cold. Steps under traffic have all of that, and say what a request costs beside its
steps.

An engine that schedules ahead (GPU engines do) launches a step before it tells the end of the one before, and where the
next one has a prompt, launching takes longer than a decode step does: the end is told late. So what is timed there is a
run of steps, between two ends that were told in time. Decode steps that follow each other are runs of one.
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
    """One step, or a run of steps whose ends were told late, but for the last one's.

    Args:
        point: Where it was seen.
        region: Its kind.
        work: What it computed; of a run of steps the sum.
        seconds: How long it took.
        num_steps: Steps in the run.
    """

    point: str
    region: Region
    work: StepWork
    seconds: float
    num_steps: int = 1


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


def samples_of(measurement: Measurement, *, since_s: float = 0.0, runs_ahead: bool = False) -> list[StepSample]:
    """The steps of a measurement that followed another one at once and that no request disturbed.

    Args:
        measurement: All of whose requests are finished.
        since_s: What began before is left out.
        runs_ahead: Whether the engine launches a step before it tells the end of the one before.
    """
    if runs_ahead:
        return _step_runs_of(measurement, since_s)
    book = _StepBook(measurement)
    works = [book.take(step) for step in measurement.steps]
    settled = _settled(measurement.steps)
    return [
        StepSample(measurement.point, _region((step,)), work, step.ended_s - before.ended_s)
        for (before, step), work, is_settled in zip(pairwise(measurement.steps), works[1:], settled[1:], strict=True)
        if work is not None
        and before.ended_s >= since_s
        and (is_settled or step.prompt_tokens)
        and not _is_disturbed(before.ended_s, step.ended_s, book.on_their_way_s)
    ]


def _step_runs_of(measurement: Measurement, since_s: float) -> list[StepSample]:
    """The runs of steps of an engine that runs ahead; after idleness one begins when its first request is queued."""
    steps, book = measurement.steps, _StepBook(measurement)
    works = [book.take(step) for step in steps]
    settled = _settled(steps)
    found: list[StepSample] = []
    first = 0
    for last, step in enumerate(steps):
        if _is_told_late(steps, last):
            continue
        step_run, work = steps[first : last + 1], works[first : last + 1]
        began_s = _began_s(steps, first)
        last_began_s = began_s if first == last else steps[last - 1].ended_s
        is_undisturbed = not _is_disturbed(last_began_s, step.ended_s, book.on_their_way_s)
        if began_s >= since_s and is_undisturbed and (settled[last] or any(each.prompt_tokens for each in step_run)):
            known = [each for each in work if each is not None]
            if len(known) == len(step_run):
                total = StepWork(*map(sum, zip(*known, strict=True)))
                sample = StepSample(measurement.point, _region(step_run), total, step.ended_s - began_s, len(step_run))
                found.append(sample)
        first = last + 1
    return found


def _is_told_late(steps: Sequence[EngineStep], index: int) -> bool:
    """Whether a step's end was told when the next one, which has a prompt, had been launched."""
    if index + 1 == len(steps) or not steps[index + 1].prompt_tokens:
        return False
    return not _follows_idleness(steps, index + 1)


def _follows_idleness(steps: Sequence[EngineStep], index: int) -> bool:
    is_first = index == 0
    return is_first or (not steps[index].decode_sequences and _queued_s(steps, index) >= steps[index - 1].ended_s)


def _began_s(steps: Sequence[EngineStep], index: int) -> float:
    return _queued_s(steps, index) if _follows_idleness(steps, index) else steps[index - 1].ended_s


def _queued_s(steps: Sequence[EngineStep], index: int) -> float:
    """When the first prompt of a step was queued: its first output says so, after all chunks of it."""
    for step in steps[index:]:
        queued_s = [output.queued_s for output in step.outputs if output.queued_s is not None]
        if queued_s:
            return min(queued_s)
    return steps[index].ended_s


def shared_steps_of(
    measurement: Measurement, num_sequences: int, prefix_tokens: int, *, runs_ahead: bool = False
) -> list[StepSample]:
    """The undisturbed steps in which so many sequences decode that have so many tokens in common."""
    shared_tokens = (num_sequences - 1) * prefix_tokens
    return [
        each._replace(work=each.work._replace(shared_tokens=shared_tokens))
        for each in samples_of(measurement, runs_ahead=runs_ahead)
        if each.region is Region.DECODE and each.work.sequences == num_sequences
    ]


def traffic_steps_of(measurement: Measurement, *, runs_ahead: bool = False) -> list[TrafficStep]:
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
            is_alone &= not (runs_ahead and _is_told_late(measurement.steps, index))
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


def _region(steps: Sequence[EngineStep]) -> Region:
    if not any(step.decode_sequences for step in steps):
        return Region.PREFILL
    return Region.MIXED if any(step.prompt_tokens for step in steps) else Region.DECODE
