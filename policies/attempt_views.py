"""What policies may look at of attempts in flight; see :mod:`policies.views` for how long it is valid."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from policies.decisions import Reason
from policies.views import ReplicaView, RequestView, Role


class AttemptView(Protocol):
    """An attempt that was sent to a replica and has no first token yet."""

    @property
    def attempt_id(self) -> str: ...

    @property
    def stage(self) -> Role:
        """What runs: the whole request, or its prefill."""
        ...

    @property
    def replica(self) -> ReplicaView:
        """Where; its work includes the attempt's."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that it has to compute there."""
        ...

    @property
    def sent_at_s(self) -> float: ...

    @property
    def expected_s(self) -> float:
        """Seconds until its first token, by what the replica has before it now, its own prompt included.

        0 without an engine profile, so a policy that goes by it names ``Need.SERVICE_RATES``.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAttempt:
    """An attempt that failed, through no fault of its request, before anybody had a token of it.

    Args:
        reason: What happened.
        num_retries: How often its request has been tried again already.
        prefill_tokens: Prompt tokens that have to be computed once more.
    """

    reason: Reason
    num_retries: int
    prefill_tokens: int


class InFlightView(Protocol):
    """A sheddable attempt that holds a slot on a replica."""

    @property
    def request(self) -> RequestView: ...

    @property
    def replica_id(self) -> str: ...

    @property
    def sent_at_s(self) -> float:
        """When it was sent."""
        ...

    @property
    def num_preemptions(self) -> int:
        """How often its request was preempted already."""
        ...


class SlotsView(Protocol):
    """The slots on the replicas that a waiting request may use, all of which are taken."""

    @property
    def num_slots(self) -> int:
        """Attempts that these replicas take at a time."""
        ...

    @property
    def num_taken(self) -> int:
        """Slots that requests above sheddable hold, and those that are about to be free for them."""
        ...

    def stoppable(self) -> Iterator[InFlightView]:
        """Attempts that can be stopped without harm, each of which would make room, the latest sent first."""
        ...
