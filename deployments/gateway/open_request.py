"""One request that a gateway serves, as its host keeps it."""

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from cluster.latency_budget import LatencyBudget
from deployments.gateway.response_cache import NO_CACHE_ENTRY, CacheEntry
from deployments.http.rate_limits import NO_USAGE, NoUsage, Usage
from deployments.openai.token_stream import TokenStream
from deployments.telemetry.answer_metrics import Answered
from deployments.wire import inner_hop
from deployments.wire.attempt_call import NO_KEEPING, AnswerKeeping
from deployments.wire.degradation import header_of, shortened
from engines.contract import Chunk
from policies.views import RequestView
from routing.request.effects import Degraded, Outcome, OutcomeKind, Placement

LANE_HEADER = "x-spillway-lane"
"""Names, in a response, the lane that its request was put into, where there are several."""


@dataclass(slots=True, kw_only=True)
class ServeOpenRequest:
    """One request that this host serves.

    Args:
        view: What policies see of it.
        payload: The engine request, encoded for all its attempts.
        budget: Where its time goes.
        stream: Where the winner's tokens go.
        committed: The attempt that won.
        handles: KV handles of finished prefills, by attempt.
        failure: The last failure that a replica reported, for the client's error message.
        first_token_at_s: When the first token reached the gateway.
        output_tokens: Length of the whole answer, once there is one.
        cached_tokens: Prompt tokens that were cached where its first token came from.
        expected_cached_tokens: Prompt tokens that were expected to be.
        emitted: Tokens that have been emitted.
        emitted_chars: Length of their text, as far as it has been emitted.
        lane: Its lane, where there are several.
        headers: What its response says beside the answer.
        cache_entry: What the response cache has to do with it.
        num_attempts: Attempts that were made for it so far.
        num_hedges: How many of them were beside another of the same stage.
        client_deadline_unix_s: The time of day that its client names as the deadline of all its calls; endless when it
            names none.
        answered_tokens: Tokens of its answer that its client had before it came here; ``emitted`` are those since.
        answered_chars: Length of their text.
        keeping: How replicas keep its answer for another gateway.
        usage: What it uses of its tenant's limits.
    """

    view: RequestView
    payload: bytes
    budget: LatencyBudget
    stream: TokenStream = field(init=False)
    committed: str | None = None
    handles: dict[str, bytes] = field(default_factory=dict)
    failure: inner_hop.Failure | None = None
    first_token_at_s: float | None = None
    output_tokens: int = 0
    cached_tokens: int = 0
    expected_cached_tokens: int = 0
    emitted: "array[int]" = field(default_factory=partial(array, "I"))
    emitted_chars: int = 0
    lane: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    cache_entry: CacheEntry = NO_CACHE_ENTRY
    num_attempts: int = 0
    num_hedges: int = 0
    client_deadline_unix_s: float = math.inf
    answered_tokens: int = 0
    answered_chars: int = 0
    keeping: AnswerKeeping = NO_KEEPING
    usage: Usage | NoUsage = NO_USAGE

    def __post_init__(self) -> None:
        self.stream = TokenStream(self.budget.let_go)
        self.headers |= self.usage.headers

    def place(self, decision: Placement) -> None:
        """Another attempt of it goes to a replica."""
        self.num_attempts += 1
        self.num_hedges += decision.is_hedge

    def enter(self, lane: str) -> None:
        """It belongs to a lane, and the response says so."""
        self.lane = lane
        self.headers[LANE_HEADER] = lane

    def degrade(self, decision: Degraded, now_s: float) -> None:
        """It gets less than it asked for, and the response says so; a known answer is given at once."""
        self.headers |= header_of(decision)
        if decision.max_output_tokens < decision.asked_output_tokens:
            self.payload = shortened(self.payload, decision.max_output_tokens)
        if decision.from_cache:
            answer = self.cache_entry.answer()
            self.stream.put(answer)
            self.first_token_at_s = now_s
            self.output_tokens = len(answer.token_ids)
        self.cache_entry = NO_CACHE_ENTRY  # what is not whole is not for others

    def emit(self, chunk: Chunk, consumed: Callable[[], None]) -> None:
        """The next tokens of the answer; ``consumed`` is called when they are out of the way."""
        if not self.emitted:
            self.cached_tokens = chunk.cached_tokens
        self.budget.gave_out()
        self.emitted.extend(chunk.token_ids)
        self.emitted_chars += len(chunk.text)
        self.cache_entry.add(chunk)
        self.stream.put(chunk, consumed)
        if self.stream.is_full:
            self.budget.held_up()

    def go_on(self) -> None:
        """The attempt that gave the answer was stopped or lost: the next goes on from what has been emitted."""
        self.budget.interrupted()
        request = inner_hop.decode_request(self.payload)
        new_tokens = self.emitted[request.answered_tokens - self.answered_tokens :]
        self.payload = inner_hop.encode(request.after(new_tokens, self.answered_chars + self.emitted_chars))

    def answered(self, outcome: Outcome, now_s: float) -> Answered:
        """What there is to be counted of it, now that it ends."""
        arrival_s, first_s = self.view.arrival_s, self.first_token_at_s
        return Answered(
            lane=self.lane,
            priority=self.view.priority.value,
            outcome=outcome,
            prompt_tokens=self.view.prompt_tokens,
            cached_tokens=self.cached_tokens,
            expected_cached_tokens=self.expected_cached_tokens,
            output_tokens=self.output_tokens or len(self.emitted),
            waited_s=min(self.budget.dispatched_s, now_s) - arrival_s,
            ttft_s=math.inf if first_s is None else first_s - arrival_s,
            longest_gap_s=self.budget.longest_gap_s,
            e2e_s=now_s - arrival_s,
            is_computed=self.committed is not None,
        )

    def latencies_s(self, outcome: Outcome, now_s: float) -> tuple[float, float]:
        """Time to the first token, and for each further one; endless when the answer did not come whole."""
        if outcome.kind is not OutcomeKind.COMPLETED or self.first_token_at_s is None:
            return math.inf, math.inf
        return (
            self.first_token_at_s - self.view.arrival_s,
            (now_s - self.first_token_at_s) / max(1, self.output_tokens - 1),
        )
