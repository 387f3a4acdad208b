"""Same seed, processes that hash strings differently: the same simulated log, byte for byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.determinism.simulated_run import log_hash

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("balancing", ["least_work_left", "power_of_two"])
def test_the_log_does_not_depend_on_how_strings_are_hashed(balancing: str) -> None:
    here = log_hash(balancing)

    assert {_hash_in_a_process(hash_seed, balancing) for hash_seed in ("1", "2")} == {here}


def _hash_in_a_process(hash_seed: str, balancing: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.determinism.simulated_run", balancing],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()
