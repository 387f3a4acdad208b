"""What bounds one dispatcher."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherParams:
    """Limits of the state machine.

    Args:
        max_attempts: Dispatches of one request, over all its stages, after which none is repeated any more; hedges do
            not count. A stage that is reached is still attempted once: its prefill is paid for.
        suspect_s: How long nothing is sent to a replica after it was lost.
        retry_after_s: What a refused client is told when no policy knows better.
        prefill_window_tokens: Prompt tokens that a replica is given at a time: while it has so many of requests without
            a first token, the next ones wait at the gateway, where they can be put in order, expire and be refused. 0:
            as many as it takes requests.
    """

    max_attempts: int = 4
    suspect_s: float = 5.0
    retry_after_s: float = 2.0
    prefill_window_tokens: int = 0
