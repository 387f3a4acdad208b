"""What the profile says of a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.telemetry.work.replica_estimates import ESTIMATES, estimates_by
from deployments.wire.fleet_registry import SeenReplica
from routing.sizing.geometry import ServiceRates
from tests.tables import for_each

RATES = ServiceRates(step_s=0.006, new_token_s=2e-5, context_token_s=4e-8)


def replica(running: int, usage: float = 0.5, role: str = "decode") -> SeenReplica:
    return SeenReplica(
        replica_id="a",
        node_id="n",
        max_ongoing_requests=8,
        metadata={"role": role, "kv_capacity_tokens": 400_000, "max_num_seqs": 256},
        stats={"num_requests_running": running, "kv_cache_usage": usage},
    )


def test_an_idle_replica_uses_nothing() -> None:
    assert estimates_by(RATES)(replica(0)) == dict.fromkeys(ESTIMATES, 0.0)


def test_a_full_batch_is_as_efficient_as_can_be() -> None:
    assert estimates_by(RATES)(replica(256))["batch_efficiency"] == pytest.approx(1.0)


def test_one_sequence_reads_all_weights_for_one_token() -> None:
    said = estimates_by(RATES)(replica(1, usage=0.001))
    assert said["batch_efficiency"] < 0.02
    assert said["memory_bandwidth_fraction"] > 0.99


@given(running=st.integers(1, 256), usage=st.floats(0, 1))
def test_both_are_fractions_and_a_larger_batch_is_more_efficient(running: int, usage: float) -> None:
    said = estimates_by(RATES)(replica(running, usage))
    assert all(0 <= value <= 1 + 1e-9 for value in said.values())
    more = estimates_by(RATES)(replica(running + 1, usage))
    assert more["batch_efficiency"] >= said["batch_efficiency"] - 1e-4, "but for whole tokens"


@for_each("role", ["prefill", ""])
def test_who_does_not_decode_has_no_decode_batch(role: str) -> None:
    assert not estimates_by(RATES)(replica(3, role=role))


def test_without_a_profile_there_are_no_estimates() -> None:
    assert not estimates_by(ServiceRates())(replica(3))
