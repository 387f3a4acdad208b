"""What is known of a dispatcher's requests, attempts, replicas and timers from its conversation alone.

Each account is as large as what is open: what is over is forgotten, so that a log of any length can be gone through.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from policies.views import Role
from routing.request.effects import Send
from routing.request.events import ReplicaInfo

SPARE_ENTRIES = 64
"""Of a heap, beyond twice what it is for: it is made anew when it has more of what is not due any more."""


@dataclass(slots=True)
class RequestAccount:
    """One request that has no outcome yet, or attempts that have not ended.

    Args:
        request_id: Which.
        most_tokens: Tokens that its answer has at the most.
        has_cached_answer: Whether it is answered with what an equal request was given.
        is_answered: Whether it has its outcome.
        has_begun: Whether an attempt's tokens have become its answer.
        committed: The attempt whose tokens are the answer now; empty: none.
        num_emitted: Tokens that attempts before that one have emitted.
        sent: Ids of all its attempts.
        under_way: Its attempts that have not ended.
        tries: Attempts by stage that count: since it last got any further, without hedges and those that begin a plan.
        has_another_plan: Whether the next attempt begins one.
        has_lost_beside: Whether an attempt was lost while another one of its stage was under way.
        kv: Its finished prefills, and whether their KV has not been given up.
    """

    request_id: str
    most_tokens: int
    has_cached_answer: bool = False
    is_answered: bool = False
    has_begun: bool = False
    committed: str = ""
    num_emitted: int = 0
    sent: set[str] = field(default_factory=set)
    under_way: dict[str, "AttemptAccount"] = field(default_factory=dict)
    tries: Counter[Role] = field(default_factory=Counter)
    has_another_plan: bool = False
    has_lost_beside: bool = False
    kv: dict[str, bool] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing is to come of it any more."""
        return self.is_answered and not self.under_way

    def has_another(self, attempt: "AttemptAccount") -> bool:
        """Whether an attempt beside this one, of the same stage, is under way and wanted."""
        others = (each for each in self.under_way.values() if each is not attempt and not each.is_cancelled)
        return any(each.stage is attempt.stage for each in others)


@dataclass(slots=True)
class AttemptAccount:
    """One attempt that has not ended.

    Args:
        attempt_id: Which.
        stage: What it runs.
        replica_id: Where it holds a slot.
        request: Whose it is.
        is_cancelled: Whether its end was asked for.
        has_first_token: Whether its first token has come.
    """

    attempt_id: str
    stage: Role
    replica_id: str
    request: RequestAccount
    is_cancelled: bool = False
    has_first_token: bool = False

    @classmethod
    def of(cls, send: Send, request: RequestAccount) -> "AttemptAccount":
        """One that begins."""
        return cls(send.attempt_id, send.stage, send.replica_id, request)


@dataclass(slots=True)
class _ReplicaAccount:
    pool: str
    is_up: bool
    num_slots: int
    num_taken: int = 0


class ReplicaAccounts:
    """Replicas that are up or have attempts, and how many slots of each are taken."""

    def __init__(self) -> None:
        self._known: dict[str, _ReplicaAccount] = {}

    def change(self, pool: str, infos: Collection[ReplicaInfo]) -> None:
        """The replicas of a pool are these; one of them that was another pool's has left it."""
        named = {info.replica_id for info in infos}
        for replica_id, known in list(self._known.items()):
            if known.pool == pool and replica_id not in named:
                known.is_up = False
                self._forget_if_gone(replica_id)
        for info in infos:
            known = self._known.setdefault(info.replica_id, _ReplicaAccount(pool, True, info.max_ongoing_requests))
            known.pool, known.is_up = pool, True
            known.num_slots = max(known.num_slots, info.max_ongoing_requests)

    def is_up(self, replica_id: str) -> bool:
        """Whether it is among its pool's replicas."""
        return replica_id in self._known and self._known[replica_id].is_up

    def num_free(self, replica_id: str) -> int:
        """Attempts that it has room for; one that took what was not sent to it may have more than it has slots."""
        known = self._known.get(replica_id)
        return 0 if known is None else known.num_slots - known.num_taken

    def take(self, replica_id: str) -> None:
        """One more attempt holds a slot of it."""
        self._known.setdefault(replica_id, _ReplicaAccount("", False, 0)).num_taken += 1

    def give_back(self, replica_id: str) -> None:
        """One less."""
        self._known[replica_id].num_taken -= 1
        self._forget_if_gone(replica_id)

    def move(self, attempt: AttemptAccount, replica_id: str) -> None:
        """Another replica took the attempt, if anything is known of that one."""
        if replica_id in self._known and replica_id != attempt.replica_id:
            self.give_back(attempt.replica_id)
            attempt.replica_id = replica_id
            self.take(replica_id)

    def _forget_if_gone(self, replica_id: str) -> None:
        known = self._known[replica_id]
        if not known.is_up and not known.num_taken:
            del self._known[replica_id]


class DueTimes:
    """What is due, and when."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._due_s

    def add(self, name: str, at_s: float) -> None:
        """It is due at ``at_s``; infinite: never, but it is known."""
        self._due_s[name] = at_s
        if at_s < math.inf:
            heappush(self._heap, (at_s, name))
        if len(self._heap) > 2 * len(self._due_s) + SPARE_ENTRIES:
            self._heap = [(due_s, each) for each, due_s in self._due_s.items() if due_s < math.inf]
            heapify(self._heap)

    def pop(self, name: str) -> float | None:
        """It is not due any more; when it was, or none if it was not known."""
        return self._due_s.pop(name, None)

    def overdue(self, before_s: float) -> Iterator[tuple[str, float]]:
        """What was due before then, each once: it is forgotten."""
        heap = self._heap
        while heap and heap[0][0] < before_s:
            at_s, name = heappop(heap)
            if self._due_s.get(name) == at_s:
                del self._due_s[name]
                yield name, at_s
