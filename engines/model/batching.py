"""Continuous batching as vLLM V1 does it: which sequences take part in the next step, and with how many tokens.

Each step gives every decoding sequence its token, then goes on with prompts that are partly computed, then takes new
sequences in, as long as the step's token budget, the batch's size and the KV blocks last. A sequence is taken in when
all that is known of it fits into the KV cache, and a prompt longer than what is left of the budget is computed in
chunks. When a running sequence finds no block, the last in running order (under priority scheduling: the least
important) is preempted and computed again later, except for what the prefix cache still has of it.

With units of ``content`` of one block, first come, first served, every step is the same as vLLM's, with these
simplifications:

- Blocks of generated text can be found by others when their sequence leaves the batch, not as they fill.
- Text without ``content`` that was preempted is found in at most one copy.

Under priority scheduling there is one more. vLLM breaks a step off when a sequence preempts itself, and those behind it
in running order sit the step out; here they take part. With longer units, text is found and pushed out unit by unit.
"""

import heapq
from collections import Counter
from dataclasses import dataclass

from engines.model.cost_model import StepWork, attention_pairs
from engines.model.decode_clock import DecodeClock
from engines.model.kv_blocks import BlockRun, KvBlocks
from engines.model.sequences import ExecutionClaim, Sequence, SequenceStage, StepOutput
from engines.model.speculation import NO_SPECULATION, Speculation
from policies.errors import ConfigError, InvariantViolation

NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What bounds a step. Names and meanings are vLLM's.

    Args:
        max_num_seqs: Sequences in the batch, at least 1.
        max_num_batched_tokens: Tokens in a step, at least ``max_num_seqs``.
        long_prefill_token_threshold: Most prompt tokens of one sequence in a step; 0 means no bound.
        priority_scheduling: Smaller priority first instead of first come, first served.
        max_adapters: LoRA adapters that are loaded at a time; 0: none is taken.
        max_adapters_in_step: Those that a step computes with; 0: as many.

    Raises:
        ConfigError: A limit out of range.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    priority_scheduling: bool = False
    max_adapters: int = 0
    max_adapters_in_step: int = 0

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError("max_num_seqs", self.max_num_seqs, "1 or more")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError("max_num_batched_tokens", self.max_num_batched_tokens, f"{self.max_num_seqs} or more")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError("long_prefill_token_threshold", self.long_prefill_token_threshold, "0 or more")


