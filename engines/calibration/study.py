"""One engine measured over the grid, and what was found."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from engines.calibration.fit import fit_steps, residuals
from engines.calibration.grid import Bounds, Grid, Point, make_grid
from engines.calibration.overheads import (
    delivery_delays,
    fit_request_overhead,
    fit_token_overhead,
    traffic_bias,
    with_sharing,
    with_traffic,
)
from engines.calibration.runner import GridRunner, Measurement
from engines.calibration.samples import StepSample, TrafficStep, samples_of, shared_steps_of, traffic_steps_of, works_of
from engines.calibration.step_groups import StepGroup, group
from engines.contract import Engine, EngineInfo
from engines.model.cost_model import StepCoefficients
from engines.model.profile import Overheads
from engines.vllm.step_log import EngineStep

HELD_OUT_REPEATS = 3
Tell = Callable[[str, int, int], None]
"""Is told what is being measured, how many points are done, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPlan:
    """How to measure.

    Args:
        repeats: Runs of each point.
        seed: Of prompts, of the order of points and of the held-out grid.
        longest_context_tokens: Longest prompt and output together that is measured.
        quick: A few points only.
        quantile: Which of durations alike counts: the median, or a smaller one on a machine with other work, which can
            make a step slower but not faster.
        runs_ahead: Whether the engine launches a step before it tells the end of the one before.
    """

    repeats: int
    seed: int
    longest_context_tokens: int
    quick: bool = False
    quantile: float = 0.5
    runs_ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFindings:
    """The fit and what it was made from.

    Args:
        coefficients: Of the steps, with what traffic adds to the admission of a request.
        alone: Of undisturbed steps, as they were fitted.
        overheads: Of the front end.
        groups: What the coefficients were fitted to.
        held_out: What they were checked with.
        residuals: How far the fit is off, by measure; on single steps without what traffic adds, which they don't have.
        num_steps: Steps that were measured, the held-out ones included.
    """

    coefficients: StepCoefficients
    alone: StepCoefficients
    overheads: Overheads
    groups: tuple[StepGroup, ...]
    held_out: tuple[StepGroup, ...]
    residuals: Mapping[str, float]
    num_steps: int


@dataclass(slots=True)
class _Notes:
    """What has been seen so far."""

    samples: list[StepSample] = field(default_factory=list)
    held_out: list[StepSample] = field(default_factory=list)
    idle: list[Measurement] = field(default_factory=list)
    traffic: list[list[TrafficStep]] = field(default_factory=list)
    shared: list[list[StepSample]] = field(default_factory=list)
    delays: list[tuple[int, float]] = field(default_factory=list)


def bounds_of(info: EngineInfo, plan: CalibrationPlan) -> Bounds:
    """What the grid spans: the engine's sizes, or what is to be measured of them."""
    return Bounds(
        context_tokens=min(info.context_tokens, plan.longest_context_tokens),
        kv_capacity_tokens=info.kv_capacity_tokens,
        block_tokens=info.kv_block_tokens,
        max_num_seqs=info.max_num_seqs,
    )


async def measure(
    engine: Engine, steps: list[EngineStep], bounds: Bounds, plan: CalibrationPlan, tell: Tell
) -> list[Measurement]:
    """Runs all points of the grid, each as often as the plan says.

    Args:
        engine: Idle and warm, and nobody else's.
        steps: Where its steps are appended as they end.
        bounds: What the grid spans, from :func:`bounds_of`.
        plan: How.
        tell: Is told how far it is.
    """
    rng = random.Random(plan.seed)
    grid = make_grid(bounds, rng, quick=plan.quick)
    runner = GridRunner(engine, steps, rng)
    order = _in_random_order(grid, plan.repeats, rng)
    total = len(grid.documents) + len(order)
    for done, tokens in enumerate(grid.documents):
        tell("documents", done, total)
        await runner.read_document(tokens)
    found: list[Measurement] = []
    for done, point in enumerate(order, start=len(grid.documents)):
        tell(point.name, done, total)
        found.append(await runner.run(point))
    tell("done", total, total)
    return found


