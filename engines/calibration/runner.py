"""Drives an engine over the grid and keeps what its core and its streams say."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

from engines.calibration.grid import Point, Prompt
from engines.contract import Chunk, Engine, EngineRequest, Sampling
from engines.vllm.step_log import EngineStep

TOKEN_IDS = range(10, 1000)
"""Tokens of prompts are drawn from these: in every vocabulary, and beyond the special ones of most."""
LEAD_PAUSE_S = 0.01
"""Long enough for the lead's step to begin, short against that step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTiming:
    """One request as its client saw it, on the clock of the engine's steps.

    Args:
        request_id: Names it in the engine's steps.
        prompt_tokens: Length of its prompt.
        submitted_s: When the engine was called.
        first_token_s: When its first token came.
        finished_s: When its last one came.
    """

    request_id: str
    prompt_tokens: int
    submitted_s: float
    first_token_s: float
    finished_s: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run of a point gave.

    Args:
        point: Its name.
        steps: The engine's steps, in order.
        requests: The requests.
    """

    point: str
    steps: tuple[EngineStep, ...]
    requests: tuple[RequestTiming, ...]


class GridRunner:
    """Runs points on an engine, one after the other.

    Args:
        engine: Idle, and nobody else's.
        steps: Where the engine's steps are appended as they end.
        rng: Draws prompts.
    """

    def __init__(self, engine: Engine, steps: list[EngineStep], rng: random.Random) -> None:
        self._engine = engine
        self._steps = steps
        self._rng = rng
        self._documents: list[list[int]] = []
        self._num_requests = 0

    async def read_document(self, tokens: int) -> None:
        """Takes the next document into the prefix cache."""
        self._documents.append(self.fresh(tokens))
        await self.run(Point(name="document", prompts=(Prompt(len(self._documents) - 1, tokens, 0),)))

    async def run(self, point: Point) -> Measurement:
        """Submits a point's requests and waits for all of them."""
        lead = self.fresh(point.lead_tokens)
        together = [self._tokens(prompt) for prompt in point.prompts]
        joining = [self._tokens(prompt) for prompt in point.joining]  # all made before anybody waits for the front end
        users = [[(self._tokens(turn.prompt), turn.output_tokens) for turn in turns] for turns in point.users]
        self._steps.clear()
        clients: list[_Client] = []
        async with asyncio.TaskGroup() as tasks:

            def submit(prompt: list[int], output_tokens: int) -> _Client:
                clients.append(_Client(self.request(prompt, output_tokens)))
                tasks.create_task(clients[-1].read(self._engine))
                return clients[-1]

            async def use(turns: list[tuple[list[int], int]]) -> None:
                for prompt, output_tokens in turns:
                    await submit(prompt, output_tokens).has_ended.wait()

            if lead:
                submit(lead, 1)
                await asyncio.sleep(LEAD_PAUSE_S)
            decoding = [submit(prompt, point.output_tokens) for prompt in together]
            for prompt in joining:
                await asyncio.gather(*(client.has_begun.wait() for client in decoding))
                await submit(prompt, 1).has_ended.wait()
            for turns in users:
                tasks.create_task(use(turns))
        return Measurement(point.name, tuple(self._steps), tuple(client.timing() for client in clients))

    def fresh(self, tokens: int) -> list[int]:
        """A prompt, or the end of one, that nobody has seen."""
        return self._rng.choices(TOKEN_IDS, k=tokens)

    def request(self, prompt: list[int], output_tokens: int) -> EngineRequest:
        """A request that gives exactly so many tokens."""
        self._num_requests += 1
        sampling = Sampling(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        return EngineRequest(request_id=f"calibration-{self._num_requests}", prompt_token_ids=prompt, sampling=sampling)

    def _tokens(self, prompt: Prompt) -> list[int]:
        known = self._documents[prompt.document][: prompt.document_tokens] if prompt.document_tokens else []
        return known + self.fresh(prompt.fresh_tokens)


class _Client:
    """Reads one stream and notes times."""

    def __init__(self, request: EngineRequest) -> None:
        self._request = request
        self._times_s: list[float] = []
        self.has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def read(self, engine: Engine) -> None:
        """To the end."""
        clock = asyncio.get_running_loop().time
        self._times_s.append(clock())
        async for _ in engine.generate(self._request):
            self._times_s.append(clock())
            self.has_begun.set()
        self.has_ended.set()

    def timing(self) -> RequestTiming:
        submitted_s, first_token_s, *_ = self._times_s
        return RequestTiming(
            request_id=self._request.request_id,
            prompt_tokens=len(self._request.prompt_token_ids),
            submitted_s=submitted_s,
            first_token_s=first_token_s,
            finished_s=self._times_s[-1],
        )


async def measure_handoff(prefill: Engine, decode: Engine, source: GridRunner, tokens: int) -> float:
    """Seconds that a prompt's KV takes from one engine to the other.

    The decode engine answers the prompt twice: with KV that it has to pull, and with KV that is in its prefix cache
    since. The time to the first token differs by the transfer.

    Args:
        prefill: Engine that computes the prompt.
        decode: Engine that pulls its KV.
        source: Makes the requests; on either engine.
        tokens: Length of the prompt, one more than whole blocks: so much is cached, and the rest is the one token that
            is computed again after a transfer, too.
    """
    prompt = source.fresh(tokens)
    handle = await prefill.prefill(source.request(prompt, 1))
    pulled_s = await _first_token_s(decode.decode(source.request(prompt, 2), handle))
    cached_s = await _first_token_s(decode.generate(source.request(prompt, 2)))
    return pulled_s - cached_s


async def _first_token_s(stream: AsyncIterator[Chunk]) -> float:
    """Time to the first chunk; the stream is read to its end."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    times_s = [clock() async for _ in stream]
    return times_s[0] - began_s
