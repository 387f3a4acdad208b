"""A run as JUnit XML, which every CI system shows: a test case for the run's validity, and one for each check."""

from pathlib import Path
from xml.etree import ElementTree

from loadtests.results.run_record import RunRecord

JUNIT_FILE = "junit.xml"
"""Its name in a run's folder."""


def write_junit(path: Path, record: RunRecord) -> None:
    """Writes the file.

    Args:
        path: Where.
        record: What the run came to. A missed check is a failure, one that was not judged is skipped, and every reason
            why the run proves nothing is an error.
    """
    name = f"{record.scenario}.{record.driver}"
    suite = ElementTree.Element("testsuite", name=name, timestamp=record.started_at[:19])
    validity = _case(suite, name, "the run is valid")
    for problem in record.problems:
        ElementTree.SubElement(validity, "error", message=problem)
    for check in record.checks:
        case = _case(suite, name, check.text)
        if check.verdict == "missed":
            ElementTree.SubElement(case, "failure", message=f"it was {check.value:.4g}")
        elif check.verdict != "met":
            ElementTree.SubElement(case, "skipped", message=check.problem)
    for kind in ("failure", "error", "skipped"):
        suite.set({"failure": "failures", "error": "errors"}.get(kind, kind), str(len(suite.findall(f"*/{kind}"))))
    suite.set("tests", str(len(suite)))
    ElementTree.indent(suite)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _case(suite: ElementTree.Element, of: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=of, name=name)
