"""Each package has a licence that is allowed, or is named."""

from email.message import Message

from supply_chain.audit import PAGE, licences_of, locked_ones
from supply_chain.licences import UNKNOWN, Rules, licence_page, licence_table
from tests.tables import for_each

RULES = Rules(
    allowed={"MIT": "permissive", "Apache-2.0": "permissive", "MPL-2.0": "by file"},
    exceptions={"haproxy": ("GPL-2.0-only", "a process of its own")},
    read={"harmony": "Apache-2.0"},
    spellings={"MIT License": "MIT", "Apache Software License": "Apache-2.0"},
)


def metadata(*headers: tuple[str, str]) -> Message:
    said = Message()
    for name, value in headers:
        said[name] = value
    return said


def refused(name: str, licence: str) -> list[str]:
    others = {"haproxy": "GPL-2.0-only", "harmony": "Apache-2.0"}
    return RULES.refusals({**others, name: licence})


@for_each(
    ("said", "licence"),
    [
        (metadata(("License-Expression", "MIT AND Apache-2.0"), ("License", "BSD")), "MIT AND Apache-2.0"),
        (metadata(("License", "mit")), "MIT"),
        (metadata(("License", "MIT License"), ("Classifier", "License :: OSI Approved :: BSD License")), "MIT"),
        (metadata(("License", "MIT License\n\nPermission is hereby granted")), UNKNOWN),
        (metadata(("License", "Dual License"), ("Classifier", "License :: OSI Approved :: MIT License")), "MIT"),
        (metadata(("Classifier", "License :: OSI Approved :: BSD License")), UNKNOWN),
        (
            metadata(
                ("Classifier", "License :: OSI Approved :: MIT License"),
                ("Classifier", "License :: OSI Approved :: Apache Software License"),
            ),
            "Apache-2.0 AND MIT",
        ),
        (metadata(), UNKNOWN),
    ],
)
def test_a_licence_is_what_the_metadata_say_in_spdxs_terms(said: Message, licence: str) -> None:
    assert RULES.licence_of("zipp", said) == licence


def test_a_licence_file_that_was_read_goes_before_the_metadata() -> None:
    assert RULES.licence_of("harmony", metadata(("License", "MIT"))) == "Apache-2.0"


def test_a_licence_that_is_not_allowed_is_named_with_its_package() -> None:
    assert refused("copied", "AGPL-3.0-only") == ["copied: AGPL-3.0-only is not among the licences that are allowed"]


def test_a_package_without_a_licence_is_named() -> None:
    assert refused("silent", UNKNOWN)[0].startswith("silent: its metadata name no licence")


@for_each(
    ("licence", "is_allowed"),
    [
        ("MIT", True),
        ("MIT AND MPL-2.0", True),
        ("MIT AND GPL-2.0-only", False),
        ("MIT OR GPL-2.0-only", True),
        ("(MIT OR GPL-2.0-only) AND GPL-2.0-only", False),
        ("GPL-2.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", False),
    ],
)
def test_all_of_an_and_must_be_allowed_and_one_of_an_or(licence: str, is_allowed: bool) -> None:
    assert (refused("zipp", licence) == []) is is_allowed


def test_an_exception_is_for_its_package_alone_and_for_its_licence() -> None:
    assert refused("haproxy", "GPL-2.0-only") == []
    assert refused("haproxy", "GPL-3.0-only") == ["haproxy: GPL-3.0-only is not among the licences that are allowed"]


def test_a_rule_that_no_package_needs_is_named() -> None:
    assert RULES.refusals({"haproxy": "GPL-2.0-only"}) == ["harmony: licences.yaml names it, and the lock does not"]


def test_the_table_is_aligned_and_grouped() -> None:
    table = licence_table({"b-long": "MIT", "a": "MIT", "c": UNKNOWN}, {"b-long": "1", "a": "2.0", "c": "3"})

    assert table == "no licence declared (1)\n  c       3\n\nMIT (2)\n  a       2.0\n  b-long  1"


def test_the_page_says_why_each_licence_is_there() -> None:
    page = licence_page({"haproxy": "GPL-2.0-only", "a": "MIT", "b": "MIT"}, RULES)

    assert "| GPL-2.0-only | haproxy | a process of its own |\n| MIT | a, b | permissive |\n" in page


def test_every_package_of_the_environment_has_a_licence_that_is_allowed() -> None:
    assert Rules.load().refusals(licences_of(locked_ones(), Rules.load())) == []


def test_the_page_is_what_make_audit_would_write() -> None:
    rules = Rules.load()
    page = licence_page(licences_of(locked_ones(), rules), rules)

    assert PAGE.read_text(encoding="utf-8") == page, "run `make audit ARGS=--write`"
