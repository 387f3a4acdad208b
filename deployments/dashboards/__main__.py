"""Writes a file for each dashboard into ``deployments/dashboards/grafana``."""

import argparse
import json
from pathlib import Path

from deployments.dashboards.grafana_json import document_of
from deployments.dashboards.library import DASHBOARDS

FOLDER = Path(__file__).parent / "grafana"


def main(arguments: list[str] | None = None) -> int:
    """Command line: writes a file for each dashboard."""
    parser = argparse.ArgumentParser(prog="python -m deployments.dashboards", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to (default: where they are)")
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        (folder / f"{dashboard.name}.json").write_text(json.dumps(document_of(dashboard), indent=2) + "\n")
    print(f"{len(DASHBOARDS)} dashboards in {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
