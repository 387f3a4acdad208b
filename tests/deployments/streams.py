"""Clients that read streams to their ends, several at a time."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx

MODEL = "tiny-llama"
TOKENS = 200
EVERY_S = 0.5
MOST_AT_ONCE = 128


class Streams:
    """Clients that read answers to their ends.

    Args:
        http: Finds the deployment.
        pool: Runs them.
    """

    def __init__(self, http: httpx.Client, pool: ThreadPoolExecutor) -> None:
        self._http = http
        self._pool = pool
        self.num_begun = 0
        self.ended: list[str] = []

    def begin(self, priority: str, number: int = 1, max_tokens: int = TOKENS) -> list[Future[int]]:
        """So many requests; each comes to the length of its answer, or the status of its refusal."""
        return [self._pool.submit(self._read, priority, max_tokens) for _ in range(number)]

    def keep_open(self, answers: list[Future[int]], number: int, max_tokens: int = TOKENS) -> None:
        """Begins as many as are missing of ``number`` under way, and adds them to the answers."""
        open_ones = sum(not each.done() for each in answers)
        answers.extend(self.begin("standard", number - open_ones, max_tokens))

    def status_of(self, priority: str) -> int:
        """What a short request comes to."""
        return self.begin(priority, max_tokens=4)[0].result(timeout=120)

    def _read(self, priority: str, max_tokens: int) -> int:
        body = {
            "model": MODEL,
            "prompt": "Hello",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        last, usage = "", ""
        with self._http.stream("POST", "/v1/completions", json=body, headers={"x-priority": priority}) as answer:
            if answer.status_code != 200:
                return answer.status_code
            self.num_begun += 1
            for line in answer.iter_lines():
                usage, last = (line if '"usage":{' in line else usage), line or last
        assert usage, f"a stream without its end; its last line: {last}"
        self.ended.append(priority)
        return int(json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"])


@contextmanager
def steady_streams(url: str, max_tokens: int) -> Iterator[list["Future[int]"]]:
    """A stream every ``EVERY_S`` while the block runs; what has become of each, once it has ended."""
    is_over, answers = threading.Event(), list["Future[int]"]()
    with open_streams(url) as streams:

        def begin() -> None:
            while not is_over.wait(EVERY_S):
                answers.extend(streams.begin("standard", 1, max_tokens))

        thread = threading.Thread(target=begin)
        thread.start()
        try:
            yield answers
        finally:
            is_over.set()
            thread.join()


@contextmanager
def open_streams(url: str) -> Iterator[Streams]:
    """Clients that have all ended when the block does."""
    limits = httpx.Limits(max_connections=MOST_AT_ONCE)
    with (
        httpx.Client(base_url=url, timeout=120, limits=limits) as http,
        ThreadPoolExecutor(max_workers=MOST_AT_ONCE) as pool,
    ):
        yield Streams(http, pool)
