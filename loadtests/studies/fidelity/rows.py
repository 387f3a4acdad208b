"""Pairs of simulated and measured metrics, put together for a table: rows, summaries, rankings."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from loadtests.live.outcome import StudyRun
from loadtests.studies.fidelity.pairs import SHOWN, Pair, value, values


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityRow:
    """One metric at one load, over all rounds.

    Args:
        part: What was deployed.
        variant: Which users, or which balancer.
        load: Share of the capacity.
        metric: Which.
        measured: Median over rounds.
        measured_range: Smallest and largest over rounds.
        simulated: Median over rounds.
        error: Median over rounds of (simulated - measured) / measured, each round with its own plan.
        error_range: Smallest and largest error over rounds.
        goal: Largest error that is good enough; ``None`` for no goal.
        invalid: Rounds that are not valid.
        rounds: All rounds.
    """

    part: str
    variant: str
    load: float
    metric: str
    measured: float
    measured_range: tuple[float, float]
    simulated: float
    error: float
    error_range: tuple[float, float]
    goal: float | None
    invalid: int
    rounds: int

    @property
    def verdict(self) -> str:
        """``met``, ``missed``, or empty where there is no goal; marked when no round was valid."""
        verdict = "" if self.goal is None else "met" if abs(self.error) <= self.goal else "missed"
        return f"{verdict} INVALID".strip() if self.invalid == self.rounds else verdict


def rows_of(part: str, pairs: Sequence[Pair], goals: Mapping[tuple[str, str], float]) -> list[FidelityRow]:
    """A row for each load and metric, in the order of the pairs. Invalid rounds count like the others, and are marked.

    Args:
        part: What was deployed.
        pairs: All rounds.
        goals: The largest error that is good enough, by variant and metric.
    """
    by_place: dict[tuple[str, float], list[Pair]] = {}
    for pair in pairs:
        by_place.setdefault(pair.place, []).append(pair)
    return [
        _row(part, rounds, metric, goals.get((variant, metric)))
        for (variant, _), rounds in by_place.items()
        for metric in SHOWN
    ]


def _row(part: str, rounds: Sequence[Pair], metric: str, goal: float | None) -> FidelityRow:
    measured = values([pair.measured for pair in rounds], metric)
    errors = [pair.error(metric) for pair in rounds]
    variant, load = rounds[0].place
    return FidelityRow(
        part=part,
        variant=variant,
        load=load,
        metric=metric,
        measured=statistics.median(measured),
        measured_range=(min(measured), max(measured)),
        simulated=statistics.median(values([pair.simulated for pair in rounds], metric)),
        error=statistics.median(errors),
        error_range=(min(errors), max(errors)),
        goal=goal,
        invalid=sum(bool(pair.invalid_because) for pair in rounds),
        rounds=len(rounds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One metric over all workloads and loads of a part.

    Args:
        part: What was deployed.
        metric: Which.
        median: Median of the absolute errors of its rows.
        worst: Largest.
        bias: Median of the signed errors.
        goal: As in :class:`FidelityRow`.
        met: Rows that meet the goal.
        rows: All rows.
    """

    part: str
    metric: str
    median: float
    worst: float
    bias: float
    goal: float | None
    met: int
    rows: int


def summaries_of(rows: Sequence[FidelityRow]) -> list[Summary]:
    """A summary for each part and metric."""
    summaries = []
    for part, metric in dict.fromkeys((row.part, row.metric) for row in rows):
        mine = [row for row in rows if (row.part, row.metric) == (part, metric)]
        absolute = [abs(row.error) for row in mine]
        goal = mine[0].goal
        summaries.append(
            Summary(
                part=part,
                metric=metric,
                median=statistics.median(absolute),
                worst=max(absolute),
                bias=statistics.median(row.error for row in mine),
                goal=goal,
                met=sum(row.goal is not None and abs(row.error) <= row.goal for row in mine),
                rows=len(mine),
            )
        )
    return summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How the simulator ranks variants against how reality ranks them, by one metric.

    Args:
        metric: Which.
        measured: Variants and their medians, best first.
        simulated: Likewise.
        tau: Kendall's tau-b between the two.
        separable: Pairs of variants that differ by more than their spread over rounds.
        agreed: Those of them that the simulator puts in the same order.
        pairs: All pairs.
    """

    metric: str
    measured: Sequence[tuple[str, float]]
    simulated: Sequence[tuple[str, float]]
    tau: float
    separable: int
    agreed: int
    pairs: int


def ranking_of(pairs: Sequence[Pair], metric: str) -> Ranking:
    """Ranks the variants by one metric, smaller is better.

    Two variants are separable when one of them is better in every round: rounds are paired by seed, so they met the
    same requests.
    """
    rounds: dict[str, dict[int, Pair]] = {}
    for pair in pairs:
        rounds.setdefault(pair.measured.variant, {})[pair.measured.seed] = pair
    measured = {name: _median([pair.measured for pair in mine.values()], metric) for name, mine in rounds.items()}
    simulated = {name: _median([pair.simulated for pair in mine.values()], metric) for name, mine in rounds.items()}
    names = list(rounds)
    couples = [(one, other) for index, one in enumerate(names) for other in names[index + 1 :]]
    separable = [each for each in couples if _differ(rounds[each[0]], rounds[each[1]], metric)]
    agreed = [
        (one, other)
        for one, other in separable
        if (measured[one] < measured[other]) == (simulated[one] < simulated[other])
    ]
    return Ranking(
        metric=metric,
        measured=sorted(measured.items(), key=lambda item: item[1]),
        simulated=sorted(simulated.items(), key=lambda item: item[1]),
        tau=_tau([measured[name] for name in names], [simulated[name] for name in names]),
        separable=len(separable),
        agreed=len(agreed),
        pairs=len(couples),
    )


def _median(runs: Sequence[StudyRun], metric: str) -> float:
    return statistics.median(values(runs, metric))


def _differ(one: Mapping[int, Pair], other: Mapping[int, Pair], metric: str) -> bool:
    seeds = one.keys() & other.keys()
    signs = {value(one[seed].measured, metric) < value(other[seed].measured, metric) for seed in seeds}
    return len(signs) == 1


def _tau(measured: Sequence[float], simulated: Sequence[float]) -> float:
    """Kendall's tau-b; a share of a few pairs, so what floating point adds to it is taken off again."""
    return round(float(stats.kendalltau(measured, simulated).statistic), 9)
