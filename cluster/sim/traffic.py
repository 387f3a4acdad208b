"""What a simulated client sends, and the protocol through which a simulator is fed with it.

The simulator knows nothing of scenarios, sessions or retries: it asks for arrivals in order of time and tells how each
request ended, and whatever follows from that end (the next turn of a session, a retry) comes back as arrivals.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

import msgspec

from policies.views import Priority
from routing.request.effects import Outcome

SALT_BYTES = 7
"""Content is told apart by 63 bits."""


class PlannedRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request as a client sends it, with what only the model knows: how long its answer will be.

    Args:
        request_id: Unique in the run.
        logical request: Number of what the user wants; all requests of it share the number.
        retry_index: 0 for the first request, then 1, 2, ...
        traffic_class: Index into the run's traffic classes.
        scheduled_s: When the user wanted it: the first request's time. Latencies count from here.
        prompt_tokens: Length of the prompt.
        output_tokens: Length of the answer, known to the engine alone; at most ``max_output_tokens``.
        max_output_tokens: What the client allows, known to everybody.
        timeout_s: How long the client waits for the whole answer, from when it sends this request.
        content: Identity of the text, prompt first and answer after it, one number for each ``content_unit_tokens``
            tokens. Equal numbers mean equal text up to and including that unit. Empty: nobody shares this text.
        content_unit_tokens: Tokens in a unit, a multiple of the engine's KV block.
        priority: Its class.
        tenant: Who pays for it.
        session_id: The conversation that it belongs to; empty for a request by itself.
        idempotency_key: What its client calls the logical request; empty where it says nothing.
        retry_count: How often it has sent the same before, as the client says; 0 where it says nothing.
        equal_to: Number of the logical request whose body it has, word for word; -1: nobody else's.
        session: Number of that conversation's first logical request; -1 for a request by itself.
        adapter: The LoRA adapter that it asks for; empty: none. ``content`` is that of the text alone.
        kills_for_s: A replica that has computed its prompt dies of it, and its place stays empty for so long. 0: none
            does.
    """

    request_id: str
    logical_request: int
    retry_index: int = 0
    traffic_class: int = 0
    scheduled_s: float
    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int
    timeout_s: float
    content: tuple[int, ...] = ()
    content_unit_tokens: int = 0
    priority: Priority = Priority.STANDARD
    tenant: str = ""
    session_id: str = ""
    idempotency_key: str = ""
    retry_count: int = 0
    equal_to: int = -1
    session: int = -1
    adapter: str = ""
    kills_for_s: float = 0.0

    @property
    def body(self) -> int:
        """Stands for what is posted: equal numbers mean equal bytes."""
        return self.logical_request if self.equal_to < 0 else self.equal_to

    @property
    def prompt_content(self) -> tuple[int, ...]:
        """Identity of the prompt's whole units, without the answer's: what a gateway can know."""
        return self.kv_content[: self.prompt_tokens // self.content_unit_tokens] if self.content else ()

    @property
    def prompt_id(self) -> int:
        """Stands for the prompt: equal numbers mean equal text, as far as its units tell, or an equal body."""
        units = self.prompt_content
        return (units[-1] if units else self.body) * 1_000_003 + self.prompt_tokens

    @property
    def kv_content(self) -> tuple[int, ...]:
        """Identity of the KV of its text: with another adapter it is another."""
        if not self.adapter or not self.content:
            return self.content
        salt = int.from_bytes(blake2b(self.adapter.encode(), digest_size=SALT_BYTES).digest(), "big")
        return tuple(unit ^ salt for unit in self.content)


def shortened(request: PlannedRequest, max_output_tokens: int) -> PlannedRequest:
    """The request with an answer that ends after so many tokens at the latest."""
    output_tokens = min(request.output_tokens, max_output_tokens)
    return msgspec.structs.replace(request, output_tokens=output_tokens, max_output_tokens=max_output_tokens)


class Arrival(NamedTuple):
    """A request and when it is sent."""

    at_s: float
    request: PlannedRequest


class Traffic(Protocol):
    """All clients of a run together."""

    def arrivals(self) -> Iterator[Arrival]:
        """What is sent whatever happens, in order of time; read as the run goes on, so it may be endless or lazy."""
        ...

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        """What follows from the end of a request, at ``now_s`` or later: a retry, the next turn, usually nothing."""
        ...
