"""Writes the pages of ``docs/reference`` anew."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from deployments.config import ROOT
from deployments.reference.api import api_page
from deployments.reference.configuration import configuration_page
from deployments.reference.metrics import metrics_page
from deployments.reference.policies import policies_page
from deployments.reference.ports import ports_page
from deployments.reference.targets import targets_page

FOLDER = ROOT / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api_page,
    "configuration.md": configuration_page,
    "make.md": targets_page,
    "metrics.md": metrics_page,
    "policies.md": policies_page,
    "ports.md": ports_page,
}


def main(arguments: list[str] | None = None) -> int:
    """Command line: one file for each page."""
    parser = argparse.ArgumentParser(prog="python -m deployments.reference", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files go (default: docs/reference)")
    folder: Path = parser.parse_args(arguments).folder
    for name, write in PAGES.items():
        (folder / name).write_text(write(), encoding="utf-8")
    print(f"{', '.join(PAGES)}: written to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
