"""LoRA adapters on real engines: each request has its own, alone, beside others and over the handoff."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from transformers import AutoTokenizer

from deployments.config import ROOT
from engines import Adapter, Engine, EngineRequest, Sampling, check_adapter_handoff, check_adapters
from policies.errors import EngineUnavailable, RequestInvalid
from policies.views import Role
from tests.engines.vllm_engines import is_engine_core, running
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.vllm

MODEL, FOLDER = ROOT / ".models" / "tiny-scripts", ROOT / ".models" / "tiny-adapters"
NAMES = ("numbers", "well", "greeting")
ADAPTERS = [Adapter(name, str(FOLDER / name)) for name in NAMES]
TWO: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}


@pytest_asyncio.fixture(scope="module")
async def engine(environment: None) -> AsyncIterator[Engine]:
    """It keeps two of three adapters."""
    from engines.vllm.scripted_adapters import ensure_scripted_adapters

    ensure_scripted_adapters(FOLDER, MODEL)
    async with running(Role.UNIFIED, model=str(MODEL), **TWO) as engine:
        yield engine


async def said(engine: Engine, adapter: Adapter) -> str:
    """Its answer to the question that adapters answer in their own ways."""
    from engines.vllm.scripted_adapters import QUESTION

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True
    )
    request = EngineRequest(
        request_id=f"said-{adapter.name}",
        prompt_token_ids=tokenizer.encode(asked, add_special_tokens=False),
        sampling=Sampling(max_tokens=40, temperature=0.0),
        adapter=adapter,
    )
    return "".join([chunk.text async for chunk in engine.generate(request)])


async def test_it_keeps_as_many_as_it_says_and_the_kit_lets_it_through(engine: Engine) -> None:
    assert engine.info.max_adapters == 2
    await check_adapters(engine, ADAPTERS)


async def test_each_says_what_it_has_learnt(engine: Engine) -> None:
    from engines.vllm.scripted_adapters import answer_of

    for adapter in (Adapter(), *ADAPTERS, *ADAPTERS):
        assert await said(engine, adapter) == answer_of(adapter.name)


async def test_one_that_cannot_be_loaded_is_the_requests_error_and_the_engine_goes_on(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    for path in ("/nowhere", str(tmp_path)):
        for _ in range(2):
            with pytest.raises(RequestInvalid, match="the adapter broken can't be loaded from") as caught:
                await said(engine, Adapter("broken", path))
            assert caught.value.param == "model"
    engine.check_health()
    assert "broken" not in engine.stats().adapters
    assert await said(engine, ADAPTERS[1])


async def test_another_path_is_another_adapter(engine: Engine) -> None:
    from engines.vllm.scripted_adapters import answer_of

    first, second = (Adapter("one", each.path) for each in ADAPTERS[:2])
    assert [await said(engine, each) for each in (first, second, first)] == [
        answer_of(name) for name in ("numbers", "well", "numbers")
    ]


@pytest.mark.proof
async def test_a_prompt_that_was_computed_with_an_adapter_is_gone_on_with_elsewhere(engine: Engine) -> None:
    async with (
        running(Role.PREFILL, model=str(MODEL), **TWO) as prefill,
        running(Role.DECODE, model=str(MODEL), **TWO) as decode,
    ):
        await check_adapter_handoff(engine, prefill, decode, ADAPTERS[2])


async def test_a_load_that_the_engine_does_not_survive_ends_and_is_not_the_requests_error(engine: Engine) -> None:
    """Comes last: the engine is dead after it."""
    (core,) = filter(is_engine_core, psutil.Process().children(recursive=True))
    core.suspend()
    loading = asyncio.create_task(engine.load_adapter(Adapter("late", ADAPTERS[0].path)))
    for _ in range(20):
        await asyncio.sleep(0)  # it is on its way
    core.kill()
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(loading, PATIENCE_S)
    with pytest.raises(EngineUnavailable):
        await engine.load_adapter(Adapter("later", ADAPTERS[0].path))
