"""The KV of finished prefills that an engine holds for others: who has claimed it, and when its lease ends.

A claim stops the lease for as long as it lasts. Two decodes may claim the same KV (one may die, one may be a hedge): it
goes with the last claim if any of them pulled it, and otherwise its lease begins anew.
"""

import math
from collections import deque

from engines.model.sequences import Sequence


class KvHold:
    """The KV of one finished prefill.

    Args:
        sequence: The prefill.

    Attributes:
        num_claims: Decodes that are about to pull it, or pulling.
        was_pulled: One of them has.
        lease_end_s: When it is freed; infinite while it is claimed.
    """

    __slots__ = ("lease_end_s", "num_claims", "sequence", "was_pulled")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.num_claims = 0
        self.was_pulled = False
        self.lease_end_s = math.inf


class HeldKv:
    """What one engine holds. Methods that end a hold return its sequence, whose blocks are to be freed.

    Args:
        lease_s: How long KV is held that is not claimed.

    Attributes:
        holds: By the prefill's request id.
        next_end_s: When :meth:`end_leases` has something to look at.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._leases: deque[tuple[float, KvHold]] = deque()  # in order of time, because all are equally long
        self.holds: dict[str, KvHold] = {}
        self.next_end_s = math.inf

    def hold(self, sequence: Sequence, now_s: float) -> None:
        """A prefill is done."""
        held = self.holds[sequence.request_id] = KvHold(sequence)
        self._lease(held, now_s)

    def claim(self, request_id: str) -> bool:
        """Whether it is held; if so it stays so until the claim is over."""
        held = self.holds.get(request_id)
        if held is None:
            return False
        held.num_claims += 1
        held.lease_end_s = math.inf
        return True

    def end_claim(self, request_id: str, now_s: float, *, is_pulled: bool) -> Sequence | None:
        """A claim is over."""
        held = self.holds.get(request_id)
        if held is None or not held.num_claims:
            return None
        held.num_claims -= 1
        held.was_pulled = held.was_pulled or is_pulled
        if held.num_claims:
            return None
        if held.was_pulled:
            return self.holds.pop(request_id).sequence
        self._lease(held, now_s)
        return None

    def discard(self, request_id: str) -> Sequence | None:
        """It is not needed any more; what is claimed stays."""
        held = self.holds.get(request_id)
        if held is None or held.num_claims:
            return None
        held.lease_end_s = math.inf
        return self.holds.pop(request_id).sequence

    def end_leases(self, now_s: float) -> list[Sequence]:
        """Ends the leases that are over."""
        leases, freed = self._leases, []
        while leases and (leases[0][0] <= now_s or leases[0][1].lease_end_s != leases[0][0]):
            end_s, held = leases.popleft()
            if held.lease_end_s == end_s:
                held.lease_end_s = math.inf
                freed.append(self.holds.pop(held.sequence.request_id).sequence)
        self.next_end_s = leases[0][0] if leases else math.inf
        return freed

    def clear(self) -> None:
        """Everything is lost."""
        self.holds.clear()
        self._leases.clear()
        self.next_end_s = math.inf

    def _lease(self, held: KvHold, now_s: float) -> None:
        held.lease_end_s = now_s + self._lease_s
        self._leases.append((held.lease_end_s, held))
        if len(self._leases) == 1:
            self.next_end_s = held.lease_end_s
