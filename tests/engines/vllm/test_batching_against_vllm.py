"""Our scheduler against vLLM's own, in lock-step: the same requests, aborted ones included, the same decisions."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from engines.model.batching import Batch, BatchLimits
from engines.model.kv_blocks import KvBlocks
from engines.model.sequences import Sequence, SequenceStage
from tests.engines.vllm_scheduler import BLOCK_TOKENS, Job, StepRecord, VllmScheduler

pytestmark = pytest.mark.vllm


def seeds(number: int, proofs: int) -> pytest.MarkDecorator:
    """So many workloads, and so many more as a proof."""
    more = [pytest.param(seed, marks=pytest.mark.proof) for seed in range(number, number + proofs)]
    return pytest.mark.parametrize("seed", [*range(number), *more])


class OurScheduler:
    """Our batch behind the methods of :class:`VllmScheduler`."""

    def __init__(self, limits: BatchLimits, num_blocks: int, *, knows_text: bool) -> None:
        self._batch = Batch(limits, KvBlocks(num_blocks, BLOCK_TOKENS))
        self._jobs: dict[str, tuple[Job, Sequence]] = {}
        self._knows_text = knows_text
        self._names: dict[tuple[int, tuple[int, ...]], int] = {}

    def submit(self, job: Job) -> None:
        sequence = Sequence(
            job.request_id,
            job.prompt_tokens,
            len(job.text) - job.prompt_tokens,
            priority=job.priority,
            pulls_kv=job.pulls_kv,
            content=self._content(job.text) if self._knows_text else (),
            content_unit_tokens=BLOCK_TOKENS if self._knows_text else 0,
        )
        self._jobs[job.request_id] = (job, sequence)
        self._batch.submit(sequence)

    def abort(self, request_id: str) -> None:
        self._batch.drop(self._jobs[request_id][1])

    def step(self, arrived: frozenset[str]) -> StepRecord:
        batch = self._batch
        num_preemptions = batch.num_preemptions
        work = batch.schedule()
        record = StepRecord(
            tokens=batch.scheduled_tokens(),
            num_preemptions=batch.num_preemptions - num_preemptions,
            num_running=len(batch.running),
            num_waiting=batch.num_waiting,
            num_used_blocks=batch.blocks.num_used,
            pulling=frozenset(name for name, (_, each) in self._jobs.items() if each.stage is SequenceStage.PULLING),
        )
        batch.pulls_to_start.clear()
        assert (work.new_tokens if work else 0) == sum(record.tokens.values())
        for sequence in batch.complete(1).first_tokens:
            self._jobs[sequence.request_id][0].cached_tokens = sequence.cached_tokens
        for request_id in sorted(arrived):
            batch.kv_arrived(self._jobs[request_id][1])
        return record

    def _content(self, text: list[int]) -> tuple[int, ...]:
        """A number for each block of a text: equal ones for equal text up to and including the block."""
        name, content = 0, []
        for start in range(0, len(text) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            name = self._names.setdefault((name, tuple(text[start : start + BLOCK_TOKENS])), len(self._names) + 1)
            content.append(name)
        return tuple(content)


@dataclass(frozen=True)
class Workload:
    """What comes in step by step."""

    seed: int
    num_requests: int = 200
    arrivals_per_step: float = 0.2
    longest_prompt: int = 3000
    longest_output: int = 200
    share_of_repeated_text: float = 0.0
    share_of_aborted: float = 0.05
    num_priorities: int = 1
    share_of_pulls: float = 0.0
    transfer_steps: int = 5

    def steps(self) -> Iterator[tuple[list[Job], list[str]]]:
        """For each step the requests that arrive before it, and those that are aborted."""
        rng = random.Random(self.seed)
        earlier = [_text(rng, f"told-before-{number}", 800) for number in range(3)]
        arrival_steps, at = [], 0.0
        for _ in range(self.num_requests):
            at += rng.expovariate(self.arrivals_per_step)
            arrival_steps.append(int(at))
        aborts: dict[int, list[str]] = {}
        number = step = 0
        while number < self.num_requests or any(each >= step for each in aborts):
            arriving: list[Job] = []
            while number < self.num_requests and arrival_steps[number] <= step:
                arriving.append(self._job(rng, f"request-{number}", earlier))
                if rng.random() < self.share_of_aborted:
                    aborts.setdefault(step + rng.randrange(60), []).append(f"request-{number}")
                number += 1
            yield arriving, aborts.get(step, [])
            step += 1

    def _job(self, rng: random.Random, request_id: str, earlier: list[Job]) -> Job:
        prompt_tokens = min(self.longest_prompt, 1 + int(rng.expovariate(6 / self.longest_prompt)))
        prompt: list[int] = []
        if rng.random() < self.share_of_repeated_text:
            text = _text_to_repeat(rng.choice(earlier))
            prompt = text[: min(self.longest_prompt, rng.choice([len(text), 1 + rng.randrange(len(text))]))]
            prompt_tokens = min(self.longest_prompt, len(prompt) + rng.choice([0, 1, 30, 200]))
        prompt += [rng.randrange(1000) for _ in range(prompt_tokens - len(prompt))]
        output = [rng.randrange(1000) for _ in range(rng.randrange(1, self.longest_output + 1))]
        pulls_kv = rng.random() < self.share_of_pulls
        job = Job(request_id, prompt + output, prompt_tokens, rng.randrange(self.num_priorities), pulls_kv)
        earlier.append(job)
        if len(earlier) > 12:
            del earlier[rng.randrange(len(earlier))]
        return job


def _text(rng: random.Random, request_id: str, num_tokens: int) -> Job:
    return Job(request_id, [rng.randrange(1000) for _ in range(num_tokens)], num_tokens)


def _text_to_repeat(job: Job) -> list[int]:
    """An answer is repeated when it is complete: before that, ours finds none of its blocks, and vLLM some."""
    is_complete = job.prompt_tokens + job.num_generated == len(job.text)
    return job.text[:] if is_complete else job.text[: job.prompt_tokens]


@dataclass
class Totals:
    """What a comparison went through, to see that it compared something."""

    num_steps: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_waiting_steps: int = 0
    num_pulls: int = 0

    def __iadd__(self, other: "Totals") -> "Totals":
        self.num_steps += other.num_steps
        self.num_preemptions += other.num_preemptions
        self.num_cached_tokens += other.num_cached_tokens
        self.num_waiting_steps += other.num_waiting_steps
        self.num_pulls += other.num_pulls
        return self


def compare(
    limits: BatchLimits,
    num_blocks: int,
    workload: Workload,
    *,
    knows_text: bool = True,
    until_one_sits_out: bool = False,
) -> Totals:
    """Drives both through the workload, step by step, to its end or until vLLM leaves a running request out."""
    ours, theirs = OurScheduler(limits, num_blocks, knows_text=knows_text), VllmScheduler(limits, num_blocks)
    our_jobs: list[Job] = []
    their_jobs: list[Job] = []
    totals = Totals()
    steps = workload.steps()
    arrivals: dict[str, int] = {}
    while True:
        arriving, aborted = next(steps, ([], []))
        for job in arriving:
            our_jobs.append(replace(job))
            their_jobs.append(job)
            ours.submit(our_jobs[-1])
            theirs.submit(job)
        for request_id in aborted:
            ours.abort(request_id)
            theirs.abort(request_id)
        arrived = frozenset(request_id for request_id, step in arrivals.items() if step == totals.num_steps)
        our_step, their_step = ours.step(arrived), theirs.step(arrived)
        if until_one_sits_out and their_step.num_preemptions and len(their_step.tokens) < their_step.num_running:
            return totals
        assert our_step == their_step, f"step {totals.num_steps} with {workload}"
        for request_id in sorted(our_step.pulling):
            arrivals.setdefault(request_id, totals.num_steps + workload.transfer_steps)
        totals.num_steps += 1
        totals.num_pulls = len(arrivals)
        totals.num_preemptions += our_step.num_preemptions
        totals.num_waiting_steps += bool(our_step.num_waiting)
        if len(our_jobs) == workload.num_requests and not our_step.num_running and not our_step.num_waiting:
            assert [job.cached_tokens for job in our_jobs] == [job.cached_tokens for job in their_jobs]
            totals.num_cached_tokens = sum(max(0, job.cached_tokens) for job in our_jobs)
            return totals


@seeds(1, proofs=1)
@pytest.mark.parametrize("knows_text", [True, False], ids=["named_text", "nameless_text"])
@pytest.mark.parametrize("threshold", [0, 100], ids=["whole_prompts", "long_prefill_threshold"])
def test_with_blocks_for_everybody_each_step_is_vllms(threshold: int, knows_text: bool, seed: int) -> None:
    limits = BatchLimits(max_num_seqs=16, max_num_batched_tokens=512, long_prefill_token_threshold=threshold)

    totals = compare(limits, 5_000, Workload(seed), knows_text=knows_text)

    assert totals.num_steps > 1_000
    assert totals.num_waiting_steps > 50


@seeds(1, proofs=2)
@pytest.mark.parametrize("num_blocks", [5_000, 700], ids=["all_text_stays", "text_is_pushed_out"])
def test_repeated_text_is_found_and_pushed_out_as_it_is_in_vllm(num_blocks: int, seed: int) -> None:
    limits = BatchLimits(max_num_seqs=4, max_num_batched_tokens=512)

    totals = compare(limits, num_blocks, Workload(seed, share_of_repeated_text=0.8, longest_output=100))

    assert totals.num_steps > 1_500
    assert totals.num_cached_tokens > 30_000
    assert totals.num_preemptions == 0


@seeds(1, proofs=1)
@pytest.mark.parametrize("threshold", [0, 100], ids=["whole_prompts", "long_prefill_threshold"])
@pytest.mark.parametrize(
    ("knows_text", "share_of_repeated_text"),
    [(False, 0.0), (True, 0.0), (True, 0.7)],
    ids=["nameless_text", "own_text", "repeated_text"],
)
def test_with_few_blocks_the_same_sequences_are_preempted_and_find_the_same_of_their_text_again(
    knows_text: bool, share_of_repeated_text: float, threshold: int, seed: int
) -> None:
    limits = BatchLimits(max_num_seqs=32, max_num_batched_tokens=512, long_prefill_token_threshold=threshold)
    workload = Workload(seed, num_requests=150, share_of_repeated_text=share_of_repeated_text)

    totals = compare(limits, 230, workload, knows_text=knows_text)

    assert totals.num_steps > 1_500
    assert totals.num_preemptions > 10


@seeds(4, proofs=12)
def test_whatever_the_limits_each_step_is_vllms(seed: int) -> None:
    rng = random.Random(seed)
    longest_prompt, longest_output = rng.choice([60, 600, 3000]), rng.choice([3, 40, 200])
    max_num_seqs = rng.choice([1, 3, 8, 32, 64])
    limits = BatchLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, rng.choice([64, 200, 512, 2048])),
        long_prefill_token_threshold=rng.choice([0, 30, 100, 500]),
    )
    smallest_cache = (longest_prompt + longest_output) // BLOCK_TOKENS + 2
    workload = Workload(
        seed,
        num_requests=80,
        arrivals_per_step=rng.choice([0.05, 0.3, 1.0]),
        longest_prompt=longest_prompt,
        longest_output=longest_output,
        share_of_repeated_text=rng.choice([0, 0.5, 0.9]),
        share_of_aborted=rng.choice([0, 0.05, 0.4]),
    )

    assert compare(limits, smallest_cache + rng.randrange(smallest_cache), workload).num_steps > 50


def test_by_priority_the_same_sequences_are_taken_in() -> None:
    limits = BatchLimits(max_num_seqs=8, max_num_batched_tokens=512, priority_scheduling=True)

    totals = compare(limits, 5_000, Workload(0, share_of_repeated_text=0.5, num_priorities=3))

    assert totals.num_steps > 2_000
    assert totals.num_waiting_steps > 1_000


def test_by_priority_the_same_sequences_are_preempted_as_long_as_vllm_leaves_nobody_out() -> None:
    """vLLM breaks a step off when a sequence preempts itself, and those behind it sit the step out; ours go on."""
    totals = Totals()
    limits = BatchLimits(max_num_seqs=32, max_num_batched_tokens=512, priority_scheduling=True)
    for seed in range(4):
        workload = Workload(seed, num_requests=150, share_of_repeated_text=0.5, num_priorities=3)
        totals += compare(limits, 300, workload, until_one_sits_out=True)

    assert totals.num_steps > 1_500
    assert totals.num_preemptions > 20


@seeds(1, proofs=1)
@pytest.mark.parametrize("threshold", [0, 100], ids=["whole_prompts", "long_prefill_threshold"])
@pytest.mark.parametrize("num_blocks", [5_000, 260], ids=["blocks_for_everybody", "few_blocks"])
def test_kv_is_pulled_and_decoded_in_the_same_steps(num_blocks: int, threshold: int, seed: int) -> None:
    limits = BatchLimits(max_num_seqs=8, max_num_batched_tokens=512, long_prefill_token_threshold=threshold)
    workload = Workload(seed, num_requests=150, share_of_repeated_text=0.5, share_of_aborted=0.0, share_of_pulls=0.6)

    totals = compare(limits, num_blocks, workload)

    assert totals.num_steps > 1_500
    assert totals.num_pulls > 60
    assert (totals.num_preemptions > 2) == (num_blocks < 1_000)
