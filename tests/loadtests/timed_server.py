"""A server whose times are known, in a process of its own so that no client's event loop disturbs them.

What it does with a request follows from how many tokens are wanted, so that one plan can hold every kind:
``TIMED`` tokens come one by one at known times, ``REFUSED`` is refused for good, and ``AGAIN`` is refused once.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.loadtests.completion_server import CompletionServer, event, refusing, streaming, token, whole

TTFT_S, ITL_S = 0.4, 0.12
"""Long enough that a twentieth of each is more than a busy machine adds to a median."""
TIMED, REFUSED, AGAIN = 6, 2, 3
RETRY_AFTER_S = 1
LANE = {"x-spillway-lane": "fast"}


class TimedAnswers:
    """What the server answers."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, ...]] = set()

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens = body["max_tokens"]
        if tokens == REFUSED:
            return await refusing(503, "shed", **{"x-should-retry": "false"}, **LANE)(request, body)
        if tokens == AGAIN and tuple(body["prompt"]) not in self._seen:
            self._seen.add(tuple(body["prompt"]))
            return await refusing(429, "admission_rejected", **{"retry-after": str(RETRY_AFTER_S)})(request, body)
        return await (_timed if tokens == TIMED else whole)(request, body)


async def _timed(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    loop = asyncio.get_running_loop()
    due_s = loop.time() + TTFT_S
    response = await streaming(request, LANE)
    for _ in range(body["max_tokens"]):
        await asyncio.sleep(due_s - loop.time())
        await response.write(token())
        due_s += ITL_S
    await response.write(
        event({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}) + b"data: [DONE]\n\n"
    )
    return response


async def _serve() -> None:
    async with CompletionServer(TimedAnswers()) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def timed_server() -> Iterator[str]:
    """Its URL, for as long as the block lasts."""
    command = [sys.executable, "-m", "tests.loadtests.timed_server"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    asyncio.run(_serve())
