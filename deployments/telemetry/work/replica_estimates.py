"""What the engine profile says of a decoding replica's batch, from what the replica reports of itself.

No engine tells how much of its memory's bandwidth it uses. The profile's step time does: it is what reading the weights
takes, and reading the KV of the batch, and what is computed beside.
"""

from collections.abc import Callable, Mapping

from deployments.wire.fleet_registry import SeenReplica
from policies.views import Role
from routing.sizing.geometry import ServiceRates

ESTIMATES = {
    "batch_efficiency": (
        "Tokens that a decode step of the present batch makes for its time / those of a full batch; 0 to 1, "
        "by the engine profile."
    ),
    "memory_bandwidth_fraction": (
        "Part of a decode step of the present batch in which weights and KV are read; 0 to 1, by the engine profile."
    ),
}
Estimate = Callable[[SeenReplica], Mapping[str, float]]
"""Values by name for one replica; those that make no sense for it are left out."""


def _no_estimates(replica: SeenReplica) -> Mapping[str, float]:
    """Nobody knows how fast the engines are."""
    return {}


def estimates_by(rates: ServiceRates) -> Estimate:
    """Estimates by such rates; none where they are not known."""
    return (lambda replica: _estimate(rates, replica)) if rates.are_known else _no_estimates


def _estimate(rates: ServiceRates, replica: SeenReplica) -> Mapping[str, float]:
    """Of a replica that decodes; both are 0 while it does nothing."""
    said, stats = replica.metadata, replica.stats
    if said.get("role") not in (Role.UNIFIED, Role.DECODE) or not stats:
        return {}
    num_running = int(stats["num_requests_running"])
    if not num_running:
        return dict.fromkeys(ESTIMATES, 0.0)
    kv_tokens = int(stats["kv_cache_usage"] * said["kv_capacity_tokens"])
    step_s = rates.decode_step_s(num_running, kv_tokens)
    most = max(num_running, int(said["max_num_seqs"]))
    full_step_s = rates.decode_step_s(most, kv_tokens * most // num_running)
    return {
        "batch_efficiency": (num_running / step_s) / (most / full_step_s),
        "memory_bandwidth_fraction": rates.decode_step_s(0, kv_tokens) / step_s,
    }
