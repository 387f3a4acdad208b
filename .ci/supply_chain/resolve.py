"""Finds versions and hashes anew and writes requirements-cpu.lock; ``make lock`` runs it.

Three packages that vLLM's CPU build asks for are left out: beside a CPU build of torch the registries have only their
CUDA builds, and with those transformers can't be imported; text serving needs none of them. Of NIXL's builds one is
enough, and it runs without a GPU. pip is the environment's own, which installs the rest.

pip decides on versions, by the index that it is configured for. uv tells the hashes of all files of these versions, so
that the lock is right for each Python and platform; they come from the index that uv is configured for. What pip would
install must be among them: two sources that disagree about a file end it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from supply_chain.lockfile import LOCK, ROOT, WITHOUT_HASHES, Locked, read_lock, render

LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec", "nixl-cu13", "pip", "spillway"})
EXTRAS = "cpu,test,bench,dev,audit"
CPU_BUILDS = frozenset({"torch"})
"""Have a build for CPUs beside those of the index, for each Python by itself."""
HEADER = (
    f"The CPU environment ({EXTRAS}); written by `make lock`, installed with --no-deps and --require-hashes.",
    "Hashes are of all files that the index has of a version, for whatever Python and platform, but for torch: its CPU",
    "build is a file of its own for each Python, and the one here is that of the Python in its line, on x86-64. On any",
    "other Python torch alone is installed without a hash: .ci/without-hashes.txt. pip must find that build by its own",
    "configuration; a CUDA build is refused on that one.",
)
WITHOUT_HASHES_HEADER = (
    "What is installed without a hash, and where: written by `make lock`; requirements-cpu.lock says why.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: writes the lock."""
    parser = argparse.ArgumentParser(prog="make lock", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="versions in the lock stay; only what is new is looked for")
    chosen = files_of(_resolve(keep=parser.parse_args(arguments).keep))
    entries = with_hashes(chosen, _hashes_of(chosen))
    LOCK.write_text(render(HEADER, entries), encoding="utf-8")
    WITHOUT_HASHES.write_text(render(WITHOUT_HASHES_HEADER, elsewhere(entries)), encoding="utf-8")
    print(f"{LOCK.name}: {len(entries)} packages, {sum(len(each.hashes) for each in entries)} hashes")
    return 0


def files_of(report: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Version and SHA-256 of each file that pip would install, by the package's name.

    Args:
        report: Of pip's ``--report``.
    """
    found: dict[str, tuple[str, str]] = {}
    for package in report["install"]:
        name = canonicalize_name(package["metadata"]["name"])
        if name not in LEFT_OUT:
            version = package["metadata"]["version"].partition("+")[0]
            found[name] = (version, package["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def with_hashes(chosen: Mapping[str, tuple[str, str]], known: Mapping[str, frozenset[str]]) -> list[Locked]:
    """The packages of the lock.

    Args:
        chosen: Version and SHA-256 of the file that pip would install, by name.
        known: SHA-256 of all files, by name; of a CPU build there are none.

    Raises:
        ValueError: Two sources disagree about a file, or the other one does not know the package.
    """
    build = f'python_version == "{_this_python()}" and platform_machine == "x86_64"'
    entries = []
    for name, (version, digest) in chosen.items():
        is_build = name in CPU_BUILDS
        hashes = frozenset({digest}) if is_build else known.get(name, frozenset())
        if digest not in hashes:
            raise ValueError(f"{name} {version}: pip's index and uv's have different files of it")
        entries.append(Locked(name=name, version=version, hashes=hashes, marker=build if is_build else ""))
    return entries


def elsewhere(entries: Sequence[Locked]) -> list[Locked]:
    """The same packages where the lock has no file of them."""
    opposite = f'python_version != "{_this_python()}" or platform_machine != "x86_64"'
    return [
        Locked(name=each.name, version=each.version, hashes=frozenset(), marker=opposite)
        for each in entries
        if each.marker
    ]


def _this_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _resolve(*, keep: bool) -> Mapping[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        if keep:
            pins = [f"{each.name}=={each.version}\n" for each in read_lock(LOCK.read_text(encoding="utf-8"))]
            constraints.write("".join(pins))
            constraints.flush()
        command = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", "-c", constraints.name]
        report: Mapping[str, Any] = json.loads(_run("pip", *command, f"{ROOT}[{EXTRAS}]"))
        return report


def _hashes_of(chosen: Mapping[str, tuple[str, str]]) -> dict[str, frozenset[str]]:
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.in"
        lines = [f"{name}=={version}\n" for name, (version, _) in chosen.items() if name not in CPU_BUILDS]
        pins.write_text("".join(lines), encoding="utf-8")
        options = ["--python", sys.executable, "--no-deps", "--generate-hashes", "--no-header", "--no-annotate"]
        return {
            each.name: each.hashes for each in read_lock(_run("uv", "pip", "compile", "--quiet", *options, str(pins)))
        }


def _run(module: str, *arguments: str) -> str:
    ran = subprocess.run([sys.executable, "-m", module, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return ran.stdout