def conclude(measurements: Iterable[Measurement], bounds: Bounds, plan: CalibrationPlan) -> CalibrationFindings:
    """The fit to what :func:`measure` found with the same bounds and plan, now or long ago."""
    grid = make_grid(bounds, random.Random(plan.seed), quick=plan.quick)
    return _fitted(_take_notes(measurements, grid, plan), plan)


def _take_notes(measurements: Iterable[Measurement], grid: Grid, plan: CalibrationPlan) -> _Notes:
    notes, runs_ahead = _Notes(), plan.runs_ahead
    points = {each.name: each for each in (*grid.points, *grid.idle, *grid.traffic, *grid.shared, *grid.held_out)}
    for measurement in measurements:
        point = points[measurement.point]
        if point in grid.traffic:
            notes.traffic.append(traffic_steps_of(measurement, runs_ahead=runs_ahead))
            continue
        if point in grid.shared:
            num_sequences, prefix_tokens = len(point.prompts), point.prompts[0].document_tokens
            notes.shared.append(shared_steps_of(measurement, num_sequences, prefix_tokens, runs_ahead=runs_ahead))
            continue
        if point in grid.idle:
            notes.idle.append(measurement)
        samples = notes.held_out if point in grid.held_out else notes.samples
        samples += samples_of(measurement, since_s=_decodes_since_s(point, measurement), runs_ahead=runs_ahead)
        if point.output_tokens > 1 and not point.joining:
            notes.delays += delivery_delays(measurement)  # with the front end busy with nothing else
    return notes


def _decodes_since_s(point: Point, measurement: Measurement) -> float:
    """When all sequences decode that a point wants to see decode: their prompts come one by one, and prove nothing."""
    if point.output_tokens == 1:
        return 0.0
    return max(each.first_token_s for each in measurement.requests[: len(point.prompts)])


def _in_random_order(grid: Grid, repeats: int, rng: random.Random) -> list[Point]:
    """Each repetition runs through all points in an order of its own: what drifts on the machine hits all alike."""
    order: list[Point] = []
    for number in range(max(repeats, HELD_OUT_REPEATS)):
        points = [*grid.points, *grid.idle, *grid.traffic, *grid.shared] if number < repeats else []
        points += grid.held_out if number < min(repeats, HELD_OUT_REPEATS) else ()
        rng.shuffle(points)
        order += points
    return order


def _fitted(notes: _Notes, plan: CalibrationPlan) -> CalibrationFindings:
    quantile, at_least = plan.quantile, (plan.repeats + 1) // 2  # not what came together by chance in one repetition
    groups = group(notes.samples, at_least, quantile)
    held_out = group(notes.held_out, min(at_least, (HELD_OUT_REPEATS + 1) // 2), quantile)
    alone = fit_steps(groups)
    coefficients = with_sharing(with_traffic(alone, notes.traffic), notes.shared)
    token_s = fit_token_overhead(notes.delays, quantile)
    lone = [(each.requests[0].first_token_s - each.requests[0].submitted_s, works_of(each)) for each in notes.idle]
    request_s = fit_request_overhead(coefficients, token_s, lone, quantile)
    spreads = sorted(each.spread for each in groups if each.number >= 3)
    found = {**residuals(alone, groups, "fit"), **residuals(alone, held_out, "held_out")}
    found["traffic_bias"] = traffic_bias(coefficients, notes.traffic)
    if spreads:
        found["repetition_spread_median"] = round(spreads[len(spreads) // 2], 4)
    return CalibrationFindings(
        coefficients=coefficients,
        alone=alone,
        overheads=Overheads(request_s=request_s, token_s=token_s),
        groups=tuple(groups),
        held_out=tuple(held_out),
        residuals=found,
        num_steps=len(notes.samples) + len(notes.held_out) + sum(map(len, notes.traffic)),
    )
