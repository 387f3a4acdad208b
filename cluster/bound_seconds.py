"""What a request's time was lost to: the stages of its way, less what they take on an idle fleet."""

from collections.abc import Mapping

import msgspec

from cluster.latency_budget import LatencyStage, Timeline
from policies.capacity.bounds import Bound
from routing.sizing.geometry import ServiceRates

BOUND_OF: Mapping[LatencyStage, Bound] = {
    LatencyStage.PARSE: Bound.FRONT_END,
    LatencyStage.TOKENIZE: Bound.FRONT_END,
    LatencyStage.CLASSIFY: Bound.FRONT_END,
    LatencyStage.ADMIT: Bound.FRONT_END,
    LatencyStage.QUEUE: Bound.QUEUE,
    LatencyStage.DISPATCH: Bound.FRONT_END,
    LatencyStage.PREFILL: Bound.PREFILL,
    LatencyStage.KV_TRANSFER: Bound.TRANSFER,
    LatencyStage.FIRST_TOKEN: Bound.FRONT_END,
    LatencyStage.DECODE: Bound.MEMORY,
    LatencyStage.EGRESS: Bound.CLIENT,
    LatencyStage.LOST: Bound.LOST,
}
"""Where the time of a stage is lost, as far as it is more than on an idle fleet."""


class AloneTimes(msgspec.Struct, frozen=True, gc=False):
    """How long a request takes on replicas that do nothing else.

    Args:
        prefill_s: Its prompt, without what was cached.
        decode_s: Its tokens after the first: decode steps are not shared.
        are_known: Whether an engine profile says so.
    """

    prefill_s: float = 0.0
    decode_s: float = 0.0
    are_known: bool = True


_NOTHING_SPENT = dict.fromkeys(Bound, 0.0)
UNKNOWN_ALONE = AloneTimes(are_known=False)


def alone_times(rates: ServiceRates, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> AloneTimes:
    """What an answer takes on replicas that do nothing else.

    Args:
        rates: How fast engines are, as their profile says.
        prompt_tokens: Length of its prompt.
        cached_tokens: Those that were cached where its first token came from.
        output_tokens: Its tokens; without any, it took nothing.
    """
    if not rates.are_known:
        return UNKNOWN_ALONE
    if not output_tokens:
        return AloneTimes()
    context_tokens = prompt_tokens + output_tokens // 2
    return AloneTimes(
        rates.prefill_s(prompt_tokens, prompt_tokens - cached_tokens),
        (output_tokens - 1) * rates.token_s(1, context_tokens),
    )


def bound_seconds(timeline: Timeline, alone: AloneTimes) -> dict[Bound, float]:
    """The seconds of one request: under ``ENGINE`` those that it takes on an idle fleet too, and those beyond.

    Args:
        timeline: Where its time went.
        alone: What it takes on an idle fleet; where that is not known, all that engines took is theirs.
    """
    spent_s, has_pulled = _NOTHING_SPENT.copy(), False
    for span in timeline:
        stage = span.stage
        # The first token after a transfer is made by a decode step; otherwise it is there and has to come here.
        is_step = has_pulled and stage is LatencyStage.FIRST_TOKEN
        has_pulled = has_pulled or stage is LatencyStage.KV_TRANSFER
        spent_s[Bound.MEMORY if is_step else BOUND_OF[stage]] += span.ends_s - span.begins_s
    for bound, alone_s in ((Bound.PREFILL, alone.prefill_s), (Bound.MEMORY, alone.decode_s)):
        own_s = min(alone_s, spent_s[bound]) if alone.are_known else spent_s[bound]
        spent_s[bound] -= own_s
        spent_s[Bound.ENGINE] += own_s
    return spent_s
