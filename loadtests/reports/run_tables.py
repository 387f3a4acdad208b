"""Tables of what was run, and of whether it proves anything."""

import math
from dataclasses import fields

from loadtests.reports.cells import ReportCell, Table, badge, number_cell, text
from loadtests.reports.runs import Chapter
from loadtests.reports.wording import metric_text, named, seed_text
from loadtests.results.metrics import ALL, METRICS
from loadtests.simulation.result_table import number


def runs_table(chapter: Chapter) -> Table:
    """What was run, and what became of it."""
    rows = [
        [
            named(series),
            badge(series.verdict.name),
            text(series.record.driver),
            text(series.record.target),
            text(seed_text(series.runs)),
            number_cell(number(series.mean(ALL, "offered_rps"))),
            number_cell(f"{sum(len(run.rows.logical_request) for run in series.runs.values()):,}"),
        ]
        for series in chapter.series
    ]
    head = ("series", "verdict", "driver", "target", "seeds", "offered/s", "requests")
    return Table(title="Runs", head=head, rows=rows)


def problems(chapter: Chapter) -> list[str]:
    """Why runs are invalid, a sentence each."""
    return list(dict.fromkeys(problem for run in chapter.runs for problem in run.record.problems))


def notes(chapter: Chapter) -> list[str]:
    """What a reader has to know of the runs."""
    return list(dict.fromkeys(note for run in chapter.runs for note in run.record.notes))


def checks_table(chapter: Chapter) -> Table:
    """The scenario's checks; a check that was judged once for all seeds has one row."""
    rows: dict[object, list[ReportCell]] = {}
    seeds: dict[object, list[int]] = {}
    for series in chapter.series:
        for seed, run in series.runs.items():
            for check in run.record.checks:
                seeds.setdefault((series.number, check), []).append(seed)
                value = number(math.nan if check.value is None else check.value)
                rows[series.number, check] = [
                    named(series), text(check.text), number_cell(value), badge(check.verdict), text(check.problem)
                ]  # fmt: skip
    listed = [[*row[:1], text(seed_text(seeds[key])), *row[1:]] for key, row in rows.items()]
    return Table(title="Checks", head=("series", "seeds", "check", "value", "result", "why"), rows=listed)


def validity_table(chapter: Chapter) -> Table:
    """Whether clients were fast enough to measure anything; the simulator has none."""
    measured = [run.record.health for run in chapter.runs if run.record.health is not None]
    columns = [each.name for health in measured[:1] for each in fields(health) if each.name != "errors"]
    rows = [
        [
            named(series),
            number_cell(str(seed)),
            *(number_cell(metric_text(name, float(getattr(run.record.health, name)))) for name in columns),
            text("; ".join(f"{error}: {count:,}" for error, count in run.record.health.errors.items()) or "none"),
        ]
        for series in chapter.series
        for seed, run in series.runs.items()
        if run.record.health is not None
    ]
    names = (name.removesuffix("_fraction").removesuffix("_s").replace("_", " ") for name in columns)
    return Table(title="Validity", head=("series", "seed", *names, "errors"), rows=rows)


def formulas() -> Table:
    """What every metric means."""
    rows = [[text(each.name), text(each.meaning)] for each in METRICS.values()]
    return Table(title="Formulas", head=("metric", "meaning"), rows=rows)
