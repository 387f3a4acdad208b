"""What the studies of fidelity have found: rows, summaries and rankings, for a terminal, a page and other programs."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from loadtests.live.outcome import StudyOutcome
from loadtests.machine.systems import provenance
from loadtests.studies.fidelity.pairs import Pair, goals_of, pairs_of
from loadtests.studies.fidelity.rows import FidelityRow, Ranking, Summary, ranking_of, rows_of, summaries_of
from loadtests.studies.fidelity.tables import (
    RANKING,
    RESULTS,
    SUMMARY,
    VALIDITY,
    markdown_table,
    ranking_cells,
    result_cells,
    rich_table,
    summary_cells,
    validity_cells,
)

RANKED = "balancers"
"""The part whose variants are ranked."""
RANKED_METRICS = ("ttft_p99_s", "e2e_p99_s")


@dataclass(slots=True)
class FidelityFindings:
    """What has been found so far.

    Args:
        outcomes: Of the studies, by part.
    """

    outcomes: dict[str, StudyOutcome] = field(default_factory=dict)

    def pairs(self) -> dict[str, list[Pair]]:
        """What was run twice, by part."""
        return {part: pairs for part, outcome in self.outcomes.items() if (pairs := pairs_of(outcome))}

    def rows(self) -> list[FidelityRow]:
        """Rows of the table, part by part."""
        return [
            row for part, pairs in self.pairs().items() for row in rows_of(part, pairs, goals_of(self.outcomes[part]))
        ]

    def summaries(self) -> list[Summary]:
        """Over variants and loads."""
        return summaries_of(self.rows())

    def rankings(self) -> list[Ranking]:
        """Of the balancers, where they ran."""
        ranked = self.pairs().get(RANKED)
        return [ranking_of(ranked, metric) for metric in RANKED_METRICS] if ranked else []

    def notes(self) -> list[str]:
        """What a reader has to know, a sentence each."""
        return [f"{part}: {note}" for part, outcome in self.outcomes.items() for note in outcome.notes()]

    def all_pairs(self) -> list[Pair]:
        """Those of all parts."""
        return [pair for pairs in self.pairs().values() for pair in pairs]

    def invalid(self) -> list[Pair]:
        """Those whose measurement is not valid."""
        return [pair for pair in self.all_pairs() if pair.invalid_because]


def print_findings(findings: FidelityFindings, console: Console) -> None:
    """Tables for a terminal."""
    rows = findings.rows()
    for part in dict.fromkeys(row.part for row in rows):
        title = f"{part}: medians over {max(row.rounds for row in rows if row.part == part)} rounds"
        console.print(rich_table(title, RESULTS, result_cells(row for row in rows if row.part == part)))
    console.print(rich_table("over variants and loads", SUMMARY, summary_cells(findings.summaries())))
    rankings = findings.rankings()
    if rankings:
        console.print(rich_table("balancers", RANKING, ranking_cells(rankings)))
    validity = [cells for part, pairs in findings.pairs().items() for cells in validity_cells(part, pairs)]
    console.print(rich_table("were the runs valid?", VALIDITY, validity))
    for note in findings.notes():
        console.print(Text(note))


def as_markdown(findings: FidelityFindings) -> str:
    """The same for the documentation, without the line of every run."""
    rows = findings.rows()
    num_pairs = len(findings.all_pairs())
    origin = provenance()
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    sections = [
        f"{origin['date']}, {origin['cores']} cores, {versions}. {num_pairs} runs, {len(findings.invalid())} invalid.",
        markdown_table(SUMMARY, summary_cells(findings.summaries())),
    ]
    if findings.rankings():
        sections.append(markdown_table(RANKING, ranking_cells(findings.rankings())))
    for part in dict.fromkeys(row.part for row in rows):
        sections += [f"### {part}", markdown_table(RESULTS, result_cells(row for row in rows if row.part == part))]
    sections.append("\n".join(f"- {note}" for note in findings.notes()))
    return "\n\n".join(sections)


def as_document(findings: FidelityFindings) -> dict[str, Any]:
    """Everything, for other programs."""
    return {
        "provenance": provenance(),
        "studies": {part: outcome.document() for part, outcome in findings.outcomes.items()},
        "rows": [asdict(row) | {"verdict": row.verdict} for row in findings.rows()],
        "summaries": findings.summaries(),
        "rankings": findings.rankings(),
    }
