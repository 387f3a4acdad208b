"""One attempt in virtual time: its request inside an engine model, and how its gateway is reached."""

from collections.abc import Callable

from cluster.sim.traffic import PlannedRequest
from engines.contract import EngineTimes
from engines.model.engine_model import Messages
from engines.model.messages import Message
from engines.model.sequences import Sequence
from policies.views import Role
from routing.request.effects import Send
from routing.request.events import (
    AnswerBegun,
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    CacheChanged,
    FirstTokenReceived,
    LaneLengthExceeded,
)

AttemptEvent = (
    AnswerBegun | FirstTokenReceived | LaneLengthExceeded | AttemptFinished | AttemptFailed | AttemptWithdrawn
)
Reply = Callable[[float, AttemptEvent | CacheChanged], None]
"""Sends an event to the attempt's gateway; the float is when it leaves the replica."""
Ask = Callable[[Message, float], Messages]
"""An engine's ``handle``."""
Tell = Callable[[float, Message], Messages]
"""A replica's ``tell``."""


class SimAttempt:
    """One attempt on its way to a replica, on it, and on its way back.

    Args:
        send: What the dispatcher asked for.
        request: For which request.
        reply: Reaches its gateway.
        num_emitted: Tokens of the answer that an attempt before it has emitted; they are part of its prompt.
        num_from_prefill: 1: it begins with a token that was drawn with the prompt.

    Attributes:
        ask_kv_source: Asks the engine that holds its prompt's KV, for the prefill attempt ``kv_from``.
        tell_kv_source: Tells the replica of that engine.
        kv_source_id: That replica.
        on_turn: Called when its turn comes, if it shares a claim.
        came_s: When it came to its replica.
        awaits_kv: Its gateway has the first token, and it has no KV yet.
        kv_pulled_s: When the KV of its prompt was there; ``came_s`` where none was pulled.
    """

    __slots__ = (
        "ask_kv_source",
        "attempt_id",
        "awaits_kv",
        "came_s",
        "first_token_s",
        "kv_from",
        "kv_pulled_s",
        "kv_source_id",
        "kv_tokens",
        "lane_limits_tokens",
        "num_from_prefill",
        "on_turn",
        "prefill_tokens",
        "reply",
        "request",
        "sequence",
        "stage",
        "tell_kv_source",
    )

    def __init__(
        self, send: Send, request: PlannedRequest, reply: Reply, num_emitted: int = 0, num_from_prefill: int = 0
    ) -> None:
        num_known = num_emitted + num_from_prefill
        is_prefill = send.stage is Role.PREFILL
        self.attempt_id = send.attempt_id
        self.stage = send.stage
        self.prefill_tokens = send.prefill_tokens
        self.kv_tokens = send.kv_tokens
        self.lane_limits_tokens = send.lane_limits_tokens
        self.num_from_prefill = num_from_prefill
        self.awaits_kv = False
        self.request = request
        self.reply = reply
        self.came_s = self.kv_pulled_s = self.first_token_s = 0.0
        self.ask_kv_source: Ask = _ask_no_engine
        self.tell_kv_source: Tell = _tell_no_replica
        self.kv_from = ""
        self.kv_source_id = ""
        self.on_turn: Callable[[float], None] = _tell_nobody
        self.sequence = Sequence(
            send.attempt_id,
            request.prompt_tokens + num_known,
            1 if is_prefill else request.output_tokens - num_known,
            priority=send.engine_priority,
            holds_kv=is_prefill,
            pulls_kv=send.stage is Role.DECODE,
            content=request.kv_content,
            content_unit_tokens=request.content_unit_tokens,
            adapter=request.adapter,
        )

    @property
    def times(self) -> EngineTimes:
        """What its engine says of it once it has given its first token."""
        if self.stage is Role.DECODE:
            return EngineTimes(kv_transfer_s=self.kv_pulled_s - self.came_s)
        return EngineTimes(prefill_s=self.first_token_s - self.came_s)

    def pull(self, ask_kv_source: Ask, tell_kv_source: Tell, kv_source_id: str, kv_from: str) -> None:
        """The prompt's KV comes from a replica that holds it for the prefill attempt ``kv_from``."""
        self.kv_source_id = kv_source_id
        self.ask_kv_source = ask_kv_source
        self.tell_kv_source = tell_kv_source
        self.kv_from = kv_from


def _tell_nobody(now_s: float) -> None:
    """Its claim is its own."""


def _tell_no_replica(now_s: float, message: Message) -> Messages:
    """Its prompt is computed where it is."""
    return ()


def _ask_no_engine(message: Message, now_s: float) -> Messages:
    """Its prompt is computed where it is."""
    return ()
