"""The steps of an engine: a batch, a KV cache and a cost model on a clock that somebody else drives.

Nothing here waits or reads a clock. A host hands requests in, asks when something happens next, and calls ``advance``
when that time has come, in virtual time as fast as it likes or in real time as the hours pass. Between two calls the
engine is either idle or in a *run*: one step, or several equal decode steps taken at once. What arrives in the middle
of a run cuts it short at the next step's boundary, where a real engine would look at its inbox, so taking steps at once
changes nothing but the effort: ``max_steps_per_run=1`` gives the same times, to the picosecond.
"""

import math
from collections import deque
from dataclasses import dataclass

from engines.model.batching import Batch, BatchLimits
from engines.model.cost_model import PS_PER_S, StepCoefficients, StepWork, to_ps, to_s
from engines.model.kv_blocks import KvBlocks
from engines.model.messages import Happening, StepOutput
from engines.model.sequences import ExecutionClaim, ExecutionClaims, Sequence, SequenceStage
from engines.model.speculation import NO_SPECULATION, Speculation
from engines.model.step_costs import StepCosts

SKIP_AHEAD = 1 << 40
"""No bound on the steps of a run."""
NEVER_PS = 1 << 80


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModelSpec:
    """One engine.

    Args:
        coefficients: Step times.
        limits: Bounds of a step.
        num_kv_blocks: Blocks of the KV cache.
        kv_block_tokens: Tokens in a block.
        request_overhead_s: From a request's arrival to the scheduler's seeing it.
        token_overhead_s: From a step's end to its outputs' leaving, for each sequence in the step.
        kv_bytes_per_token: Bytes of KV that a transfer moves for each token.
        kv_bandwidth_bytes_per_s: Of the link into this engine, which its transfers take in turn.
        kv_transfer_overhead_s: What each transfer costs beside its bytes.
        speculation: How answers are decoded.
        adapter_load_s: What a step takes longer that loads one.
        slowdown: How many times as long as by ``coefficients`` its steps really take.
        max_steps_per_run: 1 takes every step by itself, and so does speculation.
    """

    coefficients: StepCoefficients
    limits: BatchLimits
    num_kv_blocks: int
    kv_block_tokens: int = 16
    request_overhead_s: float = 0.0
    token_overhead_s: float = 0.0
    kv_bytes_per_token: int = 0
    kv_bandwidth_bytes_per_s: float = math.inf
    kv_transfer_overhead_s: float = 0.0
    speculation: Speculation = NO_SPECULATION
    adapter_load_s: float = 0.0
    slowdown: float = 1.0
    max_steps_per_run: int = SKIP_AHEAD


