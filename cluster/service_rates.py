"""What the router takes engines to be like: an engine profile's numbers, in the router's terms."""

from collections.abc import Sequence

from cluster.kv_links import KvLink
from engines.model.batching import BatchLimits
from engines.model.profile import EngineProfile
from engines.model.speculation import NO_SPECULATION, Speculation
from routing.sizing.geometry import ServiceRates


def service_rates(
    profile: EngineProfile,
    limits: BatchLimits,
    max_decoding: int,
    speculation: Speculation = NO_SPECULATION,
    kv_links: Sequence[KvLink] = (),
) -> ServiceRates:
    """How fast an engine of this profile is.

    Args:
        profile: Of the engines.
        limits: Bounds of a step where prompts are computed.
        max_decoding: Sequences that fit into a step where answers are.
        speculation: How answers are decoded there.
        kv_links: Between replicas that have something in common; the profile's own is between the others.

    A quarter of the sequences that fit into a step are taken to share it: what a busy replica has, not a full one.
    """
    step = profile.step
    return ServiceRates(
        step_s=step.step_s,
        new_token_s=step.new_token_s,
        attention_pair_s=step.attention_pair_s,
        sequence_s=step.sequence_s,
        context_token_s=step.context_token_s,
        admission_s=step.admission_s,
        step_tokens=limits.max_num_batched_tokens,
        decode_batch=max(1, max_decoding // 4),
        handoff_s=profile.kv.transfer_overhead_s,
        handoff_token_s=profile.kv.bytes_per_token / profile.kv.bandwidth_bytes_per_s,
        tokens_a_step=speculation.tokens_a_step,
        draft_tokens=speculation.num_speculative_tokens,
        draft_step_s=speculation.step_s,
        draft_sequence_s=speculation.sequence_s(step.new_token_s),
        adapter_load_s=profile.adapter_load_s,
        links=tuple(profile.kv.bytes_per_token / each.bandwidth_bytes_per_s for each in kv_links),
    )
