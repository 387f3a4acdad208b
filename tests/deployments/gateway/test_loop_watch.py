"""A process whose event loop stands still ends and says where; one that goes round does not."""

import subprocess
import sys

from deployments.config import ROOT
from tests.tables import for_each

PROGRAM = """
import asyncio, threading
from deployments.gateway.watches.loop_watch import LoopWatch

def stands_still():
    threading.Event().wait(60)

async def main():
    watch = LoopWatch(0.5)
    await asyncio.sleep(1.5)
    print("still here", flush=True)
    {then}
    watch.close()

asyncio.run(main())
"""


@for_each(
    ("then", "status", "said"),
    [("pass", 0, ""), ("stands_still()", 1, "in stands_still"), ("watch.close(); threading.Event().wait(1.5)", 0, "")],
)
def test_a_loop_that_stands_still_ends_its_process_and_no_other_does(then: str, status: int, said: str) -> None:
    program = PROGRAM.replace("{then}", then)
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (status, "still here\n"), ran.stderr
    assert said in ran.stderr
