"""A report as one HTML file that needs nothing else, and as Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtests.reports import run_tables, tables
from loadtests.reports.cells import TONES, Table
from loadtests.reports.charts import Chart, latency_charts, rate_charts, timeline_charts
from loadtests.reports.runs import Chapter
from loadtests.reports.svg.plot import style_of
from loadtests.simulation.verdict import Verdict

TEMPLATE = "page.html.j2"
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).resolve().parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, kw_only=True)
class ChapterView:
    """A chapter's tables and charts, ready to be shown.

    Args:
        chapter: What they are of.
        number: Its place in the report, from 1.
    """

    chapter: Chapter
    number: int
    runs: Table
    problems: Sequence[str]
    checks: Table
    goodput: Table
    rate_charts: Sequence[Chart]
    agreement: Table
    comparisons: Sequence[Table]
    latencies: Sequence[tuple[str, Sequence[Chart]]]
    percentiles: Sequence[Table]
    timeline: Sequence[Chart]
    budgets: Sequence[Table]
    amplification: Table
    reasons: Table
    validity: Table
    notes: Sequence[str]

    @property
    def checks_text(self) -> str:
        """How many checks are met."""
        results = [
            cell.text for row in self.checks.rows for cell in row if cell.text in {"met", "missed", "not judged"}
        ]
        counts = {result: results.count(result) for result in ("met", "missed", "not judged")}
        return ", ".join(f"{count} {result}" for result, count in counts.items() if count) or "none"

    @property
    def all_tables(self) -> Iterator[Table]:
        """Its tables, in the page's order."""
        yield from (self.runs, self.checks, self.goodput, self.agreement, *self.comparisons, *self.percentiles)
        yield from (*self.budgets, self.amplification, self.reasons, self.validity)


def view(chapter: Chapter, number: int) -> ChapterView:
    """Works everything out that the page shows of a chapter."""
    return ChapterView(
        chapter=chapter,
        number=number,
        runs=run_tables.runs_table(chapter),
        problems=run_tables.problems(chapter),
        checks=run_tables.checks_table(chapter),
        goodput=tables.goodput_table(chapter),
        rate_charts=list(rate_charts(chapter)),
        agreement=tables.agreement_table(chapter),
        comparisons=list(tables.comparison_tables(chapter)),
        latencies=list(latency_charts(chapter)),
        percentiles=list(tables.percentile_tables(chapter)),
        timeline=list(timeline_charts(chapter)),
        budgets=list(tables.budget_tables(chapter)),
        amplification=tables.amplification_table(chapter),
        reasons=tables.reasons_table(chapter),
        validity=run_tables.validity_table(chapter),
        notes=run_tables.notes(chapter),
    )


def page(title: str, views: Sequence[ChapterView], overall: Verdict) -> str:
    """The report as HTML. Scripts are in none of it, and the page forbids them."""
    template = _ENVIRONMENT.get_template(TEMPLATE)
    return template.render(
        title=title, views=views, overall=overall.name, formulas=run_tables.formulas(), tones=TONES, style_of=style_of
    )


def summary(title: str, views: Sequence[ChapterView], overall: Verdict) -> str:
    """The report's tables as Markdown."""
    parts = [f"# {_inline(title)}", f"**{overall.name}**"]
    for each in views:
        parts += [
            f"## {_inline(each.chapter.scenario)}: {each.chapter.verdict.name}",
            _inline(each.chapter.description),
        ]
        parts += [f"- {_inline(problem)}" for problem in each.problems]
        for table in each.all_tables:
            if table.rows:
                parts += [f"### {_inline(table.title)}", _markdown(table), *([table.note] if table.note else [])]
        parts += [f"- {_inline(note)}" for note in each.notes]
    return "\n\n".join(parts) + "\n"


def _markdown(table: Table) -> str:
    """A pipe table; columns without words, which hold bars, are left out."""
    written = table.only([index for index in range(len(table.head)) if any(row[index].text for row in table.rows)])
    lines = [
        [_inline(name) for name in written.head],
        ["---:" if cell.is_number else "---" for cell in written.rows[0]],
        *([_inline(cell.text) for cell in row] for row in written.rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _inline(text: str) -> str:
    """Text that means itself in Markdown: no tags, no table borders, on one line."""
    plain = " ".join(text.split())
    for character in "\\`*|<>[]":
        plain = plain.replace(character, f"\\{character}")
    return plain
