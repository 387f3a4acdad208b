"""The handoff beside another KV connector, on real vLLM: one that keeps KV in files, which needs no GPU."""

import asyncio
from pathlib import Path

import pytest

from engines import check_handoff
from engines.vllm.connectors import HANDOFF, Connector
from policies.views import Role
from tests.engines.vllm_engines import engine_environment, running

pytestmark = [pytest.mark.vllm, pytest.mark.proof, pytest.mark.timeout(900)]


async def handed_over_beside_files_in(folder: Path) -> None:
    both = [Connector(HANDOFF), Connector("ExampleConnector", {"shared_storage_path": str(folder)})]
    async with (
        engine_environment(),
        running(Role.UNIFIED) as alone,
        running(Role.PREFILL, kv_connectors=both) as prefill,
        running(Role.DECODE, kv_connectors=both) as decode,
    ):
        await check_handoff(alone, prefill, decode, (5, 700))
        assert decode.stats().kv_bytes_received_total > 0


def test_kv_is_handed_over_beside_a_connector_that_keeps_it_in_files(tmp_path: Path) -> None:
    asyncio.run(handed_over_beside_files_in(tmp_path))

    assert list(tmp_path.rglob("*")), "the other one has it too"
