"""An attempt on its way to a replica and back, whichever way that is: the data plane or Ray's handles."""

import math
from typing import NamedTuple, Protocol

import msgspec

from deployments.wire.inner_hop import Item
from policies.decisions import Reason
from policies.views import Role

WINDOW_ITEMS = 32
GRANT_ITEMS = WINDOW_ITEMS // 2
"""Items of an attempt that are on their way or wait for the client: so far its replica may be ahead of it."""
NO_WORK = (0, 0)
"""Prompt tokens to compute and KV tokens to hold, of an attempt that nobody plans with, such as a warm-up."""
NamedTiedRequest = tuple[str, str]
"""An attempt, and where the claim that it keeps is asked for."""


class AnswerKeeping(NamedTuple):
    """How an answer is kept for another gateway, should this one be lost.

    Args:
        name: Under which replicas keep it; empty: they don't.
        for_s: How long after an attempt's end.
    """

    name: str = ""
    for_s: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.name)


NO_KEEPING = AnswerKeeping()


class AttemptOrder(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a replica is asked to do for one attempt.

    Args:
        attempt_id: Under which its engine knows it.
        stage: The whole request, or one side of the handoff.
        request: The engine request, encoded once for all attempts of it.
        handle: For a decode: where its prompt's KV is, encoded.
        work: Prompt tokens to compute, and KV tokens that it is expected to hold at its longest.
        priority: Its place inside the engine; smaller goes first.
        tied_to: Where its execution claim is, if it shares one.
        patience_s: How long from now until its request's deadline: over a connection the replica stops it by itself
            soon after, should its gateway stand still. Seconds, as nodes have clocks of their own.
        kept_as: The name under which its replica keeps what comes of it for another gateway; empty: it does not. Over
            Ray's handles none does.
        kept_for_s: How long after its end.
    """

    attempt_id: str
    stage: Role
    request: bytes
    handle: bytes = b""
    work: tuple[int, int] = NO_WORK
    priority: int = 0
    tied_to: NamedTiedRequest | None = None
    patience_s: float = math.inf
    kept_as: str = ""
    kept_for_s: float = 0.0


class AttemptListener(Protocol):
    """Hears what comes of an attempt, in order; never from inside the call that orders it or cancels it."""

    def receive(self, item: Item) -> None:
        """What its replica has given next; the attempt's call is told when it is consumed."""
        ...

    def fail(self, reason: Reason, *, was_taken: bool = True) -> None:
        """The way to its replica is broken: nothing more comes. Its replica may have got it, or has not."""
        ...


class AttemptCall(Protocol):
    """One attempt on its way to a replica and back."""

    def cancel(self) -> None:
        """Nothing that comes of it is wanted any more; its replica stops, and its listener hears nothing."""
        ...

    def consumed(self) -> None:
        """One item is out of the way: the replica may give another one."""
        ...


class NoCall:
    """None has been made, or the answer does not come from a replica."""

    def cancel(self) -> None:
        """There is nothing to stop."""

    def consumed(self) -> None:
        """Nothing waits for it."""


NO_CALL = NoCall()
