"""Checks what is installed against the lock, and licences against those that are allowed; ``make audit`` runs it.

It leaves the bill of materials in ``.run/sbom.cdx.json``. Exit status: 0 when all is well, 1 when something was found.
That no service could be asked for vulnerabilities is said, and fails nothing.
"""

import argparse
from collections.abc import Sequence

from supply_chain.installed import Installed, differences, installed, versions_of
from supply_chain.licences import Rules, licence_page, licence_table
from supply_chain.lockfile import LOCK, ROOT, WITHOUT_HASHES, Locked, read_lock, without_hashes
from supply_chain.sbom import bill_of_materials
from supply_chain.vulnerabilities import Answer, accepted_ones, known_vulnerabilities

PAGE = ROOT / "docs" / "reference" / "licences.md"
SBOM = ROOT / ".run" / "sbom.cdx.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: what was found, with the licences before it."""
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"writes {PAGE.relative_to(ROOT)} anew")
    parser.add_argument("--offline", action="store_true", help="asks no service for vulnerabilities")
    options = parser.parse_args(arguments)
    entries, present, rules = read_lock(LOCK.read_text(encoding="utf-8")), locked_ones(), Rules.load()
    licences = licences_of(present, rules)
    page = licence_page(licences, rules)
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    SBOM.parent.mkdir(exist_ok=True)
    SBOM.write_text(bill_of_materials(present, licences), encoding="utf-8")
    answer = Answer(not_asked="--offline") if options.offline else known_vulnerabilities(entries, accepted_ones())
    found = {
        "Lock": [f"{name}: no hash" for name in without_hashes(entries)],
        "Installed": differences(entries, versions_of(installed().items())),
        "Licences": rules.refusals(licences),
        "Licences' page": []
        if PAGE.read_text(encoding="utf-8") == page
        else [f"not what {PAGE.name} would be: --write"],
    }
    print(licence_table(licences, versions_of(present.items())))
    print(_summary(entries, present))
    return _tell(found, answer)


def locked_ones() -> Installed:
    """What is installed of the lock's packages."""
    names = {each.name for each in read_lock(LOCK.read_text(encoding="utf-8"))}
    return {name: each for name, each in sorted(installed().items()) if name in names}


def licences_of(present: Installed, rules: Rules) -> dict[str, str]:
    """The licence of each package, by name."""
    return {name: rules.licence_of(name, each.metadata) for name, each in present.items()}  # type: ignore[arg-type]


def _summary(entries: Sequence[Locked], present: Installed) -> str:
    unhashed = [each.name for each in read_lock(WITHOUT_HASHES.read_text(encoding="utf-8")) if each.is_for_this_python]
    rows = [
        ("lock", f"{len(entries)} packages, {sum(len(each.hashes) for each in entries)} hashes"),
        ("installed", f"{len(present)} of them"),
        ("without a hash here", ", ".join(unhashed) or "none"),
        ("bill of materials", str(SBOM.relative_to(ROOT))),
    ]
    return "\n" + "\n".join(f"{name:<20}  {text}" for name, text in rows)


def _tell(found: dict[str, list[str]], answer: Answer) -> int:
    parts = found if answer.not_asked else {**found, "Vulnerabilities": list(answer.found)}
    for part, lines in parts.items():
        print("\n  ".join([f"{part + ':':<20}  {'' if lines else 'nothing found'}".rstrip(), *lines]))
    if answer.not_asked or answer.accepted or answer.unknown:
        print(f"{'Vulnerabilities:':<20}  {answer}")
    return int(any(parts.values()))
