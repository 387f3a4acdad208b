"""Runs Python under a given ``PYTHONHASHSEED``: what it prints must not depend on it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed_under(hash_seed: str, module: str, *args: str) -> str:
    """What ``python -m module args`` prints in a process that hashes strings by that seed."""
    return _printed(hash_seed, "-m", module, *args)


def printed_by(hash_seed: str, program: str) -> str:
    """The same of a program's text."""
    return _printed(hash_seed, "-c", program)


def _printed(hash_seed: str, *args: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, *args]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=200)
    return done.stdout.strip()
