"""Speculative decoding on real vLLM: the same tokens as without, and drafts and what was accepted of them are counted.

The draft is vLLM's n-gram lookup, which needs no second model; of a model with random weights hardly anything can be
guessed, so these tests say nothing of how much faster it is.
"""

import pytest

from engines import Engine, EngineRequest, Sampling, check_engine, check_handoff
from policies.views import Role
from tests.engines.emulated_engines import tokens
from tests.engines.vllm_engines import running

pytestmark = [pytest.mark.vllm, pytest.mark.proof, pytest.mark.timeout(900)]

N_GRAMS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
PROMPT = [1 + position % 7 for position in range(64)]


async def test_an_engine_that_speculates_keeps_the_contract_and_gives_the_tokens_of_one_that_does_not(
    alone: Engine,
) -> None:
    sampling = Sampling(max_tokens=200, temperature=0.0, ignore_eos=True)
    request = EngineRequest(request_id="drafted", prompt_token_ids=PROMPT, sampling=sampling)
    expected = tokens([each async for each in alone.generate(request)])
    async with running(Role.UNIFIED, speculative_config=N_GRAMS) as engine:
        assert tokens([each async for each in engine.generate(request)]) == expected
        stats = engine.stats()
        assert 0 < stats.accepted_tokens_total <= stats.draft_tokens_total
        assert len(await check_engine(engine)) >= 12
    assert alone.stats().draft_tokens_total == 0


async def test_a_decode_replica_speculates_on_kv_that_another_engine_has_computed(alone: Engine) -> None:
    async with running(Role.PREFILL) as prefill, running(Role.DECODE, speculative_config=N_GRAMS) as decode:
        await check_handoff(alone, prefill, decode, (5, 700))
        assert decode.stats().draft_tokens_total > 0
