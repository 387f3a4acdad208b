"""Continuous batching as vLLM V1 does it: which sequences take part in the next step, and with how many tokens.

Each step gives every decoding sequence its token, then goes on with prompts that are partly computed, then takes new
sequences in, as long as the step's token budget, the batch's size and the KV blocks last. A prompt longer than what is
left of the budget is computed in chunks. When a running sequence finds no block, the last in running order (under
priority scheduling: the least important) is preempted and computed again later.

Two simplifications against vLLM, neither visible in a step's work: decoding sequences take their blocks before prompts
in progress do, and blocks of generated text can be found by others when their sequence ends, not as they fill.
"""

import heapq
from dataclasses import dataclass

from engines.cost_model import StepWork, attention_pairs
from engines.decode_clock import DecodeClock
from engines.kv_blocks import KvBlocks
from engines.sequences import Sequence, Stage
from policies.errors import ConfigError, InvariantViolation


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What bounds a step. Names and meanings are vLLM's.

    Args:
        max_num_seqs: Sequences in the batch, at least 1.
        max_num_batched_tokens: Tokens in a step, at least ``max_num_seqs``.
        long_prefill_token_threshold: Most prompt tokens of one sequence in a step; 0 means no bound.
        priority_scheduling: Smaller priority first instead of first come, first served.

    Raises:
        ConfigError: A limit out of range.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    priority_scheduling: bool = False

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError("max_num_seqs", self.max_num_seqs, "1 or more")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError("max_num_batched_tokens", self.max_num_batched_tokens, f"{self.max_num_seqs} or more")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError("long_prefill_token_threshold", self.long_prefill_token_threshold, "0 or more")


class StepOutput:
    """What a step, or a run of equal steps, brought to an end.

    Args:
        first_tokens: Sequences that gave their first token.
        finished: Sequences that gave their last.
    """

    __slots__ = ("finished", "first_tokens")

    def __init__(self) -> None:
        self.first_tokens: list[Sequence] = []
        self.finished: list[Sequence] = []


