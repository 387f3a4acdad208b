"""Asks the service that pip-audit knows which vulnerabilities the versions of the lock have.

Those that ``accepted.yaml`` has, with the reason, fail nothing.

Where it can't be reached, or does not know the packages, nothing is known: that is said, and is no good news. One
package is asked for first, so that a network without the service is not asked for hundreds.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from supply_chain.lockfile import Locked

ACCEPTED = Path(__file__).with_name("accepted.yaml")
TIMEOUT_S = 15
Ask = Callable[[Path], tuple[str, str]]
"""What pip-audit printed for a file of packages: its JSON, and what it says besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known.

    Args:
        found: A line for each vulnerability that was not accepted.
        accepted: A line for each one that was.
        unknown: Packages that nothing was said of.
        not_asked: Why nothing is known at all; empty: something is.
    """

    found: Sequence[str] = ()
    accepted: Sequence[str] = ()
    unknown: Sequence[str] = ()
    not_asked: str = ""

    def __str__(self) -> str:
        """One line."""
        if self.not_asked:
            return f"not asked: {self.not_asked}"
        without = f"; nothing is said of {', '.join(self.unknown)}" if self.unknown else ""
        accepted = f"; accepted: {', '.join(self.accepted)}" if self.accepted else ""
        return f"{len(self.found)} known{accepted}{without}"


def pip_audit(packages: Path) -> tuple[str, str]:
    """Runs pip-audit."""
    options = [
        "--disable-pip",
        "--no-deps",
        "--format",
        "json",
        "--progress-spinner",
        "off",
        "--timeout",
        str(TIMEOUT_S),
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--requirement", str(packages), *options],
        check=False,  # it fails when it has found something, too
        capture_output=True,
        text=True,
    )
    return ran.stdout, ran.stderr


def accepted_ones() -> Mapping[str, str]:
    """Reasons of those that ``accepted.yaml`` has, by id."""
    written: Mapping[str, str] = yaml.safe_load(ACCEPTED.read_text(encoding="utf-8"))
    return written


def known_vulnerabilities(
    entries: Sequence[Locked], accepted: Mapping[str, str] | None = None, ask: Ask = pip_audit
) -> Answer:
    """What is known of the packages of the lock.

    Args:
        entries: Those.
        accepted: Reasons of vulnerabilities that fail nothing, by id.
        ask: Asks the service.
    """
    first = _answer(entries[:1], accepted or {}, ask)
    return first if first.not_asked else _answer(entries, accepted or {}, ask)


def _answer(entries: Sequence[Locked], accepted: Mapping[str, str], ask: Ask) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder) / "packages.txt"
        packages.write_text("".join(f"{each.name}=={each.version}\n" for each in entries), encoding="utf-8")
        printed, said = ask(packages)
    try:
        answered = json.loads(printed)["dependencies"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return Answer(not_asked=(said.strip().splitlines() or ["pip-audit said nothing"])[-1])
    unknown = [each["name"] for each in answered if "skip_reason" in each]
    if len(unknown) == len(answered):
        return Answer(not_asked="the service that answers here knows none of the packages")
    lines = {
        f"{each['name']} {each['version']}: {vulnerability['id']}": vulnerability["id"] in accepted
        for each in answered
        for vulnerability in each.get("vulns", ())
    }
    return Answer(
        found=[line for line, is_accepted in lines.items() if not is_accepted],
        accepted=[line for line, is_accepted in lines.items() if is_accepted],
        unknown=unknown,
    )
