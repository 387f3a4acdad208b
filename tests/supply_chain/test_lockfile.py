"""The lock has hashes, and they are what is installed by."""

import re

import pytest
from packaging.markers import Marker

from supply_chain.lockfile import LOCK, ROOT, WITHOUT_HASHES, Locked, read_lock, render, without_hashes
from supply_chain.resolve import CPU_BUILDS, EXTRAS, HEADER, elsewhere, files_of, with_hashes
from tests.tables import for_each

DIGEST, OTHER = "a" * 64, "b" * 64
PYTHONS = [
    {"python_version": version, "platform_machine": on} for version in ("3.11", "3.12") for on in ("x86_64", "arm64")
]


def entries() -> list[Locked]:
    return read_lock(LOCK.read_text(encoding="utf-8"))


def locked(name: str = "zipp", *hashes: str, marker: str = "") -> Locked:
    return Locked(name=name, version="1.2", hashes=frozenset(hashes), marker=marker)


def test_every_package_of_the_lock_has_a_hash() -> None:
    assert len(entries()) > 200
    assert without_hashes(entries()) == []


def test_a_package_without_a_hash_is_found() -> None:
    text = f"zipp==1.2 \\\n    --hash=sha256:{DIGEST}\nidna==3\n"

    assert without_hashes(read_lock(text)) == ["idna"]


@for_each("digest", [DIGEST[1:], DIGEST + "a", DIGEST.upper(), ""])
def test_half_a_hash_is_none(digest: str) -> None:
    with pytest.raises(ValueError, match="zipp"):
        read_lock(f"zipp==1.2 --hash=sha256:{digest}\n")


@for_each("line", ["idna>=3", "idna", "idna==3.*", "idna>3,<4"])
def test_a_package_at_no_single_version_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"idna.*: a lock has each package at one version"):
        read_lock(line)


def test_a_lock_is_read_as_it_was_written() -> None:
    written = [locked("idna", OTHER, DIGEST), locked(marker='python_version == "3.11"')]

    assert read_lock(render(["What it is."], written)) == written


def test_the_committed_lock_is_what_the_code_writes() -> None:
    assert LOCK.read_text(encoding="utf-8") == render(HEADER, entries())


def test_the_lock_is_for_every_extra_but_those_for_other_machines() -> None:
    assert {"cpu", "test", "bench", "dev", "audit"} == set(EXTRAS.split(","))


def test_what_is_installed_without_a_hash_is_a_cpu_build_where_the_lock_has_none() -> None:
    exempt = read_lock(WITHOUT_HASHES.read_text(encoding="utf-8"))
    conditional = [each for each in entries() if each.marker]

    assert {each.name for each in exempt} == {each.name for each in conditional} == CPU_BUILDS
    assert [(each.name, each.version) for each in exempt] == [(each.name, each.version) for each in conditional]
    for with_hash, without in zip(conditional, exempt, strict=True):
        for here in PYTHONS:
            assert Marker(with_hash.marker).evaluate(here) != Marker(without.marker).evaluate(here)


def test_the_environment_is_installed_by_hashes_and_by_nothing_else_but_what_is_exempt() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = re.findall(r"-m pip install (.*)", makefile)

    assert len(installs) == 2
    assert all("--no-deps" in each for each in installs)
    assert [("--require-hashes" in each, each.rpartition(" ")[2]) for each in installs] == [
        (True, "$(LOCK)"),
        (False, "$(WITHOUT_HASHES)"),
    ]


def test_what_pip_would_install_is_taken_without_its_build_and_what_is_left_out() -> None:
    def package(name: str, version: str) -> dict[str, object]:
        hashes = {"hashes": {"sha256": DIGEST}}
        return {"metadata": {"name": name, "version": version}, "download_info": {"archive_info": hashes}}

    report = {"install": [package("torch", "2.13.0+cpu"), package("zope.event", "6.2"), package("torchaudio", "2")]}

    assert files_of(report) == {"torch": ("2.13.0", DIGEST), "zope-event": ("6.2", DIGEST)}


def test_a_package_gets_the_hashes_of_all_its_files_and_a_cpu_build_the_one_that_is_known() -> None:
    chosen = {"zipp": ("1.2", DIGEST), "torch": ("2.13.0", DIGEST)}
    zipp, torch = with_hashes(chosen, {"zipp": frozenset({DIGEST, OTHER})})

    assert zipp == locked("zipp", DIGEST, OTHER)
    assert torch.hashes == {DIGEST}
    assert torch.is_for_this_python or "x86_64" in torch.marker
    assert [each.name for each in elsewhere([zipp, torch])] == ["torch"]


@for_each("known", [{}, {"zipp": frozenset({OTHER})}])
def test_sources_that_disagree_about_a_file_end_it(known: dict[str, frozenset[str]]) -> None:
    with pytest.raises(ValueError, match=r"zipp 1\.2: pip's index and uv's have different files of it"):
        with_hashes({"zipp": ("1.2", DIGEST)}, known)