class AdapterSlots:
    """As many adapters as fit; for one more the one goes that was used least lately, of those that no sequence needs
    where there is one.

    Args:
        num_slots: Adapters that are loaded at a time; 0: none.
        num_in_step: Adapters that a step computes with; 0: as many as are loaded.

    Attributes:
        num_loads: Times that one has been loaded.
    """

    def __init__(self, num_slots: int, num_in_step: int = 0) -> None:
        self.num_slots = num_slots
        self._num_in_step = num_in_step or num_slots
        self.num_loads = 0
        self._loaded: dict[str, None] = {}
        self._in_use: Counter[str] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are loaded, the last one used first."""
        return tuple(reversed(self._loaded))

    def has_room_for(self, name: str) -> bool:
        """Whether a sequence with this adapter, or without one, can take part in a step beside those that do."""
        return not name or name in self._in_use or len(self._in_use) < self._num_in_step

    def enter(self, name: str) -> bool:
        """A sequence with this adapter takes part from now on; whether the adapter has to be loaded first."""
        if not name:
            return False
        self._in_use[name] += 1
        return self.load(name)

    def leave(self, name: str) -> None:
        """It takes part no more."""
        if name:
            self._in_use[name] -= 1
            if not self._in_use[name]:
                del self._in_use[name]

    def load(self, name: str) -> bool:
        """It is loaded, and the last one used; whether it was not there."""
        is_there = name in self._loaded
        if is_there:
            del self._loaded[name]
        elif len(self._loaded) >= self.num_slots:
            idle = (each for each in self._loaded if each not in self._in_use)
            del self._loaded[next(idle, next(iter(self._loaded)))]
        self._loaded[name] = None
        self.num_loads += not is_there
        return not is_there

    def unload(self, name: str) -> None:
        """It is forgotten, if it is there."""
        self._loaded.pop(name, None)


class Batch:
    """The scheduler of one engine: ``schedule`` a step, ``complete`` it, again and again.

    Args:
        limits: Bounds of a step.
        blocks: The KV cache.
        speculation: How answers are decoded.
    """

    def __init__(self, limits: BatchLimits, blocks: KvBlocks, speculation: Speculation = NO_SPECULATION) -> None:
        self._limits = limits
        self.adapters = AdapterSlots(limits.max_adapters, limits.max_adapters_in_step)
        self._num_drafts = speculation.num_speculative_tokens
        self._tokens_each = 1 + self._num_drafts
        self.blocks = blocks
        self.running: dict[str, Sequence] = {}
        self.pulls_to_start: list[Sequence] = []
        self.num_waiting = 0
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self._num_submitted = 0
        self._num_turns = 0
        self._tokens_left = 0
        self._chunk_limit = 0
        self._line: list[tuple[bool, int, int, Sequence]] = []
        self._prefilling: list[Sequence] = []
        self._chunks: dict[Sequence, int] = {}
        self._starting: list[Sequence] = []
        self._may_admit_next = False
        self._decoding = DecodeClock(blocks.block_tokens, speculation.tokens_a_step)

    def submit(self, sequence: Sequence) -> None:
        """Lines a sequence up."""
        sequence.number = self._num_submitted
        self._num_submitted += 1
        self._enqueue(sequence, sequence.number)

    def kv_arrived(self, sequence: Sequence) -> None:
        """The prompt's KV is here: the sequence may take part from the next step on."""
        if sequence.stage is SequenceStage.PULLING:
            sequence.kv_is_here = True
            self.num_waiting -= 1
            self._enqueue(sequence, sequence.number)

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence out between two steps, wherever it is, and frees its blocks."""
        if sequence.stage is SequenceStage.GONE:
            return
        if sequence.stage in (SequenceStage.WAITING, SequenceStage.PULLING):
            self.num_waiting -= 1
        elif sequence.stage in (SequenceStage.PREFILLING, SequenceStage.DECODING):
            self._leave(sequence)
        sequence.stage = SequenceStage.GONE
        self.blocks.release(sequence.holding, sequence.num_computed // self.blocks.block_tokens)

    def num_output_tokens_of(self, sequence: Sequence) -> int:
        """Tokens that the sequence has generated so far."""
        if sequence.stage is SequenceStage.DECODING:
            return max(0, sequence.output_tokens - (sequence.finish_clock - self._decoding.clock))
        return sequence.num_generated

    @property
    def next_tokens(self) -> int:
        """Tokens that the next step, or the one just scheduled, gives each decoding sequence."""
        return self._decoding.next_tokens

    def next_in_line(self) -> Sequence | None:
        """The first one that the next step takes in, if blocks last; ``None`` when nobody waits, or has room to."""
        line = self._line
        while line and line[0][-1].stage is not SequenceStage.WAITING:
            heapq.heappop(line)
        limit = self._limits.long_prefill_token_threshold or NO_LIMIT
        tokens = self._decoding.num_sequences * self._tokens_each
        tokens += sum(min(each.num_known_tokens - each.num_computed, limit) for each in self._prefilling)
        has_room = tokens < self._limits.max_num_batched_tokens and len(self.running) < self._limits.max_num_seqs
        return line[0][-1] if line and has_room else None

    # -- one step -----------------------------------------------------------------------------------------------------

    def schedule(self) -> StepWork | None:
        """Chooses the next step and takes its blocks; ``None`` when no sequence can take part."""
        num_preempted, num_turns, num_loads = self.num_preemptions, self._num_turns, self.adapters.num_loads
        is_alone = len(self.running) + self.num_waiting <= 1  # there is nobody that a long prompt could hold up
        self._chunk_limit = NO_LIMIT if is_alone else self._limits.long_prefill_token_threshold or NO_LIMIT
        decoding = self._decoding
        if decoding.num_sequences:
            self._grow_decoding()
        self._tokens_left = self._limits.max_num_batched_tokens - decoding.num_sequences * self._tokens_each
        if self._prefilling:
            self._continue_prefills()
        self._may_admit_next = self.num_preemptions > num_preempted
        if self.num_waiting and not self._may_admit_next:
            self._admit()
        new_tokens, pairs = decoding.num_sequences, 0
        for sequence, chunk in self._chunks.items():
            new_tokens += chunk
            pairs += attention_pairs(chunk, sequence.num_computed)
        num_sequences = decoding.num_sequences + len(self._chunks)
        admitted = self._num_turns - num_turns
        drafts = (decoding.num_sequences - len(self._starting)) * self._num_drafts
        context, shared = decoding.context_tokens, decoding.shared_tokens
        loads = self.adapters.num_loads - num_loads
        work = StepWork(new_tokens, pairs, num_sequences, context, admitted, shared, drafts, loads)
        return work if new_tokens else None

    def scheduled_tokens(self) -> dict[str, int]:
        """Tokens that each sequence computes in the scheduled step, by request id; draft tokens are not among them."""
        decoding = {each.request_id: 1 for each in self.running.values() if each.stage is SequenceStage.DECODING}
        return decoding | {sequence.request_id: chunk for sequence, chunk in self._chunks.items()}

    def num_equal_steps(self, at_most: int) -> int:
        """How many steps, the one just scheduled included, go by before a sequence changes its stage."""
        if self._chunks or self._starting or self._may_admit_next or at_most == 1:
            return 1
        return self._decoding.num_equal_steps(at_most, self.blocks.num_available)

    def complete(self, num_steps: int) -> StepOutput:
        """Ends the scheduled step and ``num_steps - 1`` equal ones after it."""
        output = StepOutput()
        if self._decoding.num_sequences:
            self._complete_decoding(num_steps, output)
        self._decoding.has_grown = False
        if self._chunks:
            for sequence, chunk in self._chunks.items():
                self._end_chunk(sequence, chunk, output)
            self._chunks.clear()
        if len(output.finished) > 1:
            output.finished.sort(key=lambda each: each.turn)
        for sequence in output.finished:
            self._finish(sequence)
        return output

    # -- sequences that run -------------------------------------------------------------------------------------------

    def _complete_decoding(self, num_steps: int, output: StepOutput) -> None:
        decoding = self._decoding
        num_drafting, accepted = decoding.num_sequences - len(self._starting), decoding.next_tokens - 1
        self.num_output_tokens += num_steps * decoding.num_sequences + num_drafting * accepted
        num_blocks = decoding.advance(num_steps)
        if num_blocks and not self.blocks.take(num_blocks):
            raise InvariantViolation("equal steps were promised KV blocks that are not there")
        if self._starting:
            output.first_tokens += self._starting
            self._starting.clear()
        finished = decoding.finished()
        if self._num_drafts:
            self.num_output_tokens -= sum(map(decoding.past_end, finished))
            self.num_draft_tokens += num_drafting * self._num_drafts
            self.num_accepted_tokens += num_drafting * accepted
        output.finished += finished

    def _grow_decoding(self) -> None:
        """Takes the blocks that decoding sequences begin in this step."""
        needed = self._decoding.num_blocks_beginning()
        if not needed or self.blocks.take(needed):
            self._decoding.has_grown = True
        else:
            self._grow_one_by_one()

    def _grow_one_by_one(self) -> None:
        """Too few blocks for all: in running order each takes one, or somebody further back gives up all its own."""
        for sequence in list(self.running.values()):
            needs_block = sequence.stage is SequenceStage.DECODING and self._decoding.begins_block(sequence)
            if needs_block and self._take_or_preempt(sequence, 1):
                self._decoding.grown.add(sequence)
        self._decoding.has_grown = True
        self._decoding.grown.clear()

    def _continue_prefills(self) -> None:
        for sequence in list(self._prefilling):
            if sequence.stage is not SequenceStage.PREFILLING:
                continue
            chunk = self._chunk_of(sequence, sequence.num_computed)
            needed = self.blocks.blocks_for(sequence.num_computed + chunk) - self._num_blocks_held(sequence)
            if not chunk or not self._take_or_preempt(sequence, needed):
                continue
            sequence.holding.num_own_blocks += needed
            self._schedule_chunk(sequence, chunk)

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
        sequence.num_preemptions += 1
        self._leave(sequence)
        sequence.left_behind_after = sequence.num_published * sequence.content_unit_tokens
        num_full_blocks = sequence.num_computed // self.blocks.block_tokens
        sequence.left_behind = self.blocks.release(sequence.holding, num_full_blocks, comes_back=True)
        sequence.num_computed = 0
        sequence.num_published = 0
        sequence.pulls_kv = sequence.kv_is_here = False
        self._enqueue(sequence, sequence.number if self._limits.priority_scheduling else -self.num_preemptions)

    # -- sequences that wait ------------------------------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence, rank: int) -> None:
        """Whoever holds blocks already goes first, or those in front might wait for these very blocks for ever."""
        sequence.stage = SequenceStage.WAITING
        self.num_waiting += 1
        priority = sequence.priority if self._limits.priority_scheduling else 0
        heapq.heappush(self._line, (not sequence.kv_is_here, priority, rank, sequence))

    def _admit(self) -> None:
        """Takes sequences in from the head of the line; one that finds too few blocks holds up all behind it, one that
        finds no room for its adapter only itself.
        """
        passed_over: list[tuple[bool, int, int, Sequence]] = []
        self._admit_in_turn(passed_over)
        for entry in passed_over:
            heapq.heappush(self._line, entry)

    def _admit_in_turn(self, passed_over: list[tuple[bool, int, int, Sequence]]) -> None:
        line = self._line
        while line and self._tokens_left > 0 and len(self.running) < self._limits.max_num_seqs:
            sequence = line[0][-1]
            if sequence.stage is SequenceStage.WAITING:
                if not self.adapters.has_room_for(sequence.adapter):
                    passed_over.append(heapq.heappop(line))
                    continue
                if sequence.kv_is_here:
                    self._start_decode(sequence)
                elif not (self._start_pull(sequence) if sequence.pulls_kv else self._start_prefill(sequence)):
                    self._may_admit_next = self.blocks.has_copies  # of which idle ones make room for held ones
                    return
            heapq.heappop(line)

    def _enter(self, sequence: Sequence) -> None:
        """Takes a sequence into the batch."""
        self.num_waiting -= 1
        self._num_turns += 1
        sequence.turn = self._num_turns
        self.running[sequence.request_id] = sequence
        if sequence.adapter:
            self.adapters.enter(sequence.adapter)

    def _start_pull(self, sequence: Sequence) -> bool:
        """Takes the prompt's blocks and asks for the transfer of those that are not cached here.

        A transfer can't be preempted, so it leaves the blocks that prompts in progress will need.
        """
        reserved = sum(
            self.blocks.blocks_for(each.num_known_tokens) - self._num_blocks_held(each) for each in self._prefilling
        )
        cached = self._take_cached(sequence, reserved)
        if cached < 0:
            return False
        sequence.cached_tokens = cached
        sequence.stage = SequenceStage.PULLING
        self.pulls_to_start.append(sequence)
        return True

    def _start_decode(self, sequence: Sequence) -> None:
        """The prompt's KV is here but for its last token, which the first step computes again to sample from it.

        There are no draft tokens yet, so it gets one token of a step that gives the others more.
        """
        self._enter(sequence)
        self._publish(sequence, sequence.prompt_tokens)
        self._starting.append(sequence)
        sequence.num_generated = 1 - self._decoding.next_tokens
        self._decoding.join(sequence, sequence.prompt_tokens - self._decoding.next_tokens)
        self._tokens_left -= 1

    def _start_prefill(self, sequence: Sequence) -> bool:
        """Schedules the first chunk; ``False`` for want of an execution claim, or of blocks for all that is known of
        it.
        """
        cached = self._take_cached(sequence) if sequence.claim < ExecutionClaim.WANTED else -1
        if cached < 0:
            return False
        if not sequence.num_preemptions:
            sequence.cached_tokens = cached
            self.num_cached_tokens += cached
        sequence.num_computed = cached
        sequence.stage = SequenceStage.PREFILLING
        self._enter(sequence)
        self._prefilling.append(sequence)
        self._schedule_chunk(sequence, self._chunk_of(sequence, cached))
        return True

    def _take_cached(self, sequence: Sequence, reserved: int = 0) -> int:
        """Holds what is cached of the text, takes blocks for what follows; cached tokens, or -1 for too few blocks."""
        blocks, known = self.blocks, sequence.num_known_tokens
        units: list[BlockRun] = []
        if sequence.content:
            units = blocks.lookup(sequence.content, (known - 1) // sequence.content_unit_tokens)
        cached = len(units) * sequence.content_unit_tokens
        left_behind, num_left_behind = sequence.left_behind, 0
        if left_behind and sequence.left_behind_after == cached:
            num_left_behind = min(left_behind.num_blocks, (known - 1 - cached) // blocks.block_tokens)
        num_cached_blocks = cached // blocks.block_tokens + num_left_behind
        num_idle = blocks.num_idle_blocks(units) + num_left_behind if num_cached_blocks else 0
        num_all_blocks = blocks.blocks_for(known)
        if num_all_blocks - num_cached_blocks + num_idle + reserved > blocks.num_available:
            return -1
        cached = num_cached_blocks * blocks.block_tokens
        blocks.share(sequence.holding, units)
        if left_behind and num_left_behind:
            blocks.reclaim(sequence.holding, left_behind, num_left_behind)
        if not sequence.pulls_kv:
            num_all_blocks = blocks.blocks_for(cached + self._chunk_of(sequence, cached))
        blocks.allocate(sequence.holding, num_all_blocks - num_cached_blocks)
        sequence.left_behind = None
        sequence.num_published = len(units)
        return cached

    def _chunk_of(self, sequence: Sequence, computed: int) -> int:
        return min(sequence.num_known_tokens - computed, self._tokens_left, self._chunk_limit)

    def _schedule_chunk(self, sequence: Sequence, chunk: int) -> None:
        self._chunks[sequence] = chunk
        self._tokens_left -= chunk
        self._publish(sequence, sequence.num_computed + chunk)

    # -- sequences that move on ---------------------------------------------------------------------------------------

    def _end_chunk(self, sequence: Sequence, chunk: int, output: StepOutput) -> None:
        sequence.num_computed += chunk
        sequence.num_prefilled += chunk
        self.num_prompt_tokens += chunk
        if sequence.num_computed < sequence.num_known_tokens:
            return
        if not sequence.num_generated:
            output.first_tokens.append(sequence)
        sequence.num_generated += 1
        self.num_output_tokens += 1
        if sequence.num_generated == sequence.output_tokens:
            output.finished.append(sequence)
        else:
            self._prefilling.remove(sequence)
            self._decoding.join(sequence, sequence.num_computed)

    def _finish(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.stage = SequenceStage.HELD
        if not sequence.holds_kv:
            self.drop(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Takes a sequence out of the batch; its blocks stay its own, and its text can be found."""
        del self.running[sequence.request_id]
        self.adapters.leave(sequence.adapter)
        if sequence.stage is SequenceStage.DECODING:
            num_blocks = self._decoding.leave(sequence)
            sequence.holding.num_own_blocks += num_blocks - self._num_blocks_held(sequence)
            self._tokens_left += self._tokens_each
        else:
            self._prefilling.remove(sequence)
            self._tokens_left += self._chunks.pop(sequence, 0)
        self._publish(sequence, sequence.num_computed)

    def _publish(self, sequence: Sequence, computed: int) -> None:
        """Lets others find the units that are complete after ``computed`` tokens."""
        if sequence.content:
            end = min(computed // sequence.content_unit_tokens, len(sequence.content))
            if end > sequence.num_published:
                names = sequence.content[sequence.num_published : end]
                self.blocks.publish(sequence.holding, names, sequence.content_unit_tokens // self.blocks.block_tokens)
                sequence.num_published = end

    def _num_blocks_held(self, sequence: Sequence) -> int:
        return sequence.holding.num_own_blocks + sequence.holding.num_unit_blocks
