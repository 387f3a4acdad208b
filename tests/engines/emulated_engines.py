"""Emulated engines for tests: twenty times as fast as the machine they emulate, and shut down afterwards."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from deployments.config import ROOT
from engines import Chunk, EngineRequest, Sampling, load_profile
from engines.emulated.engine import EmulatedEngine
from engines.emulated.settings import EmulatedSettings
from policies.views import Role

MODEL = str(ROOT / ".models" / "tiny-llama")
RERANKER = str(ROOT / ".models" / "tiny-reranker")
PROFILE = load_profile("h100-llama3-8b")
SPEED = 20.0


def ensure_tokenizer() -> None:
    """The tiny model's folder; it is made when it is not there, which takes torch and its time."""
    if not (Path(MODEL) / "tokenizer.json").exists():
        from engines.vllm.tiny_model import ensure_tiny_model

        ensure_tiny_model(Path(MODEL))


def ensure_models() -> None:
    """That, and the folder of the tiny model that scores."""
    ensure_tokenizer()
    if not (Path(RERANKER) / "tokenizer.json").exists():
        from engines.vllm.tiny_model import ensure_tiny_reranker

        ensure_tiny_reranker(Path(RERANKER))


@asynccontextmanager
async def running(
    role: Role = Role.UNIFIED, now_s: Callable[[], float] | None = None, max_num_seqs: int = 64, **changes: Any
) -> AsyncIterator[EmulatedEngine]:
    """An engine for as long as the block lasts; ``changes`` are of its settings."""
    engine = await EmulatedEngine.start(settings(role, max_num_seqs, **changes), now_s)
    try:
        yield engine
    finally:
        await engine.shutdown()


def settings(role: Role = Role.UNIFIED, max_num_seqs: int = 64, **changes: Any) -> EmulatedSettings:
    """Settings with the defaults of these tests."""
    wanted: dict[str, Any] = {"model": MODEL, "profile": PROFILE, "speed": SPEED, **changes}
    return EmulatedSettings(role=role, **{"limits": wanted["profile"].limits(max_num_seqs=max_num_seqs), **wanted})


def ask(request_id: str = "request", prompt: list[int] | None = None, **sampling: Any) -> EngineRequest:
    """A greedy request for 40 tokens unless told otherwise."""
    wanted = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True, **sampling}
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt or [5, 6, 7, 8], sampling=Sampling(**wanted))


def opened(stream: AsyncIterator[Chunk]) -> AsyncGenerator[Chunk, None]:
    """The stream as what it is, so that it can be closed."""
    return cast(AsyncGenerator[Chunk, None], stream)


async def read(stream: AsyncIterator[Chunk]) -> list[Chunk]:
    """All chunks."""
    return [chunk async for chunk in stream]


def tokens(chunks: list[Chunk]) -> list[int]:
    """All tokens of the chunks."""
    return [token for chunk in chunks for token in chunk.token_ids]


def text(chunks: list[Chunk]) -> str:
    """The text of the chunks."""
    return "".join(chunk.text for chunk in chunks)


def is_idle(engine: EmulatedEngine) -> bool:
    """No request is left in the engine, and no KV block is in use."""
    stats = engine.stats()
    busy = stats.num_requests_unfinished or stats.num_requests_running or stats.num_requests_waiting
    return not busy and stats.kv_cache_usage == 0


async def turns() -> None:
    """Lets everybody who is ready have a few turns on the event loop."""
    for _ in range(10):
        await asyncio.sleep(0)