class StepModel:
    """One engine; see the module. Times that go in never go back.

    Args:
        spec: The engine.

    Attributes:
        next_ps: ``next_event_s`` in picoseconds, or ``NEVER_PS``.
    """

    def __init__(self, spec: StepModelSpec) -> None:
        self.spec = spec
        self.batch = Batch(spec.limits, KvBlocks(spec.num_kv_blocks, spec.kv_block_tokens), spec.speculation)
        self.num_steps = 0
        self._num_drafts = spec.speculation.num_speculative_tokens
        self._max_steps_per_run = 1 if self._num_drafts else spec.max_steps_per_run
        self._costs = self._costs_at(1.0)
        self._next_costs = self._costs
        self._request_overhead_ps = to_ps(spec.request_overhead_s)
        self._token_overhead_ps = to_ps(spec.token_overhead_s)
        self._transfer_overhead_ps = to_ps(spec.kv_transfer_overhead_s)
        self._transfer_ps_per_token = to_ps(spec.kv_bytes_per_token / spec.kv_bandwidth_bytes_per_s)
        self._link_free_ps = 0
        self._inbox: deque[tuple[int, Sequence]] = deque()
        self._transfers: deque[tuple[int, Sequence]] = deque()
        self._aborted: list[Sequence] = []
        self._claims = ExecutionClaims()
        self._work: StepWork | None = None
        self._run_steps = 0
        self._run_start_ps = 0
        self.next_ps = NEVER_PS
        self._busy_ps = 0
        self._is_stalled = False

    def _costs_at(self, factor: float) -> StepCosts:
        spec = self.spec
        return StepCosts.of(spec.coefficients, factor * spec.slowdown, spec.speculation, spec.adapter_load_s)

    # -- what a host tells --------------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence, now_s: float) -> None:
        """Takes a request in."""
        seen_ps = to_ps(now_s) + self._request_overhead_ps
        self._inbox.append((seen_ps, sequence))
        if sequence.claim is not ExecutionClaim.NONE:
            self._claims.watch(sequence)
        self._look_at(seen_ps)

    def abort(self, sequence: Sequence, now_s: float) -> None:
        """Stops a request at the next step's boundary; one whose KV is on its way is stopped when it has arrived."""
        self._aborted.append(sequence)
        self._look_at(to_ps(now_s))

    def share(self, sequence: Sequence) -> None:
        """Another engine has the same prompt as a sequence that has not begun here; it says so when its turn comes."""
        sequence.claim = ExecutionClaim.HELD
        self._claims.watch(sequence)

    def grant(self, sequence: Sequence, now_s: float) -> None:
        """A sequence that has asked may begin; to one that may not, the answer is :meth:`abort`."""
        sequence.claim = ExecutionClaim.NONE
        self._look_at(to_ps(now_s))

    def release_held(self, sequence: Sequence, now_s: float) -> None:
        """Frees the blocks of a finished prefill: they were pulled, or nobody pulled them in time."""
        self.batch.drop(sequence)
        if self.batch.num_waiting:  # for these blocks, perhaps
            self._look_at(to_ps(now_s))

    def slow_down(self, factor: float, now_s: float) -> None:
        """Steps take ``factor`` times as long as they do otherwise, from the next one on."""
        self._next_costs = self._costs_at(factor)
        self._look_at(to_ps(now_s))

    def stall(self, now_s: float) -> None:
        """No step begins any more until :meth:`resume`."""
        self._is_stalled = True
        self._look_at(to_ps(now_s))

    def resume(self, now_s: float) -> None:
        """Ends a stall."""
        self._is_stalled = False
        self._look_at(to_ps(now_s))

    def look(self, now_s: float) -> None:
        """Ends a run of steps at its next boundary: what the sequences have generated by then can be seen."""
        self._look_at(to_ps(now_s))

    # -- what a host asks ---------------------------------------------------------------------------------------------

    @property
    def next_event_s(self) -> float:
        """When ``advance`` has something to do; infinite while the engine is idle."""
        return math.inf if self.next_ps == NEVER_PS else self.next_ps / PS_PER_S

    @property
    def busy_s(self) -> float:
        """Time spent in steps so far."""
        return to_s(self._busy_ps)

    @property
    def num_waiting(self) -> int:
        """Requests that no step has taken in yet."""
        return self.batch.num_waiting + len(self._inbox)

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether the KV cache could hold such a request at all; the last token's KV is never needed."""
        blocks = self.batch.blocks
        return blocks.blocks_for(prompt_tokens + output_tokens - 1 + self._num_drafts) <= blocks.num_blocks

    def num_output_tokens_of(self, sequence: Sequence, at_s: float) -> int:
        """Tokens that the sequence has generated by ``at_s``; steps in the middle of a run count once they are over.

        Args:
            sequence: Of this engine.
            at_s: Now, or when the engine came to its end; not after the next event.
        """
        num_tokens = self.batch.num_output_tokens_of(sequence)
        if self._work is None or sequence.stage is not SequenceStage.DECODING:
            return num_tokens
        elapsed_ps = to_ps(at_s) - self._run_start_ps
        if elapsed_ps >= self._costs.run_ps(self._work, self._run_steps):
            return min(sequence.output_tokens, num_tokens + self._run_steps * self.batch.next_tokens)
        return num_tokens + self._costs.num_steps_until(self._work, elapsed_ps + 1) - 1

    def advance(self, now_s: float) -> list[StepOutput]:
        """Lets everything happen that is due by ``now_s``; returns it in order of time."""
        outputs: list[StepOutput] = []
        boundary_ps = self.next_ps
        while boundary_ps != NEVER_PS and boundary_ps / PS_PER_S <= now_s:
            if self._work is not None:
                self._end_run(self._work, boundary_ps, outputs)
            if self._inbox or self._transfers or self._aborted:
                self._take_in(boundary_ps, outputs)
            self._begin_run(boundary_ps, outputs)
            boundary_ps = self.next_ps
        return outputs

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _look_at(self, at_ps: int) -> None:
        """Something is there to be seen from ``at_ps`` on: a run ends at its first boundary after that."""
        if self._work is None:
            self.next_ps = min(self.next_ps, at_ps)
        elif self._run_steps > 1 and at_ps < self.next_ps:
            self._run_steps = self._costs.num_steps_until(self._work, at_ps - self._run_start_ps)
            self.next_ps = self._run_start_ps + self._costs.run_ps(self._work, self._run_steps)

    def _begin_run(self, now_ps: int, outputs: list[StepOutput]) -> None:
        self.next_ps = NEVER_PS
        if self._is_stalled:
            return
        self._costs = costs = self._next_costs
        work = self._schedule_claimed(now_ps, outputs) if self._claims else self._schedule(now_ps)
        if work is not None:
            self._work = work
            self._run_start_ps = now_ps
            self._run_steps = self.batch.num_equal_steps(self._max_steps_per_run)
            self.next_ps = now_ps + costs.run_ps(work, self._run_steps)
        if self._inbox or self._transfers:
            self._look_at(self._next_arrival_ps())

    def _schedule_claimed(self, now_ps: int, outputs: list[StepOutput]) -> StepWork | None:
        """The same where sequences share claims: no step begins while the one whose turn it is waits for an answer."""
        turns = self._claims.ask(self.batch.next_in_line())
        work = None
        if not self._claims.are_awaited:
            work = self._schedule(now_ps)
            turns += self._claims.begun()
        outputs += [StepOutput(to_s(now_ps), Happening.TURN, each) for each in turns]
        return work

    def _schedule(self, now_ps: int) -> StepWork | None:
        batch = self.batch
        num_preemptions = batch.num_preemptions
        work = batch.schedule()
        if work is None and batch.num_preemptions > num_preemptions:
            work = batch.schedule()  # the last one running gave up its blocks, which may now be enough for it
        if batch.pulls_to_start:
            for sequence in batch.pulls_to_start:
                self._start_transfer(sequence, now_ps)
            batch.pulls_to_start.clear()
        return work

    def _end_run(self, work: StepWork, end_ps: int, outputs: list[StepOutput]) -> None:
        self._work = None
        ended = self.batch.complete(self._run_steps)
        self.num_steps += self._run_steps
        self._busy_ps += end_ps - self._run_start_ps
        if ended.first_tokens or ended.finished:
            at_s = to_s(end_ps + self._token_overhead_ps * work.sequences)
            outputs += [StepOutput(at_s, Happening.FIRST_TOKEN, each) for each in ended.first_tokens]
            outputs += [StepOutput(at_s, Happening.FINISHED, each) for each in ended.finished]

    def _take_in(self, now_ps: int, outputs: list[StepOutput]) -> None:
        """Between two runs the engine looks at what has come meanwhile."""
        while self._transfers and self._transfers[0][0] <= now_ps:
            done_ps, sequence = self._transfers.popleft()
            self.batch.kv_arrived(sequence)
            outputs.append(StepOutput(to_s(done_ps), Happening.KV_PULLED, sequence))
        while self._inbox and self._inbox[0][0] <= now_ps:
            sequence = self._inbox.popleft()[1]
            if sequence.stage is SequenceStage.NEW:
                self.batch.submit(sequence)
        if self._aborted:
            for sequence in self._aborted:
                if sequence.stage is not SequenceStage.PULLING:
                    self.batch.drop(sequence)
                    sequence.aborted_s = to_s(now_ps)
            self._aborted = [each for each in self._aborted if each.stage is SequenceStage.PULLING]

    def _next_arrival_ps(self) -> int:
        """When the next request or the next transfer is there to be seen."""
        request_ps = self._inbox[0][0] if self._inbox else NEVER_PS
        return min(request_ps, self._transfers[0][0]) if self._transfers else request_ps

    def _start_transfer(self, sequence: Sequence, now_ps: int) -> None:
        transfer_ps = (sequence.prompt_tokens - sequence.cached_tokens) * self._transfer_ps_per_token
        if sequence.link_slowdown != 1.0:
            transfer_ps = round(transfer_ps * sequence.link_slowdown)
        self._link_free_ps = max(now_ps, self._link_free_ps) + transfer_ps
        self._transfers.append((self._link_free_ps + self._transfer_overhead_ps, sequence))
