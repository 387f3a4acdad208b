"""Text that several attempts hold on one replica, whose engine holds it once."""

from routing.request.request import Attempt


class SharedKv:
    """How much less KV a gateway's attempts hold than the sum of what each of them does.

    An engine holds a block of text as long as one attempt there has it in its prompt, and once, however many do:

        tokens = sum over replicas and blocks of (attempts that have it - 1) * tokens of a block

    Blocks are counted when they are asked for: an attempt that came and went in between costs its place in a mapping,
    and no more, so where KV is never short this is free.

    Memory: about 100 bytes for a block that is counted on one replica. Complexity: O(1) for an attempt, and O(b) for
    its b blocks, once, if it is there when they are asked for. Without ``policies.prefixes`` prompts have no blocks,
    and nothing is known to be shared.
    """

    def __init__(self) -> None:
        self._tokens = 0
        self._num_holders: dict[str, dict[int, int]] = {}
        self._uncounted: dict[str, Attempt] = {}

    def take(self, attempt: Attempt) -> None:
        """An attempt is under way."""
        self._uncounted[attempt.attempt_id] = attempt

    def give_back(self, attempt: Attempt) -> None:
        """An attempt has ended, or goes elsewhere."""
        if self._uncounted.pop(attempt.attempt_id, None) is None:
            self._count_off(attempt)

    def tokens(self) -> int:
        """That sum, of the attempts that are under way now."""
        for attempt in self._uncounted.values():
            self._count(attempt)
        self._uncounted.clear()
        return self._tokens

    def _count(self, attempt: Attempt) -> None:
        here = self._num_holders.setdefault(attempt.replica_id, {})
        num_shared = 0
        for block in attempt.kv_blocks:
            num = here.get(block, 0)
            here[block] = num + 1
            num_shared += num > 0
        self._tokens += num_shared * attempt.kv_block_tokens

    def _count_off(self, attempt: Attempt) -> None:
        here = self._num_holders[attempt.replica_id]
        num_shared = 0
        for block in attempt.kv_blocks:
            num = here[block] - 1
            if num:
                here[block] = num
                num_shared += 1
            else:
                del here[block]
        self._tokens -= num_shared * attempt.kv_block_tokens
        if not here:
            del self._num_holders[attempt.replica_id]
