"""From samples to a profile's numbers: non-negative least squares on relative errors."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.optimize
import scipy.stats

from engines.calibration.samples import Region
from engines.calibration.step_groups import StepGroup
from engines.model.cost_model import StepCoefficients, StepWork

REGION_WEIGHTS: Mapping[Region, float] = {Region.PREFILL: 1.0, Region.DECODE: 3.0, Region.MIXED: 2.0}
"""How much a kind of step counts in the fit: a request has one prefill and hundreds of decode steps, many of them mixed
with other requests' prefills."""
Link = tuple[float, float]
"""Seconds that each transfer takes beside its bytes, and bytes per second."""
Works = Sequence[StepWork]
TERMS = StepCoefficients.__struct_fields__[:6]
"""What is fitted to steps of sequences that share nothing."""


def fit_steps(groups: Sequence[StepGroup]) -> StepCoefficients:
    """The coefficients, none of them negative, with the least mean square of relative errors.

    A relative error counts the same at 3 ms and at 300. Each kind of step has its weight, however many groups it has.
    """
    numbers = {region: sum(each.region is region for each in groups) for region in Region}
    weights = [REGION_WEIGHTS[each.region] / numbers[each.region] for each in groups]
    num_steps = [each.num_steps for each in groups]
    return fit_relative([each.work for each in groups], [each.seconds for each in groups], weights, num_steps)


def fit_relative(
    works: Works,
    seconds: Sequence[float],
    weights: Sequence[float] | None = None,
    num_steps: Sequence[int] | None = None,
) -> StepCoefficients:
    """Coefficients for any pairs of work and time.

    Args:
        works: What was computed.
        seconds: How long it took.
        weights: Of squared relative errors; all alike where not given.
        num_steps: In how many steps; in one each where not given.
    """
    measured = np.asarray(seconds)
    counts = num_steps or [1] * len(works)
    rows = np.array([(count, *work[:5]) for count, work in zip(counts, works, strict=True)], dtype=float)
    rows /= measured[:, None]
    roots = np.ones(len(measured)) if weights is None else np.sqrt(np.asarray(weights))
    scales = np.maximum(rows.max(axis=0), np.finfo(float).tiny)  # columns of like size, or the solver stops early
    solution, _ = scipy.optimize.nnls(rows / scales * roots[:, None], roots)
    return StepCoefficients(**dict(zip(TERMS, map(float, solution / scales), strict=True)))


def relative_error(coefficients: StepCoefficients, group: StepGroup) -> float:
    """How far the model is off, as a fraction of what was measured; positive when it is too slow."""
    return group.modelled_s(coefficients) / group.seconds - 1


def residuals(coefficients: StepCoefficients, groups: Sequence[StepGroup], name: str) -> dict[str, float]:
    """Median, 90th percentile and bias of the relative errors, for each kind of step."""
    found: dict[str, float] = {}
    for region in Region:
        errors = [relative_error(coefficients, each) for each in groups if each.region is region]
        if errors:
            sizes = np.abs(errors)
            found[f"{name}_{region}_median"] = round(float(np.median(sizes)), 4)
            found[f"{name}_{region}_p90"] = round(float(np.quantile(sizes, 0.9)), 4)
            found[f"{name}_{region}_bias"] = round(float(np.median(errors)), 4)
    return found


def contributions(coefficients: StepCoefficients, groups: Sequence[StepGroup]) -> dict[Region, dict[str, float]]:
    """What part of a step's time each coefficient accounts for, on average over the groups of a region."""
    factors = np.array([getattr(coefficients, name) for name in TERMS])
    shares: dict[Region, list[np.ndarray]] = defaultdict(list)
    for each in groups:
        terms = factors * np.array([each.num_steps, *each.work[:5]])
        shares[each.region].append(terms / terms.sum())
    return {
        region: dict(zip(TERMS, np.mean(shares[region], axis=0).tolist(), strict=True))
        for region in Region
        if region in shares
    }
