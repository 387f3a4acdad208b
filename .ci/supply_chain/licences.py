"""Under which licence each package is, and which ones are allowed: ``licences.yaml`` says both, with the reasons."""

from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import yaml
from license_expression import ExpressionError, LicenseExpression, get_spdx_licensing

RULES = Path(__file__).with_name("licences.yaml")
UNKNOWN = ""
"""Of a package whose metadata name no licence."""
NOTICE = (
    "<!-- Written by `make audit ARGS=--write`. Change .ci/supply_chain/licences.yaml or the lock, and run that. -->"
)
INTRODUCTION = """
The packages of the CPU environment (`requirements-cpu.lock`), by licence as they declare it, in SPDX's terms. spillway
is under Apache-2.0 and ships none of them; an image of the environment passes them on. `make audit` fails when one is
under a licence that `.ci/supply_chain/licences.yaml` does not allow. Licences of code that a package has taken in stand
in its own files, not here.
"""
_SPDX = get_spdx_licensing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is allowed.

    Args:
        allowed: Licences that any package may have, with the reason.
        exceptions: Licence and reason of packages that may have one which others may not, by name.
        read: What packages' licence files say where metadata don't, by name.
        spellings: SPDX's name for how else a licence is written.
    """

    allowed: Mapping[str, str]
    exceptions: Mapping[str, tuple[str, str]]
    read: Mapping[str, str]
    spellings: Mapping[str, str]

    @classmethod
    def load(cls) -> "Rules":
        """Those of ``licences.yaml``."""
        written: Mapping[str, Any] = yaml.safe_load(RULES.read_text(encoding="utf-8"))
        return cls(
            allowed={name: group["why"] for group in written["allowed"] for name in group["licences"]},
            exceptions={name: (each["licence"], each["why"]) for name, each in written["exceptions"].items()},
            read=written["read"],
            spellings=written["spellings"],
        )

    def licence_of(self, name: str, metadata: Message) -> str:
        """A package's licence as an SPDX expression, or ``UNKNOWN``.

        The licence file goes before the metadata where somebody has read it; an expression before free text, and that
        before classifiers, all of which then apply.

        Args:
            name: Of the package.
            metadata: Its own.
        """
        if name in self.read:
            return self.read[name]
        declared = metadata.get("License-Expression") or metadata.get("License") or ""
        classifiers = [each for each in metadata.get_all("Classifier", []) if each.startswith("License :: ")]
        named = [self._spdx(each.rpartition(" :: ")[2]) for each in classifiers]
        joined = UNKNOWN if UNKNOWN in named else " AND ".join(sorted(set(named)))
        return self._spdx(declared) or joined

    def why(self, name: str, licence: str) -> str:
        """Why a package may have a licence; empty: it may not."""
        excepted, why = self.exceptions.get(name, (UNKNOWN, ""))
        if licence != UNKNOWN and licence == excepted:
            return why
        return "; ".join(sorted({self.allowed[each] for each in _chosen(licence, self.allowed)}))

    def refusals(self, licences: Mapping[str, str]) -> list[str]:
        """A line for each package that may not have its licence, and for each rule that no package needs.

        Args:
            licences: Of packages, by name.
        """
        found = []
        for name, licence in sorted(licences.items()):
            if licence == UNKNOWN:
                found.append(
                    f"{name}: its metadata name no licence; read its licence file, and write down what it says"
                )
            elif not self.why(name, licence):
                found.append(f"{name}: {licence} is not among the licences that are allowed")
        idle = sorted((self.exceptions.keys() | self.read.keys()) - licences.keys())
        return found + [f"{name}: licences.yaml names it, and the lock does not" for name in idle]

    def _spdx(self, text: str) -> str:
        """An expression whose every part SPDX knows, in its spelling, or ``UNKNOWN``."""
        text = self.spellings.get(text.strip(), text.strip())
        if not text or "\n" in text:
            return UNKNOWN
        try:
            parsed = _SPDX.parse(text)
        except ExpressionError:
            return UNKNOWN
        return UNKNOWN if parsed is None or _SPDX.unknown_license_keys(parsed) else str(parsed.render())


def by_licence(licences: Mapping[str, str]) -> dict[str, list[str]]:
    """Packages' names for each licence, both sorted."""
    groups: dict[str, list[str]] = {}
    for name, licence in sorted(licences.items()):
        groups.setdefault(licence, []).append(name)
    return dict(sorted(groups.items(), key=lambda group: group[0].casefold()))


def licence_table(licences: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """All packages, aligned and grouped by licence.

    Args:
        licences: By package.
        versions: By package.
    """
    width = max((len(name) for name in licences), default=0)
    blocks = []
    for licence, names in by_licence(licences).items():
        rows = [f"  {name:<{width}}  {versions[name]}" for name in names]
        blocks.append("\n".join([f"{licence or 'no licence declared'} ({len(names)})", *rows]))
    return "\n\n".join(blocks)


def licence_page(licences: Mapping[str, str], rules: Rules) -> str:
    """``docs/reference/licences.md``.

    Args:
        licences: By package.
        rules: That allow them.
    """
    rows = ["| Licence | Packages | Used because |", "|---|---|---|"]
    for licence, names in by_licence(licences).items():
        reasons = {name: rules.why(name, licence) for name in names}
        for why in dict.fromkeys(reasons.values()):
            group = ", ".join(name for name in names if reasons[name] == why)
            rows.append(f"| {licence or 'not declared'} | {group} | {why or 'not allowed'} |")
    return "\n\n".join(["# Licences", NOTICE, INTRODUCTION.strip(), "\n".join(rows)]) + "\n"


def _chosen(licence: str, allowed: Mapping[str, str]) -> list[str]:
    """The licences by which something is used: all of an AND, of an OR those that are allowed; or none."""
    return _terms(_SPDX.parse(licence), allowed) or [] if licence else []


def _terms(expression: LicenseExpression, allowed: Mapping[str, str]) -> list[str] | None:
    operator = getattr(expression, "operator", "").strip()
    if not operator:
        name = str(expression.render())
        return [name] if name in allowed else None
    parts = [_terms(each, allowed) for each in expression.args]
    usable = [each for each in parts if each is not None]
    if not usable or (operator == "AND" and len(usable) < len(parts)):
        return None
    return [name for part in usable for name in part]
