"""SECURITY.md says what is promised against whom."""

import re

from supply_chain.lockfile import ROOT
from tests.tables import for_each

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ATTACKERS = ("Anonymous client", "Tenant", "Policy author", "Node neighbour")


def section(attacker: str) -> str:
    found = re.search(rf"^### {attacker}\n(.*?)(?=^##)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def test_every_attacker_has_a_section_and_nobody_else() -> None:
    assert tuple(re.findall(r"^### (.+)$", PAGE, flags=re.MULTILINE)) == ATTACKERS


@for_each("attacker", ATTACKERS)
def test_of_an_attacker_it_says_what_they_can_do_and_what_is_promised_and_what_is_not(attacker: str) -> None:
    assert [word for word in ("**Can**", "**Promised**", "**Not promised**") if word not in section(attacker)] == []


@for_each("attacker", ATTACKERS)
def test_what_is_promised_is_tested_or_documented_somewhere(attacker: str) -> None:
    rows = [line for line in section(attacker).splitlines() if line.startswith("| ")]
    promises = rows[[row.startswith("| **Promised**") for row in rows].index(True) :]
    promises = promises[: [row.startswith("| **Not promised**") for row in promises].index(True)]

    assert [row for row in promises if "](" not in row.rpartition(" | ")[2]] == []


def test_it_says_how_to_report_and_which_versions_get_fixes() -> None:
    assert "## Report a vulnerability" in PAGE
    assert "| Version | Gets fixes |" in PAGE
