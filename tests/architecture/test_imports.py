import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_import_goes_the_way_the_design_says() -> None:
    """The contracts are in ``pyproject.toml``; the output names the chain of imports that broke one."""
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout
