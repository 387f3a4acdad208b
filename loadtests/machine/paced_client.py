"""A client that knows what it costs itself: chat completions at a rate, or so many at a time, on kept connections."""

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp

PROMPT = "How wide is the river at its mouth, and who has measured that, with what, and when was it? " * 3
TIMEOUT_S = 60.0


@dataclass(slots=True)
class Answers:
    """What came of some requests.

    Args:
        took_s: From when each was due to its last byte.
        num_failed: Those that got no whole answer.
        wall_s: From the first one's sending to the last one's end.
        late_s: How late the client itself sent the latest.
    """

    took_s: list[float] = field(default_factory=list)
    num_failed: int = 0
    wall_s: float = 0.0
    late_s: float = 0.0

    def quantile_s(self, fraction: float) -> float:
        """The time within which this part of the requests was answered; endless where none was."""
        ordered = sorted(self.took_s)
        return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked.

    Args:
        url: Of the server.
        max_tokens: Length of the answer.
        streams: Whether it comes as events.
        headers: Beside what every request has.
        model: What the server calls its model.
    """

    url: str
    max_tokens: int
    streams: bool
    headers: tuple[tuple[str, str], ...] = ()
    model: str = "tiny-llama"

    def body(self) -> dict[str, object]:
        """As JSON has it."""
        messages = [{"role": "user", "content": PROMPT}]
        more = {"ignore_eos": True, "temperature": 0.0}
        return {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.max_tokens,
            "stream": self.streams,
            **more,
        }


async def in_a_loop(request: Request, num_requests: int, at_a_time: int) -> Answers:
    """So many requests, each of so many users sending its next one when the last one has ended."""
    answers, left = Answers(), iter(range(num_requests))
    async with _session(at_a_time) as session:
        began_s = time.perf_counter()

        async def user() -> None:
            for _ in left:
                await _ask(session, request, time.perf_counter(), answers)

        await asyncio.gather(*(user() for _ in range(at_a_time)))
        answers.wall_s = time.perf_counter() - began_s
    return answers


async def at_a_rate(request: Request, rate_rps: float, for_s: float) -> Answers:
    """Evenly spaced requests, each sent when it is due, however many are under way."""
    answers, asking = Answers(), set[asyncio.Task[None]]()
    async with _session(0) as session:
        began_s = time.perf_counter()
        for number in range(int(rate_rps * for_s)):
            due_s = began_s + number / rate_rps
            if (pause_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(pause_s)
            answers.late_s = max(answers.late_s, time.perf_counter() - due_s)
            task = asyncio.create_task(_ask(session, request, due_s, answers))
            asking.add(task)
            task.add_done_callback(asking.discard)
        while asking:
            await asyncio.wait(asking)
        answers.wall_s = time.perf_counter() - began_s
    return answers


def _session(limit: int) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit), timeout=timeout)


async def _ask(session: aiohttp.ClientSession, request: Request, due_s: float, answers: Answers) -> None:
    try:
        url = f"{request.url}/v1/chat/completions"
        async with session.post(url, json=request.body(), headers=request.headers) as response:
            body = await response.read()
            is_whole = response.status == 200 and (not request.streams or b"data: [DONE]" in body)
    except (aiohttp.ClientError, TimeoutError):
        is_whole = False
    if is_whole:
        answers.took_s.append(time.perf_counter() - due_s)
    else:
        answers.num_failed += 1
