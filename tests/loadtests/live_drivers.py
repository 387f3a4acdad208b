"""Runs a live driver in a process of its own: locust patches the sockets of whatever imports it."""

import subprocess
import sys
from pathlib import Path

from tests.loadtests.timed_server import ROOT

HTTP = ["-m", "loadtests.run_http"]
LOCUST = ["-m", "locust", "-f", "loadtests/locustfile.py", "--only-summary"]
PATIENCE_S = 120.0


def locust_command(scenario: Path, url: str, *arguments: str) -> list[str]:
    """Starts locust."""
    return [sys.executable, *LOCUST, "--scenario", str(scenario), "--host", url, *arguments]


def http_command(scenario: Path, url: str, *arguments: str) -> list[str]:
    """Starts the asyncio runner."""
    return [sys.executable, *HTTP, str(scenario), "--host", url, *arguments]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs it to its end."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