class Batch:
    """The scheduler of one engine: ``schedule`` a step, ``complete`` it, again and again.

    Args:
        limits: Bounds of a step.
        blocks: The KV cache.
    """

    def __init__(self, limits: BatchLimits, blocks: KvBlocks) -> None:
        self._limits = limits
        self.blocks = blocks
        self.running: dict[str, Sequence] = {}
        self.pulls_to_start: list[Sequence] = []
        self.num_waiting = 0
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self._num_submitted = 0
        self._line: list[tuple[bool, int, int, Sequence]] = []
        self._prefilling: list[Sequence] = []
        self._chunks: dict[Sequence, int] = {}
        self._starting: list[Sequence] = []
        self._may_admit_next = False
        self._decoding = DecodeClock(blocks.block_tokens)

    def submit(self, sequence: Sequence) -> None:
        """Lines a sequence up."""
        sequence.number = self._num_submitted
        self._num_submitted += 1
        self._line_up(sequence)

    def kv_arrived(self, sequence: Sequence) -> None:
        """The prompt's KV is here: the sequence may take part from the next step on."""
        if sequence.stage is Stage.PULLING:
            sequence.kv_is_here = True
            self.num_waiting -= 1
            self._line_up(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence out between two steps, wherever it is, and frees its blocks."""
        if sequence.stage is Stage.GONE:
            return
        if sequence.stage in (Stage.WAITING, Stage.PULLING):
            self.num_waiting -= 1
        elif sequence.stage in (Stage.PREFILLING, Stage.DECODING):
            self._leave(sequence)
        sequence.stage = Stage.GONE
        self.blocks.release(sequence.holding)

    def num_output_tokens_of(self, sequence: Sequence) -> int:
        """Tokens that the sequence has generated so far."""
        if sequence.stage is Stage.DECODING:
            return sequence.output_tokens - (sequence.finish_clock - self._decoding.clock)
        return sequence.num_generated

    # -- one step -----------------------------------------------------------------------------------------------------

    def schedule(self) -> StepWork | None:
        """Chooses the next step and takes its blocks; ``None`` when no sequence can take part."""
        num_preempted = self.num_preemptions
        self._grow_decoding()
        tokens_left = self._limits.max_num_batched_tokens - self._decoding.num_sequences
        tokens_left = self._continue_prefills(tokens_left)
        self._may_admit_next = self.num_preemptions > num_preempted
        if self.num_waiting and not self._may_admit_next:
            self._admit(tokens_left)
        new_tokens, pairs = self._decoding.num_sequences, 0
        for sequence, chunk in self._chunks.items():
            new_tokens += chunk
            pairs += attention_pairs(chunk, sequence.num_computed)
        if not new_tokens:
            return None
        num_sequences = self._decoding.num_sequences + len(self._chunks)
        return StepWork(new_tokens, pairs, num_sequences, self._decoding.context_tokens)

    def num_equal_steps(self, at_most: int) -> int:
        """How many steps, the one just scheduled included, go by before a sequence changes its stage."""
        if self._chunks or self._starting or self._may_admit_next or at_most == 1:
            return 1
        return self._decoding.num_equal_steps(at_most, self.blocks.num_available)

    def complete(self, num_steps: int) -> StepOutput:
        """Ends the scheduled step and ``num_steps - 1`` equal ones after it."""
        output = StepOutput()
        if self._decoding.num_sequences:
            if not self.blocks.take(self._decoding.advance(num_steps)):
                raise InvariantViolation("equal steps were promised KV blocks that are not there")
            self.num_output_tokens += num_steps * self._decoding.num_sequences
            output.first_tokens += self._starting
            self._starting.clear()
            for sequence in self._decoding.finished():
                self._finish(sequence, output)
        self._decoding.has_grown = False
        for sequence, chunk in self._chunks.items():
            self._end_chunk(sequence, chunk, output)
        self._chunks.clear()
        return output

    # -- sequences that run -------------------------------------------------------------------------------------------

    def _grow_decoding(self) -> None:
        """Takes the blocks that decoding sequences begin in this step."""
        needed = self._decoding.num_blocks_begun(self._decoding.clock, 1)
        self._decoding.has_grown = self.blocks.take(needed)
        if not self._decoding.has_grown:
            self._grow_one_by_one()

    def _grow_one_by_one(self) -> None:
        """Too few blocks for all: in running order each takes one, or somebody further back gives up all its own."""
        for sequence in list(self.running.values()):
            needs_block = sequence.stage is Stage.DECODING and self._decoding.begins_block(sequence)
            if needs_block and self._take_or_preempt(sequence, 1):
                self._decoding.grown.add(sequence)
        self._decoding.has_grown = True
        self._decoding.grown.clear()

    def _continue_prefills(self, tokens_left: int) -> int:
        for sequence in list(self._prefilling):
            if sequence.stage is not Stage.PREFILLING:
                continue
            chunk = self._chunk_of(sequence, sequence.num_computed, tokens_left)
            needed = self.blocks.blocks_for(sequence.num_computed + chunk) - self._num_blocks_held(sequence)
            if not chunk or not self._take_or_preempt(sequence, needed):
                continue
            sequence.holding.num_own_blocks += needed
            tokens_left -= chunk
            self._schedule_chunk(sequence, chunk)
        return tokens_left

    def _take_or_preempt(self, sequence: Sequence, num_blocks: int) -> bool:
        """Takes blocks for a sequence; whoever is last gives its own up until there are enough, or it is the last."""
        while not self.blocks.take(num_blocks):
            victim = self._victim()
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _victim(self) -> Sequence:
        if self._limits.priority_scheduling:
            return max(self.running.values(), key=lambda each: (each.priority, each.number))
        return next(reversed(self.running.values()))

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the line; what was computed is computed again, except what the prefix cache still has by then."""
        self.num_preemptions += 1
        self._leave(sequence)
        self.blocks.release(sequence.holding)
        sequence.num_computed = 0
        sequence.num_published = 0
        sequence.pulls_kv = sequence.kv_is_here = False
        self._line_up(sequence)

    # -- sequences that wait ------------------------------------------------------------------------------------------

    def _line_up(self, sequence: Sequence) -> None:
        """Whoever holds blocks already goes first, or those in front might wait for these very blocks for ever."""
        sequence.stage = Stage.WAITING
        self.num_waiting += 1
        priority = sequence.priority if self._limits.priority_scheduling else 0
        heapq.heappush(self._line, (not sequence.kv_is_here, priority, sequence.number, sequence))

    def _admit(self, tokens_left: int) -> None:
        """Takes sequences in from the head of the line; one that finds too few blocks holds up all behind it."""
        line = self._line
        while line and tokens_left > 0:
            sequence = line[0][-1]
            if sequence.stage is not Stage.WAITING:
                heapq.heappop(line)
                continue
            if sequence.pulls_kv and not sequence.kv_is_here:
                if not self._start_pull(sequence):
                    return
            elif len(self.running) >= self._limits.max_num_seqs:
                return
            elif sequence.kv_is_here:
                self._start_decode(sequence)
                tokens_left -= 1
            else:
                chunk = self._start_prefill(sequence, tokens_left)
                if not chunk:
                    self._may_admit_next = bool(sequence.content)  # with less of it cached, its first chunk is shorter
                    return
                tokens_left -= chunk
            heapq.heappop(line)

    def _start_pull(self, sequence: Sequence) -> bool:
        """Takes the prompt's blocks and asks for the transfer of those that are not cached here."""
        cached = self._take_cached(sequence, sequence.prompt_tokens, sequence.prompt_tokens)
        if cached < 0:
            return False
        sequence.cached_tokens = cached
        sequence.stage = Stage.PULLING
        self.pulls_to_start.append(sequence)
        return True

    def _start_decode(self, sequence: Sequence) -> None:
        """The prompt's KV is here but for its last token, which the first step computes again to sample from it."""
        self.num_waiting -= 1
        self.running[sequence.request_id] = sequence
        self._publish(sequence, sequence.prompt_tokens)
        self._starting.append(sequence)
        self._decoding.join(sequence, sequence.prompt_tokens - 1)

    def _start_prefill(self, sequence: Sequence, tokens_left: int) -> int:
        """Schedules the first chunk; returns its tokens, 0 when there are too few blocks."""
        known = sequence.num_known_tokens
        cached = self._take_cached(sequence, known, tokens_left)
        if cached < 0:
            return 0
        chunk = self._chunk_of(sequence, cached, tokens_left)
        if not sequence.num_generated:
            sequence.cached_tokens = cached
            self.num_cached_tokens += cached
        sequence.num_computed = cached
        sequence.stage = Stage.PREFILLING
        self.num_waiting -= 1
        self.running[sequence.request_id] = sequence
        self._prefilling.append(sequence)
        self._schedule_chunk(sequence, chunk)
        return chunk

    def _take_cached(self, sequence: Sequence, tokens: int, tokens_left: int) -> int:
        """Holds what is cached of the text, takes blocks for what follows; cached tokens, or -1 for too few blocks."""
        blocks = self.blocks
        num_units = unit_tokens = 0
        if sequence.content:
            unit_tokens = sequence.content_unit_tokens
            num_units = blocks.lookup(sequence.content, (tokens - 1) // unit_tokens)
        cached = num_units * unit_tokens
        units = sequence.content[:num_units]
        end = cached + (tokens - cached if sequence.pulls_kv else self._chunk_of(sequence, cached, tokens_left))
        needed = blocks.blocks_for(end) - blocks.blocks_for(cached)
        if needed + blocks.num_idle_blocks(units) > blocks.num_available:
            return -1
        blocks.share(sequence.holding, units)
        blocks.allocate(sequence.holding, needed)
        sequence.num_published = num_units
        return cached

    def _chunk_of(self, sequence: Sequence, computed: int, tokens_left: int) -> int:
        chunk = min(sequence.num_known_tokens - computed, tokens_left)
        threshold = self._limits.long_prefill_token_threshold
        return min(chunk, threshold) if threshold else chunk

    def _schedule_chunk(self, sequence: Sequence, chunk: int) -> None:
        self._chunks[sequence] = chunk
        self.num_prompt_tokens += chunk
        self._publish(sequence, sequence.num_computed + chunk)

    # -- sequences that move on ---------------------------------------------------------------------------------------

    def _end_chunk(self, sequence: Sequence, chunk: int, output: StepOutput) -> None:
        sequence.num_computed += chunk
        if sequence.num_computed < sequence.num_known_tokens:
            return
        self._prefilling.remove(sequence)
        if not sequence.num_generated:
            output.first_tokens.append(sequence)
        sequence.num_generated += 1
        self.num_output_tokens += 1
        if sequence.num_generated == sequence.output_tokens:
            self._finish(sequence, output)
        else:
            self._decoding.join(sequence, sequence.num_computed)

    def _finish(self, sequence: Sequence, output: StepOutput) -> None:
        output.finished.append(sequence)
        self._leave(sequence)
        self._publish(sequence, sequence.num_computed)
        sequence.stage = Stage.HELD
        if not sequence.holds_kv:
            self.drop(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Takes a sequence out of the batch; its blocks stay its own."""
        del self.running[sequence.request_id]
        if sequence.stage is Stage.DECODING:
            num_blocks = self._decoding.leave(sequence)
            sequence.holding.num_own_blocks += num_blocks - self._num_blocks_held(sequence)
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)
            self._chunks.pop(sequence, None)

    def _publish(self, sequence: Sequence, computed: int) -> None:
        """Lets others find the units that are complete after ``computed`` tokens."""
        if sequence.content:
            end = computed // sequence.content_unit_tokens
            units = sequence.content[sequence.num_published : end]
            self.blocks.publish(sequence.holding, units, sequence.content_unit_tokens // self.blocks.block_tokens)
            sequence.num_published = max(sequence.num_published, end)

    def _num_blocks_held(self, sequence: Sequence) -> int:
        holding = sequence.holding
        if not holding.units:
            return holding.num_own_blocks
        return holding.num_own_blocks + len(holding.units) * (sequence.content_unit_tokens // self.blocks.block_tokens)
