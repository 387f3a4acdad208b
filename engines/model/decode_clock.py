"""The decoding sequences of a batch, without visiting each of them in each step.

Every decoding sequence gets one token in every step, so its progress can be read off a clock that counts steps: one
that joined at clock ``k`` with ``c`` computed tokens has ``c + clock - k`` of them now, finishes when the clock reaches
a known value, and begins a new KV block whenever the clock has a known remainder. A step in which nobody joins or
leaves costs the same at 1 and at 256 sequences, and a run of such steps is one addition.

With speculative decoding a step gives every sequence several tokens, as many as the others: in the mean over steps as
many as are accepted, rounded down or up from step to step. What differs between sequences is left out. The clock counts
tokens then.
"""

import heapq

from engines.model.kv_blocks import BlockRun
from engines.model.sequences import Sequence, SequenceStage


class DecodeClock:
    """Counts decode steps, and knows from the count what each sequence has.

    Args:
        block_tokens: Tokens in a KV block.
        tokens_a_step: Tokens that a step gives each sequence in the mean, from 1 to those of a block; to three places.

    Attributes:
        clock: Tokens so far of a sequence that was always there.
        next_tokens: Tokens that the next step gives each sequence.
        num_sequences: Sequences that decode.
        context_tokens: KV tokens that they read in the next step, the new ones included.
        shared_tokens: Of these, the ones in units that another of the sequences reads, too: all but the first reader's.
        has_grown: Whether all have the blocks of the step that is being scheduled.
        grown: Those that have, while not all do.
    """

    def __init__(self, block_tokens: int, tokens_a_step: float = 1.0) -> None:
        self.clock = 0
        self._thousandths_a_step = round(1000 * tokens_a_step)
        self.next_tokens, self._thousandths_left = divmod(self._thousandths_a_step, 1000)
        self.num_sequences = 0
        self.context_tokens = 0
        self.shared_tokens = 0
        self.has_grown = False
        self.grown: set[Sequence] = set()
        self._block_tokens = block_tokens
        self._num_beginning = [0] * block_tokens
        self._num_readers: dict[BlockRun, int] = {}
        self._finishing: list[tuple[int, int, Sequence]] = []

    def join(self, sequence: Sequence, num_computed: int) -> None:
        """The sequence takes part from the next step on (the scheduled one, while one is being scheduled)."""
        sequence.stage = SequenceStage.DECODING
        sequence.clock_offset = num_computed - self.clock
        sequence.finish_clock = self.clock + sequence.output_tokens - sequence.num_generated
        self.num_sequences += 1
        for unit in sequence.holding.units:
            num_others = self._num_readers.get(unit, 0)
            self._num_readers[unit] = num_others + 1
            if num_others:
                self.shared_tokens += unit.num_blocks * self._block_tokens
        self.context_tokens += num_computed + 1
        self._num_beginning[-sequence.clock_offset % self._block_tokens] += 1
        heapq.heappush(self._finishing, (sequence.finish_clock, sequence.turn, sequence))

    def leave(self, sequence: Sequence) -> int:
        """The sequence takes part no more; returns how many blocks it has, and writes its progress down."""
        num_computed = sequence.clock_offset + self.clock
        past_end = self.past_end(sequence)
        sequence.num_computed = num_computed - past_end
        sequence.num_generated = sequence.output_tokens - (sequence.finish_clock - self.clock) - past_end
        self.num_sequences -= 1
        for unit in sequence.holding.units:
            num_others = self._num_readers.pop(unit) - 1
            if num_others:
                self._num_readers[unit] = num_others
                self.shared_tokens -= unit.num_blocks * self._block_tokens
        self.context_tokens -= num_computed + 1
        self._num_beginning[-sequence.clock_offset % self._block_tokens] -= 1
        has_next_block = self.has_grown or sequence in self.grown
        return -(-(num_computed + has_next_block * self.next_tokens) // self._block_tokens)

    def past_end(self, sequence: Sequence) -> int:
        """Tokens beyond the sequence's last one that its last step has made."""
        return max(0, self.clock - sequence.finish_clock)

    def begins_block(self, sequence: Sequence) -> bool:
        """Whether one of the sequence's next tokens is the first of a block."""
        return -(sequence.clock_offset + self.clock) % self._block_tokens < self.next_tokens

    def advance(self, num_steps: int) -> int:
        """Makes steps; returns the blocks begun in those after the first, whose blocks were taken beforehand.

        Args:
            num_steps: How many, one where steps give sequences several tokens.
        """
        num_blocks = self.num_blocks_begun(self.clock + 1, num_steps - 1) if num_steps > 1 else 0
        num_tokens = num_steps * self.next_tokens
        self.clock += num_tokens
        self.context_tokens += num_tokens * self.num_sequences
        self.has_grown = False
        thousandths = self._thousandths_left + self._thousandths_a_step
        self.next_tokens, self._thousandths_left = divmod(thousandths, 1000)
        return num_blocks

    def finished(self) -> list[Sequence]:
        """Sequences that have all their tokens now."""
        finishing, finished = self._finishing, []
        while finishing and finishing[0][0] <= self.clock:
            entry = heapq.heappop(finishing)
            if _is_current(entry):
                finished.append(entry[2])
        return finished

    def num_equal_steps(self, at_most: int, num_blocks_available: int) -> int:
        """How many steps, the scheduled one included, until the first sequence finishes or the blocks run out."""
        finishing = self._finishing
        while not _is_current(finishing[0]):
            heapq.heappop(finishing)
        num_steps = min(at_most, finishing[0][0] - self.clock)
        if (num_steps // self._block_tokens + 1) * self.num_sequences <= num_blocks_available:  # by a wide margin
            return num_steps
        return self._num_steps_within(num_blocks_available, num_steps)

    def num_blocks_beginning(self) -> int:
        """Blocks that the sequences begin in the next step."""
        if self.next_tokens == 1:
            return self._num_beginning[self.clock % self._block_tokens]
        return self.num_blocks_begun(self.clock, self.next_tokens)

    def num_blocks_begun(self, clock: int, num_tokens: int) -> int:
        """Blocks that the sequences begin with ``num_tokens`` tokens from ``clock`` on."""
        rounds, rest = divmod(num_tokens, self._block_tokens)
        first = clock % self._block_tokens
        beginning = self._num_beginning
        begun = sum(beginning[first : first + rest]) + sum(beginning[: max(0, first + rest - self._block_tokens)])
        return rounds * self.num_sequences + begun

    def _num_steps_within(self, num_blocks: int, at_most: int) -> int:
        low, high = 1, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if self.num_blocks_begun(self.clock + 1, middle - 1) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low


def _is_current(entry: tuple[int, int, Sequence]) -> bool:
    """Whether the sequence still has that turn: it may have left, or left and come back."""
    _, turn, sequence = entry
    return sequence.stage is SequenceStage.DECODING and sequence.turn == turn
