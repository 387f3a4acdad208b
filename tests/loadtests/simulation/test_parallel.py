import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from loadtests.simulation.parallel import simulate_all

SCRIPT = """
from rich.console import Console
from loadtests.simulation.parallel import simulate_all
print("begun")
print(simulate_all([-1, -2, -3, -4], abs, 2, Console(stderr=True)))
"""


def test_a_plain_script_runs_once_however_many_processes_help_it(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)

    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["begun", "[1, 2, 3, 4]"]


def test_where_there_is_no_terminal_each_part_has_a_line_when_it_has_ended() -> None:
    log = io.StringIO()

    found = simulate_all([3, -1, 2, -5], abs, 1, Console(file=log), part_of=lambda run: "long" if run < 0 else "b")

    assert found == [3, 1, 2, 5]
    assert [line.partition(",")[0] for line in log.getvalue().splitlines()] == [
        "  1 of 2  b       2 runs",
        "  2 of 2  long    2 runs",
    ]
