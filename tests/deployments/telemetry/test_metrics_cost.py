"""What is timed is what a gateway does: a round leaves out nothing that is done for each chunk."""

from unittest.mock import patch

from cluster.latency_budget import LatencyBudget
from deployments.gateway.tracing import NoTracer
from deployments.metrics_cost import _request
from tests.tables import for_each


@for_each("num_chunks", [0, 7])
async def test_a_round_gives_out_every_chunk_of_the_answer(num_chunks: int) -> None:
    with patch.object(LatencyBudget, "gave_out") as gave_out:
        _request(NoTracer(), num_chunks)()
    assert gave_out.call_count == num_chunks
