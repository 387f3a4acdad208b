"""How long an attempt should take: what its time is held against."""

from policies.views import ReplicaView, RequestView, Role
from routing.request.request import Attempt
from routing.sizing.geometry import ServiceRates


def first_token_s(request: RequestView, attempt: Attempt, replica: ReplicaView, rates: ServiceRates) -> float:
    """Seconds until an attempt's first token, by what its replica has before it now, its own prompt included.

    0 for a decode, which waits for its KV and for no prompt, and where nobody has said how fast engines are.

    Args:
        request: Whose attempt it is.
        attempt: It has no first token yet, and counts as the replica's work.
        replica: Where it is.
        rates: How fast replicas are.
    """
    if attempt.stage is Role.DECODE:
        return 0.0
    ahead_tokens = max(0, replica.prefill_tokens - attempt.prefill_tokens)
    return rates.prefill_s(request.prompt_tokens, attempt.prefill_tokens) + rates.queue_s(ahead_tokens)
