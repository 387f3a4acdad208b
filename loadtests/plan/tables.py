"""Capacity plans as tables in a terminal."""

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from loadtests.plan.figures import Group as FigureGroup
from loadtests.plan.figures import WorkedFigure
from loadtests.plan.fleet_search import Searched, Trial
from loadtests.plan.sizing.prediction import Prediction, values_of
from loadtests.plan.verification import Verified, said

_COSTS = "$/h", "$/M tokens"
_SHOWN = {
    "goodput_fraction": "within SLOs",
    "refused_fraction": "refused",
    "ttft_p50_s": "TTFT p50, s",
    "ttft_p99_s": "TTFT p99, s",
    "tpot_p50_s": "TPOT p50, s",
    "tpot_p99_s": "TPOT p99, s",
}
"""Metrics of runs, as they are headed."""


def figure_table(group: FigureGroup, figures: Iterable[WorkedFigure]) -> Group:
    """Figures with their formulas, beside what is told of them."""
    inputs = ", ".join(f"{name} {_number(value)}" for name, value in group.inputs.items())
    table = _table("figure", "value", "told", "formula", "assumes")
    for each in figures:
        figure, instead = each.figure, each.figure.instead
        cells = Text(figure.name), Text(_number(each.value)), _told(each), Text(figure.formula), Text(figure.assumes)
        table.add_row(*cells)
        if instead is not None:
            name, value = f"  {instead.name or 'instead'}", _number(each.instead_value)
            table.add_row(Text(name), Text(value), "", Text(instead.formula), Text(instead.why), style="dim")
    return Group(Text(group.name, "bold"), Text(group.about), Text(inputs, "dim"), table)


def _told(worked: WorkedFigure) -> Text:
    said = worked.figure.said
    if said is None:
        return Text("")
    return Text(f"{said:,f}: equal") if worked.is_as_said else Text(f"{said:,f}: differs", "bold red")


def attained(found: Prediction) -> str:
    """What is predicted of SLOs, in words."""
    return f"{found.attained_fraction:.2%} within SLOs" if found.fits else "more than engines hold"


def size_table(predictions: Sequence[Prediction]) -> Group:
    """A size and its neighbours, predicted."""
    names = ("utilisation", "kv_residency", "sequence_fraction", "tpot_s", "ttft_p50_s", "ttft_p99_s", "e2e_p99_s")
    table = _table("replicas", "predicted", *names, "dollars per million")
    for each in predictions:
        values = values_of(each.figures)
        cells = [_number(values[name]) for name in (*names, "dollars_per_million_tokens")]
        table.add_row(said(each.replicas), attained(each), *cells)
    return Group(Text("that size and its neighbours, predicted", "bold"), table)


def verified_table(title: str, found: Sequence[Verified]) -> Group:
    """What the simulator says of a plan, of smaller ones, and of losses."""
    table = _table("simulated", "SLOs", *_SHOWN.values())
    for each in found:
        table.add_row(each.name, _kept(keeps=each.keeps), *_shown(each.metrics))
    return Group(Text(title, "bold"), table)


def cheapest_table(searched: Sequence[Searched], attained_fraction: float) -> Group:
    """Each candidate at its cheapest, or the best of what was tried where no size keeps its SLOs."""
    table = _table("candidate", "replicas", "SLOs", *_COSTS, *_SHOWN.values(), "tried")
    for each in searched:
        trial = each.cheapest or max(each.trials, key=lambda trial: trial.goodput_fraction)
        table.add_row(each.candidate.name, *_trial_cells(trial), str(len(each.trials)))
    title = f"each candidate at its cheapest: SLOs of {attained_fraction:.2%} of the requests are to be kept"
    return Group(Text(title, "bold"), table)


def front_table(front: Sequence[Trial]) -> Group:
    """What more money buys."""
    table = _table("candidate", "replicas", "SLOs", *_COSTS, *_SHOWN.values())
    for each in front:
        table.add_row(each.candidate, *_trial_cells(each))
    return Group(Text("what more money buys: no cheaper fleet that was simulated is as good", "bold"), table)


def _trial_cells(trial: Trial) -> list[str]:
    costs = map(_number, (trial.dollars_per_h, trial.dollars_per_million_tokens))
    return [said(trial.replicas), _kept(keeps=trial.keeps), *costs, *_shown(trial.metrics)]


def _shown(metrics: Mapping[str, float]) -> list[str]:
    return [f"{metrics[name]:.2%}" if name.endswith("_fraction") else _number(metrics[name]) for name in _SHOWN]


def _kept(*, keeps: bool) -> str:
    return "kept" if keeps else "missed"


def _table(first: str, *others: str) -> Table:
    prose = {"formula": 3, "assumes": 2}
    table = Table(box=box.SIMPLE_HEAD, expand="formula" in others, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(
            name, ratio=prose.get(name), no_wrap=name not in prose, justify="left" if name in prose else "right"
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
