"""A model shared by several workers of one node, or had by each of them, on real vLLM: the same tokens, and the handoff
between them.
"""

import pytest

from engines import Engine, EngineRequest, Sampling, check_engine, check_handoff
from policies.views import Role
from tests.engines.emulated_engines import tokens
from tests.engines.vllm_engines import running

pytestmark = [pytest.mark.vllm, pytest.mark.proof, pytest.mark.timeout(900)]

PROMPT = [1 + position % 700 for position in range(300)]


async def test_two_workers_that_share_a_model_keep_the_contract_and_give_its_tokens(alone: Engine) -> None:
    sampling = Sampling(max_tokens=20, temperature=0.0, ignore_eos=True)
    request = EngineRequest(request_id="shared", prompt_token_ids=PROMPT, sampling=sampling)
    expected = tokens([each async for each in alone.generate(request)])
    async with running(Role.UNIFIED, tensor_parallel_size=2) as shared:
        assert len(await check_engine(shared)) >= 12
        assert tokens([each async for each in shared.generate(request)]) == expected


async def test_a_handoff_crosses_from_two_workers_to_two(alone: Engine) -> None:
    async with (
        running(Role.PREFILL, tensor_parallel_size=2) as prefill,
        running(Role.DECODE, tensor_parallel_size=2) as decode,
    ):
        await check_handoff(alone, prefill, decode, (5, 700))


async def test_two_ranks_that_share_the_requests_keep_the_contract_and_take_twice_as_many(alone: Engine) -> None:
    async with running(Role.UNIFIED, data_parallel_size=2) as ranks:
        assert len(await check_engine(ranks)) >= 12
        assert ranks.info.max_num_seqs == 2 * alone.info.max_num_seqs
        assert ranks.info.kv_capacity_tokens == 2 * alone.info.kv_capacity_tokens


async def test_a_handoff_crosses_from_two_ranks_to_two(alone: Engine) -> None:
    async with (
        running(Role.PREFILL, data_parallel_size=2) as prefill,
        running(Role.DECODE, data_parallel_size=2) as decode,
    ):
        await check_handoff(alone, prefill, decode, (5, 700))
