"""What an attack came to: a number, and what it may be at the most or the least."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from loadtests.simulation.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number that an attack is judged by.

    Args:
        attack: Its name.
        measured: What the number is.
        before: What the same attack did before something was done against it; empty where nobody has tried.
        now: The number; NaN where it could not be had.
        at_most: What it may be.
        at_least: What it has to be: of a control, that the attack is one where nothing keeps it out.
        unit: Of all these numbers.
    """

    attack: str
    measured: str
    now: float
    before: str = ""
    at_most: float = math.inf
    at_least: float = -math.inf
    unit: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether it has a check at all."""
        return self.at_most < math.inf or self.at_least > -math.inf

    @property
    def is_met(self) -> bool:
        """Whether the number is where it may be."""
        return self.at_least <= self.now <= self.at_most

    @property
    def check(self) -> str:
        """What it is held against, in words."""
        if self.at_most < math.inf:
            return f"<= {self._written(self.at_most)}"
        return f">= {self._written(self.at_least)}" if self.is_judged else ""

    @property
    def verdict(self) -> str:
        """Of the number."""
        if not self.is_judged:
            return ""
        return "met" if self.is_met else "MISSED"

    @property
    def written(self) -> str:
        """The number."""
        return "-" if math.isnan(self.now) else self._written(self.now)

    def _written(self, number: float) -> str:
        is_count = math.isfinite(number) and number == int(number) and not self.unit
        text = f"{number:,.0f}" if is_count else f"{number:.3g}"
        return f"{text} {self.unit}".rstrip()


def table(findings: Sequence[Finding]) -> Table:
    """A row for each finding."""
    result = Table(title="what was tried, and what came of it", title_justify="left")
    for name in ("attack", "measured", "before", "now", "check", ""):
        result.add_column(name, justify="right" if name in ("now", "check") else "left", overflow="fold")
    for index, each in enumerate(findings):
        is_last = index + 1 == len(findings) or findings[index + 1].attack != each.attack
        style = "bold red" if each.verdict == "MISSED" else ""
        cells = (each.attack, each.measured, each.before, each.written, each.check, each.verdict)
        result.add_row(*cells, end_section=is_last, style=style)
    return result


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """Whether all that is judged is met; without anything judged nothing is proved."""
    judged = [each for each in findings if each.is_judged]
    if not judged or any(math.isnan(each.now) for each in judged):
        return Verdict.INVALID
    return Verdict.PASS if all(each.is_met for each in judged) else Verdict.FAIL
