"""Real engines that make vectors of prompts: embeddings, and scores of two texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.config import ROOT
from engines import ONE_STEP, Engine, EngineRequest, Pooling, check_pooling
from policies.views import Role
from tests.engines.vllm_engines import running

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("environment"), pytest.mark.timeout(900)]

POOLING: dict[str, Any] = {"runner": "pooling"}


async def vector_of(engine: Engine, name: str, prompt: list[int], pooling: Pooling) -> np.ndarray:
    request = EngineRequest(request_id=name, prompt_token_ids=prompt, sampling=ONE_STEP, pooling=pooling)
    (chunk,) = [each async for each in engine.generate(request)]
    return np.frombuffer(chunk.vector, dtype="<f4")


async def test_the_tiny_model_embeds_and_finds_what_it_has_cached() -> None:
    async with running(Role.UNIFIED, **POOLING) as engine:
        assert engine.info.pooling_tasks == ("embed",)
        await check_pooling(engine)
        text = [3 + position % 500 for position in range(400)]
        first = await vector_of(engine, "first", text, Pooling("embed"))
        again = EngineRequest(
            request_id="again", prompt_token_ids=text, sampling=ONE_STEP, pooling=Pooling("embed", use_activation=False)
        )
        (chunk,) = [each async for each in engine.generate(again)]
        assert len(first) == 256
        assert chunk.cached_tokens == 384, "three blocks of 128 tokens"
        assert np.linalg.norm(np.frombuffer(chunk.vector, dtype="<f4")) > 2


@pytest.mark.proof
async def test_a_reranker_scores() -> None:
    from engines.vllm.tiny_model import ensure_tiny_reranker

    folder = ROOT / ".models" / "tiny-reranker"
    ensure_tiny_reranker(folder)
    async with running(Role.UNIFIED, model=str(folder), **POOLING) as engine:
        assert engine.info.pooling_tasks == ("classify",)
        await check_pooling(engine)


@pytest.mark.proof
async def test_a_model_that_keeps_no_kv_is_told_which_of_two_texts_is_which(tmp_path: Path) -> None:
    """BERT adds to each token whether it is of the first text or of the second; nothing of it is cached."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from engines.vllm.tiny_model import write_tokenizer

    write_tokenizer(tmp_path)
    torch.manual_seed(20)
    config = BertConfig(
        vocab_size=1024,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=512,
        initializer_range=0.5,
        num_labels=1,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    async with running(Role.UNIFIED, model=str(tmp_path), max_model_len=512, **POOLING) as engine:
        assert engine.info.kv_capacity_tokens >= 512 * engine.info.max_num_seqs, "no KV is kept, so none is short"
        await check_pooling(engine)
        prompt = [3 + position % 500 for position in range(40)]
        scores = [
            float((await vector_of(engine, f"{at}", prompt, Pooling("classify", second_at=at)))[0])
            for at in (10, 30, 40)
        ]
    assert len(set(scores)) == 3, f"where the second text begins changes nothing: {scores}"
