"""``make smoke``, as part of the suite: HAProxy in front, real engines behind, one of them killed."""

import subprocess
import sys

import pytest

from deployments.config import ROOT


@pytest.mark.vllm
@pytest.mark.ray
@pytest.mark.timeout(1800)  # three engines start at once and one starts again, in minutes each where cores are slow
def test_smoke_finds_nothing_wrong() -> None:
    """The handoff is real, clients that leave cost nothing, and a killed engine comes back."""
    finished = subprocess.run(
        [sys.executable, "-m", "deployments.smoke"], cwd=ROOT, capture_output=True, text=True, timeout=1740, check=False
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("ok  ") == 3
