"""Text that several attempts hold on one replica, whose engine holds it once."""

from routing.request.request import Attempt


class SharedKv:
    """How much less KV a gateway's attempts hold than the sum of what each of them does.

    An engine holds a block of text as long as one attempt there has it in its prompt, and once, however many do:

        tokens = sum over replicas and blocks of (attempts that have it - 1) * tokens of a block

    Memory: about 100 bytes for a block that is held on one replica. Complexity: O(b) for an attempt of b blocks.
    Without ``policies.prefixes`` prompts have no blocks, and nothing is known to be shared.

    Attributes:
        tokens: That sum.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._num_holders: dict[str, dict[int, int]] = {}

    def take(self, attempt: Attempt) -> None:
        """An attempt is under way."""
        here = self._num_holders.setdefault(attempt.replica_id, {})
        num_shared = 0
        for block in attempt.kv_blocks:
            num = here.get(block, 0)
            here[block] = num + 1
            num_shared += num > 0
        self.tokens += num_shared * attempt.kv_block_tokens

    def give_back(self, attempt: Attempt) -> None:
        """An attempt has ended, or goes elsewhere."""
        here = self._num_holders[attempt.replica_id]
        num_shared = 0
        for block in attempt.kv_blocks:
            num = here[block] - 1
            if num:
                here[block] = num
                num_shared += 1
            else:
                del here[block]
        self.tokens -= num_shared * attempt.kv_block_tokens
        if not here:
            del self._num_holders[attempt.replica_id]
