"""What a service says of the packages is told, and that it says nothing is told, too."""

import json
from pathlib import Path

from supply_chain.lockfile import Locked
from supply_chain.vulnerabilities import accepted_ones, known_vulnerabilities
from tests.tables import for_each

ENTRIES = [Locked(name=name, version="3", hashes=frozenset()) for name in ("idna", "zipp")]
ASKED: list[str] = []


def saying(*dependencies: object) -> tuple[str, str]:
    return json.dumps({"dependencies": dependencies}), ""


def clean(packages: Path) -> tuple[str, str]:
    return saying(*({"name": name, "version": "3", "vulns": []} for name in _names(packages)))


def knowing_one(packages: Path) -> tuple[str, str]:
    known = {"name": "idna", "version": "3", "vulns": [{"id": "GHSA-1"}]}
    return saying(known, *({"name": name, "skip_reason": "unknown"} for name in _names(packages)[1:]))


def knowing_none(packages: Path) -> tuple[str, str]:
    ASKED.extend(_names(packages))
    return saying(*({"name": name, "skip_reason": "not found"} for name in _names(packages)))


def _names(packages: Path) -> list[str]:
    return [line.partition("==")[0] for line in packages.read_text(encoding="utf-8").splitlines()]


def test_vulnerabilities_are_named_with_their_package() -> None:
    answer = known_vulnerabilities(ENTRIES, ask=knowing_one)

    assert answer.found == ["idna 3: GHSA-1"]
    assert str(answer) == "1 known; nothing is said of zipp"


def test_a_vulnerability_that_was_accepted_is_told_and_fails_nothing() -> None:
    answer = known_vulnerabilities(ENTRIES, {"GHSA-1": "only in a part that is not used"}, knowing_one)

    assert answer.found == []
    assert str(answer) == "0 known; accepted: idna 3: GHSA-1; nothing is said of zipp"


def test_what_is_accepted_has_a_reason() -> None:
    assert all(accepted_ones().values())


def test_that_none_are_known_is_an_answer() -> None:
    assert str(known_vulnerabilities(ENTRIES, ask=clean)) == "0 known"


def test_a_service_that_knows_no_package_was_not_asked_and_gets_no_second_question() -> None:
    ASKED.clear()
    answer = known_vulnerabilities(ENTRIES, ask=knowing_none)

    assert str(answer) == "not asked: the service that answers here knows none of the packages"
    assert ASKED == ["idna"]


@for_each("printed", ["", "no JSON", "{}", "[]"])
def test_a_service_that_cannot_be_reached_was_not_asked(printed: str) -> None:
    answer = known_vulnerabilities(ENTRIES, ask=lambda _: (printed, "trying\nno route to host\n"))

    assert answer.not_asked == "no route to host"
    assert not answer.found
