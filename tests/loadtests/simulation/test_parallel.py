import subprocess
import sys
from pathlib import Path

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
