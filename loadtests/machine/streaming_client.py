"""One client for every system: streams a completion and takes the times that the API's user would take.

Times are the client's own, from just before the request is sent. The first token is the first event with text or, when
the text is held back in the middle of a character, the first event with a choice. Token counts come from the usage
event, so that a system that sends several tokens in one event is measured by the same formula.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One streamed request.

    Args:
        ttft_s: From the send to the first token.
        tpot_s: ``(last token - first token) / (output tokens - 1)``.
        e2e_s: From the send to the last token.
        output_tokens: As the server's usage says.
        events: Events that carried tokens: what the client's user sees as steps.
        gaps_s: Times between such events: what the user waits for the next words.
    """

    ttft_s: float
    tpot_s: float
    e2e_s: float
    output_tokens: int
    events: int
    gaps_s: tuple[float, ...] = ()


def random_prompt(rng: random.Random, tokens: int, vocabulary: int = 1000) -> list[int]:
    """Token ids that share no prefix with anybody's."""
    return [rng.randrange(5, vocabulary) for _ in range(tokens)]


async def stream_completion(
    session: aiohttp.ClientSession, base_url: str, model: str, prompt: Sequence[int], max_tokens: int, **fields: Any
) -> Sample:
    """Streams one completion of exactly ``max_tokens`` tokens, with other ``fields`` beside those that all have.

    Raises:
        RuntimeError: Any answer but a complete stream.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    stream = _Stream(time.perf_counter())
    async with session.post(f"{base_url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{base_url}: HTTP {response.status}: {(await response.text())[:200]}")
        async for line in response.content:
            if stream.take_in(line):
                break
    return stream.sample(max_tokens)


class _Stream:
    """What has come of one stream."""

    def __init__(self, sent_at_s: float) -> None:
        self._sent_at_s = sent_at_s
        self._first_at_s = self._last_at_s = 0.0
        self._gaps_s: list[float] = []
        self._events = self._output_tokens = 0
        self._is_done = False

    def take_in(self, line: bytes) -> bool:
        """One line of the response; ``True`` at the end of the stream."""
        if line.startswith(b"data: [DONE]"):
            self._is_done = True
        elif line.startswith(b"data: "):
            self._take_in_event(msgspec.json.decode(line[6:]))
        return self._is_done

    def _take_in_event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        if event["choices"]:
            now_s = time.perf_counter()
            if self._events:
                self._gaps_s.append(now_s - self._last_at_s)
            self._last_at_s = now_s
            self._first_at_s = self._first_at_s or now_s
            self._events += 1
        if event.get("usage"):
            self._output_tokens = event["usage"]["completion_tokens"]

    def sample(self, expected_tokens: int) -> Sample:
        """The times; raises ``RuntimeError`` when the stream was not complete."""
        if not self._is_done or self._output_tokens != expected_tokens:
            raise RuntimeError(f"the stream ended after {self._output_tokens} of {expected_tokens} tokens")
        return Sample(
            ttft_s=self._first_at_s - self._sent_at_s,
            tpot_s=(self._last_at_s - self._first_at_s) / max(1, self._output_tokens - 1),
            e2e_s=self._last_at_s - self._sent_at_s,
            output_tokens=self._output_tokens,
            events=self._events,
            gaps_s=tuple(self._gaps_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A closed loop: so many streams, each sending its next request when the last one has ended.

    Args:
        streams: Requests in flight at any time.
        requests: Requests in all.
        prompt_tokens: Length of each prompt.
        output_tokens: Length of each answer.
        seed: Of the prompts.
        fields: What each request says beside that.
        headers: Of each request.
    """

    streams: int
    requests: int
    prompt_tokens: int = 64
    output_tokens: int = 64
    seed: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a load measured."""

    samples: list[Sample]
    wall_s: float

    @property
    def tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(sample.output_tokens for sample in self.samples)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of wall clock, over all streams."""
        return self.tokens / self.wall_s


async def run_load(base_url: str, model: str, load: Load) -> LoadResult:
    """Drives one system with one load."""
    rng = random.Random(load.seed)
    prompts = [random_prompt(rng, load.prompt_tokens) for _ in range(load.requests)]
    samples: list[Sample] = []
    connector, timeout = aiohttp.TCPConnector(limit=load.streams), aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(headers=load.headers, connector=connector, timeout=timeout) as session:

        async def stream() -> None:
            while prompts:
                prompt, tokens = prompts.pop(), load.output_tokens
                samples.append(await stream_completion(session, base_url, model, prompt, tokens, **load.fields))

        started_at_s = time.perf_counter()
        await asyncio.gather(*(stream() for _ in range(load.streams)))
        return LoadResult(samples=samples, wall_s=time.perf_counter() - started_at_s)
