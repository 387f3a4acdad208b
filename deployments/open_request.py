"""One request that a gateway serves, as its host keeps it."""

import math
from dataclasses import dataclass, field

from deployments import inner_hop
from deployments.token_stream import TokenStream
from policies.views import RequestView
from routing.effects import Outcome, OutcomeKind


@dataclass(slots=True, kw_only=True)
class OpenRequest:
    """One request that this host serves.

    Args:
        view: What policies see of it.
        payload: The engine request, encoded once for all its attempts.
        stream: Where the winner's tokens go.
        committed: The attempt that won.
        handles: KV handles of finished prefills, by attempt.
        failure: The last failure that a replica reported, for the client's error message.
        first_token_at_s: When the first token reached the gateway.
        output_tokens: Length of the whole answer, once there is one.
        lane: Its lane, where there are several.
    """

    view: RequestView
    payload: bytes
    stream: TokenStream = field(default_factory=TokenStream)
    committed: str | None = None
    handles: dict[str, bytes] = field(default_factory=dict)
    failure: inner_hop.Failure | None = None
    first_token_at_s: float | None = None
    output_tokens: int = 0
    lane: str = ""

    def latencies_s(self, outcome: Outcome, now_s: float) -> tuple[float, float]:
        """Time to the first token, and for each further one; endless when the answer did not come whole."""
        if outcome.kind is not OutcomeKind.COMPLETED or self.first_token_at_s is None:
            return math.inf, math.inf
        return (
            self.first_token_at_s - self.view.arrival_s,
            (now_s - self.first_token_at_s) / max(1, self.output_tokens - 1),
        )
