"""Two real vLLM engines that change roles: each hands KV over, and each goes on with the other's."""

import asyncio

import pytest

from engines import check_handoff
from policies.views import Role
from tests.engines.vllm_engines import engine_environment, running

pytestmark = [pytest.mark.vllm, pytest.mark.proof, pytest.mark.timeout(900)]


async def handed_over_both_ways() -> None:
    async with (
        engine_environment(),
        running(Role.PREFILL, changes_roles=True) as one,
        running(Role.DECODE, changes_roles=True) as other,
    ):
        await check_handoff(one, one, other, (5, 700))
        await check_handoff(one, other, one, (6, 701))
        await check_handoff(one, one, other, (7, 702))
        assert one.stats().kv_bytes_received_total > 0


def test_kv_is_handed_over_both_ways() -> None:
    asyncio.run(handed_over_both_ways())
