"""Runs a module under a given ``PYTHONHASHSEED``: what it prints must not depend on it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed_under(hash_seed: str, module: str, *args: str) -> str:
    """What ``python -m module args`` prints in a process that hashes strings by that seed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()
