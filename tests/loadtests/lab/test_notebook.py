"""The notebook in the docs runs from its first cell to its last."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[3] / "docs" / "tutorial" / "lab.ipynb"


def test_the_notebook_runs_and_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, cell {number}", "exec"), names)

    p99_s = names["found"].table("ttft_p99_s")["policy"]
    assert p99_s.loc[(0.9, "least_work_left")] < p99_s.loc[(0.9, "round_robin")]
    in_bursts_s = names["bursty"].table("ttft_p99_s")["policy"]
    assert in_bursts_s.min() > p99_s.loc[(0.5, "least_work_left")], "bursts hurt at any load"
    assert not names["waiting"].empty
