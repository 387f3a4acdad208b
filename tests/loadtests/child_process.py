"""A process that has started others, for tests of what is done to those from outside."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def child_process(code: str) -> Iterator[psutil.Process]:
    """Runs Python code that says a line when all is up, until the end of its standard input."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield psutil.Process(process.pid)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
