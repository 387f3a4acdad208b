import math
import random

import pytest

from engines.batching import BatchLimits
from engines.cost_model import StepCoefficients
from engines.sequences import Sequence
from engines.step_model import SKIP_AHEAD, StepModel, StepModelSpec

COEFFICIENTS = StepCoefficients(
    step_s=0.004, new_token_s=3e-5, attention_pair_s=1e-9, sequence_s=1e-5, context_token_s=5e-8
)
History = list[tuple[float, str, str]]


@pytest.mark.parametrize("num_kv_blocks", [60, 100, 5000], ids=["one_request_fits", "few_blocks", "plenty_of_blocks"])
@pytest.mark.parametrize("shares_text", [False, True], ids=["private_text", "shared_text"])
@pytest.mark.parametrize("pulls_kv", [False, True], ids=["prefills", "pulls"])
@pytest.mark.parametrize("by_priority", [False, True], ids=["fcfs", "priority"])
def test_steps_taken_at_once_and_one_by_one_give_the_same_history_to_the_picosecond(
    num_kv_blocks: int, shares_text: bool, pulls_kv: bool, by_priority: bool
) -> None:
    for seed in range(4):
        models = [
            StepModel(
                StepModelSpec(
                    coefficients=COEFFICIENTS,
                    limits=BatchLimits(max_num_seqs=32, max_num_batched_tokens=512, priority_scheduling=by_priority),
                    num_kv_blocks=num_kv_blocks,
                    request_overhead_s=0.0013,
                    token_overhead_s=1e-5,
                    kv_bytes_per_token=100_000,
                    kv_bandwidth_bytes_per_s=1e9,
                    kv_transfer_overhead_s=0.002,
                    max_steps_per_run=max_steps_per_run,
                )
            )
            for max_steps_per_run in (SKIP_AHEAD, 1)
        ]

        at_once, one_by_one = (_run(model, seed, shares_text, pulls_kv) for model in models)

        assert at_once == one_by_one
        assert models[0].num_steps == models[1].num_steps
        assert models[0].batch.num_preemptions == models[1].batch.num_preemptions
        assert all(model.batch.blocks.num_used == 0 for model in models)
        assert all(not model.batch.running and not model.num_waiting for model in models)


def _run(model: StepModel, seed: int, shares_text: bool, pulls_kv: bool) -> History:
    """A random run with aborted requests, to its end."""
    rng = random.Random(seed)
    calls: list[tuple[float, int, Sequence]] = []
    at_s = 0.0
    for number in range(150):
        at_s += rng.expovariate(50.0)
        sequence = _sequence(rng, number, shares_text, pulls_kv and rng.random() < 0.5)
        calls.append((at_s, 0, sequence))
        if rng.random() < 0.1:
            calls.append((at_s + rng.random(), 1, sequence))
    history: History = []
    for at_s, kind, sequence in sorted(calls, key=lambda call: call[:2]):
        while model.next_event_s < at_s:
            _advance(model, history)
        (model.abort if kind else model.submit)(sequence, at_s)
    while model.next_event_s < math.inf:
        _advance(model, history)
    return history


def _advance(model: StepModel, history: History) -> None:
    for output in model.advance(model.next_event_s):
        history.append((output.at_s, output.happening, output.sequence.request_id))


def _sequence(rng: random.Random, number: int, shares_text: bool, pulls_kv: bool) -> Sequence:
    prompt_tokens, output_tokens = rng.choice([5, 20, 100, 700]), rng.choice([1, 3, 40, 200])
    family, num_shared, num_units = rng.randrange(5), rng.randrange(1, 30), (prompt_tokens + output_tokens) // 32 + 1
    text = [family * 1_000 + unit if unit < num_shared else number * 100 + 10**6 + unit for unit in range(num_units)]
    return Sequence(
        f"request-{number}",
        prompt_tokens,
        output_tokens,
        priority=rng.randrange(3),
        pulls_kv=pulls_kv,
        content=tuple(text) if shares_text else (),
        content_unit_tokens=32 if shares_text else 0,
    )
