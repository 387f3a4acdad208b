"""What policies may look at. Every attribute is read-only and carries its unit in its name.

Views are protocols, not copies: the fleet hands out its own records behind these read-only faces, and its own
lists of them, so that a decision over hundreds of replicas costs no allocation. A policy keeps nothing of a view beyond
the call, lists included: both change with the next event.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Protocol


class Role(StrEnum):
    """What a replica's engine does: the whole request, or one side of the KV handoff."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request as policies see it.

    Args:
        request_id: Unique in the gateway's lifetime.
        prompt_tokens: Length of the prompt, exact.
        max_output_tokens: Upper bound of the output.
        arrival_s: When the gateway took it in.
        deadline_s: Absolute time after which nobody waits for it any more.
    """

    request_id: str
    prompt_tokens: int
    max_output_tokens: int
    arrival_s: float
    deadline_s: float

    @property
    def kv_tokens(self) -> int:
        """KV tokens it holds at its longest: prompt and the whole allowed output."""
        return self.prompt_tokens + self.max_output_tokens


class ReplicaView(Protocol):
    """One replica as this gateway sees it, slightly stale where other gateways are concerned."""

    @property
    def replica_id(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def num_ongoing_requests(self) -> int:
        """Attempts that this gateway has open on the replica."""
        ...

    @property
    def max_ongoing_requests(self) -> int:
        """Attempts that the replica takes at a time, from all gateways."""
        ...

    @property
    def work_tokens(self) -> int:
        """Work left on the replica in tokens: prompt tokens on a prefill replica, KV tokens otherwise.

        The replica's last report, corrected by what this gateway has sent and finished since.
        """
        ...

    @property
    def kv_capacity_tokens(self) -> int:
        """KV tokens that the engine can hold, as the engine itself says."""
        ...

    @property
    def kv_cache_usage(self) -> float:
        """Fraction of KV blocks in use at the last report, 0 to 1."""
        ...


_id_of = attrgetter("replica_id")


class Candidates(Sequence[ReplicaView]):
    """Replicas to pick from, in order of replica id."""

    @abstractmethod
    def least_work_left(self) -> ReplicaView:
        """The candidate with the least ``(work_tokens, num_ongoing_requests, replica_id)``, without a look at each.

        Raises:
            ValueError: There is no candidate.
        """

    def has(self, replica: object) -> bool:
        """Whether this very object is among them; O(log n)."""
        replica_id = getattr(replica, "replica_id", None)
        if not isinstance(replica_id, str):
            return False
        index = bisect_left(self, replica_id, key=_id_of)
        return index < len(self) and self[index] is replica


class CandidateList(list[ReplicaView], Candidates):
    """Candidates without an index: a list that somebody has sorted by replica id, for few replicas and for tests."""

    def least_work_left(self) -> ReplicaView:
        return min(self, key=lambda each: (each.work_tokens, each.num_ongoing_requests, each.replica_id))


class FleetView(Protocol):
    """All replicas that can take work now."""

    def live(self, role: Role, now_s: float) -> Sequence[ReplicaView]:
        """Replicas of a role that are not under suspicion, in order of replica id."""
        ...
