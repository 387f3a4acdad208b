import math
import random
from typing import Any

import pytest

from engines.model.batching import BatchLimits
from engines.model.cost_model import StepCoefficients
from engines.model.messages import Happening
from engines.model.sequences import Sequence
from engines.model.step_model import SKIP_AHEAD, StepModel, StepModelSpec
from tests.tables import for_each

COEFFICIENTS = StepCoefficients(
    step_s=0.004,
    new_token_s=3e-5,
    attention_pair_s=1e-9,
    sequence_s=1e-5,
    context_token_s=5e-8,
    admission_s=0.0007,
    shared_token_saving_s=3e-8,
)
History = list[tuple[float, str, str]]


@for_each("num_kv_blocks", [60, 100, 5000], ids=["one_request_fits", "few_blocks", "plenty_of_blocks"])
@for_each("shares_text", [False, True], ids=["private_text", "shared_text"])
@for_each("pulls_kv", [False, True], ids=["prefills", "pulls"])
@for_each("by_priority", [False, True], ids=["fcfs", "priority"])
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
    """A random run with aborted requests, to its end; how far the latest are is noted when one comes or goes."""
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
    seen: list[Sequence] = []
    for at_s, kind, sequence in sorted(calls, key=lambda call: call[:2]):
        while model.next_event_s < at_s:
            _advance(model, history)
        for each in seen[-20:]:
            history.append((at_s, f"{model.num_output_tokens_of(each, at_s)} tokens", each.request_id))
        seen += [] if kind else [sequence]
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


# -- one thing at a time, with steps of a second -----------------------------------------------------------------------


def second_long_steps(
    *, new_token_s: float = 0.0, admission_s: float = 0.0, num_kv_blocks: int = 1000, **spec: Any
) -> StepModel:
    return StepModel(
        StepModelSpec(
            coefficients=StepCoefficients(
                step_s=1.0,
                new_token_s=new_token_s,
                attention_pair_s=0.0,
                sequence_s=0.0,
                context_token_s=0.0,
                admission_s=admission_s,
            ),
            limits=BatchLimits(max_num_seqs=8, max_num_batched_tokens=100),
            num_kv_blocks=num_kv_blocks,
            **spec,
        )
    )


def until_idle(model: StepModel) -> History:
    history: History = []
    while model.next_event_s < math.inf:
        _advance(model, history)
    return history


def test_an_idle_engine_starts_at_once_and_is_idle_again_afterwards() -> None:
    model = second_long_steps(new_token_s=0.1)
    assert model.next_event_s == math.inf

    model.submit(Sequence("a", 10, 3), 5.0)

    assert model.next_event_s == 5.0
    assert until_idle(model) == [(7.0, "first_token", "a"), (9.2, "finished", "a")]
    assert model.busy_s == pytest.approx(4.2)
    assert model.num_steps == 3


def test_an_arrival_in_mid_run_is_taken_in_at_the_next_boundary() -> None:
    model = second_long_steps()
    model.submit(Sequence("a", 10, 100), 0.0)
    model.advance(0.0)
    model.advance(1.0)
    assert model.next_event_s == 100.0

    model.submit(Sequence("b", 10, 1), 7.3)

    assert model.next_event_s == 8.0
    assert model.advance(8.0) == []
    assert until_idle(model)[0] == (9.0, "first_token", "b")


def test_in_mid_run_the_steps_that_are_over_count_and_the_one_under_way_does_not() -> None:
    model = second_long_steps()
    sequence = Sequence("a", 10, 100)
    model.submit(sequence, 0.0)
    model.advance(0.0)
    model.advance(1.0)  # the prompt is computed, and its first token there

    found = [model.num_output_tokens_of(sequence, at_s) for at_s in (1.0, 1.5, 2.0, 41.9, 42.0, 99.5, 100.0, 200.0)]
    model.stall(50.2)

    assert found == [1, 1, 2, 41, 42, 99, 100, 100]
    assert model.num_output_tokens_of(sequence, 50.2) == 50
    assert model.num_output_tokens_of(sequence, 60.0) == 51, "it ends its step"


def test_an_arrival_at_a_boundary_is_taken_in_at_that_boundary() -> None:
    model = second_long_steps()
    model.submit(Sequence("a", 10, 100), 0.0)
    model.advance(0.0)
    model.advance(1.0)

    model.submit(Sequence("b", 10, 1), 7.0)

    assert model.next_event_s == 7.0
    assert until_idle(model)[0] == (8.0, "first_token", "b")


def test_a_request_is_admitted_once_however_many_steps_it_takes() -> None:
    """Three chunks of a prompt, then three decode steps: one admission."""
    model = second_long_steps(admission_s=0.25)
    model.submit(Sequence("a", 250, 4), 0.0)

    assert until_idle(model) == [(3.25, "first_token", "a"), (6.25, "finished", "a")]


def test_requests_that_a_step_takes_in_together_are_admitted_each() -> None:
    model = second_long_steps(admission_s=0.25)
    for name in "abc":
        model.submit(Sequence(name, 10, 2), 0.0)

    assert [at_s for at_s, _, _ in until_idle(model)] == [1.75] * 3 + [2.75] * 3


def test_what_sequences_have_in_common_costs_less_for_all_but_the_first_reader() -> None:
    """A token read costs 10 ms, and a shared one 7 ms less: three readers of 64 shared tokens save 2 x 64 x 7 ms."""
    spec = StepModelSpec(
        coefficients=StepCoefficients(
            step_s=1.0,
            new_token_s=0.0,
            attention_pair_s=0.0,
            sequence_s=0.0,
            context_token_s=0.01,
            shared_token_saving_s=0.007,
        ),
        limits=BatchLimits(max_num_seqs=8, max_num_batched_tokens=100),
        num_kv_blocks=1000,
    )
    model = StepModel(spec)
    model.submit(Sequence("first", 65, 1, content=(1, 2), content_unit_tokens=32), 0.0)
    until_idle(model)
    for name in "abc":
        model.submit(Sequence(name, 66, 2, content=(1, 2), content_unit_tokens=32), 10.0)

    history = until_idle(model)

    assert [at_s for at_s, what, _ in history if what == "first_token"] == [11.0] * 3
    decode_s = 1.0 + 3 * 67 * 0.01 - 2 * 64 * 0.007
    assert [at_s for at_s, what, _ in history if what == "finished"] == pytest.approx([11.0 + decode_s] * 3)


def test_the_scheduler_sees_a_request_after_the_front_ends_share() -> None:
    model = second_long_steps(request_overhead_s=0.25)
    model.submit(Sequence("a", 10, 1), 5.0)
    assert model.num_waiting == 1

    assert until_idle(model) == [(6.25, "first_token", "a"), (6.25, "finished", "a")]


def test_outputs_leave_later_the_more_sequences_a_step_has_and_the_next_step_does_not_wait() -> None:
    model = second_long_steps(token_overhead_s=0.1)
    for name in "abc":
        model.submit(Sequence(name, 10, 2), 0.0)

    assert [at_s for at_s, _, _ in until_idle(model)] == pytest.approx([1.3] * 3 + [2.3] * 3)


def test_transfers_take_the_link_in_turn_and_each_costs_its_overhead() -> None:
    model = second_long_steps(kv_bytes_per_token=100, kv_bandwidth_bytes_per_s=1000.0, kv_transfer_overhead_s=0.5)
    model.submit(Sequence("a", 20, 1, pulls_kv=True), 0.0)
    model.submit(Sequence("b", 30, 1, pulls_kv=True), 0.0)

    history = until_idle(model)

    assert [each for each in history if each[1] == "kv_pulled"] == [(2.5, "kv_pulled", "a"), (5.5, "kv_pulled", "b")]
    assert [at_s for at_s, happening, _ in history if happening == "finished"] == [3.5, 6.5]


def test_an_abort_during_a_transfer_waits_for_its_end() -> None:
    model = second_long_steps(kv_transfer_overhead_s=4.0)
    sequence = Sequence("a", 20, 5, pulls_kv=True)
    model.submit(sequence, 0.0)
    model.advance(0.0)

    model.abort(sequence, 1.0)
    model.advance(1.0)
    assert model.batch.blocks.num_used == 2

    assert until_idle(model) == [(4.0, "kv_pulled", "a")]
    assert model.batch.blocks.num_used == 0
    assert model.num_steps == 0


def test_an_abort_takes_effect_at_the_next_boundary_and_nothing_comes_after_it() -> None:
    model = second_long_steps()
    sequence = Sequence("a", 20, 50)
    model.submit(sequence, 0.0)
    model.advance(0.0)
    model.advance(1.0)

    model.abort(sequence, 3.5)

    assert until_idle(model) == []
    assert model.busy_s == 4.0
    assert model.batch.blocks.num_used == 0


def test_a_request_that_is_aborted_before_it_is_seen_leaves_no_trace() -> None:
    model = second_long_steps(request_overhead_s=1.0)
    sequence = Sequence("a", 20, 5)
    model.submit(sequence, 0.0)
    model.abort(sequence, 0.5)

    assert until_idle(model) == []
    assert (model.num_waiting, model.num_steps) == (0, 0)


def test_a_slow_down_changes_the_next_step_and_not_the_one_under_way() -> None:
    model = second_long_steps()
    model.submit(Sequence("a", 20, 5), 0.0)
    model.advance(0.0)
    model.advance(1.0)

    model.slow_down(10.0, 2.5)
    model.advance(3.0)
    model.slow_down(1.0, 4.0)

    assert until_idle(model) == [(14.0, "finished", "a")]  # steps end at 1, 2, 3, 13, 14


def test_a_stalled_engine_ends_its_step_and_begins_none_until_it_is_resumed() -> None:
    model = second_long_steps()
    model.submit(Sequence("a", 20, 4), 0.0)
    model.advance(0.0)
    model.advance(1.0)

    model.stall(1.5)
    assert until_idle(model) == []
    assert model.busy_s == 2.0
    model.submit(Sequence("b", 20, 1), 50.0)
    assert until_idle(model) == []

    model.resume(100.0)
    assert until_idle(model) == [
        (101.0, "first_token", "b"),
        (101.0, "finished", "b"),
        (102.0, "finished", "a"),
    ]
    assert model.busy_s == 4.0


def test_a_finished_prefill_holds_its_blocks_until_it_is_released_and_others_wait_for_them() -> None:
    model = second_long_steps(num_kv_blocks=10)
    held, waiting = Sequence("held", 96, 1, holds_kv=True), Sequence("waiting", 80, 1)
    model.submit(held, 0.0)
    model.submit(waiting, 0.0)

    assert [each[2] for each in until_idle(model)] == ["held", "held"]
    assert (model.num_waiting, model.batch.blocks.num_used) == (1, 6)

    model.release_held(held, 10.0)

    assert until_idle(model)[-1] == (11.0, "finished", "waiting")
    assert model.batch.blocks.num_used == 0


def test_a_release_in_mid_run_lets_the_next_one_in_at_the_next_boundary() -> None:
    model = second_long_steps(num_kv_blocks=20)
    held, decoding = Sequence("held", 96, 1, holds_kv=True), Sequence("decoding", 4, 100)
    model.submit(held, 0.0)
    model.submit(decoding, 0.0)
    model.submit(Sequence("waiting", 250, 1), 0.0)
    history: History = []
    while model.next_event_s < 50.0:
        _advance(model, history)

    model.release_held(held, 20.5)

    assert model.next_event_s == 21.0


def test_a_request_fits_when_its_last_token_needs_no_block() -> None:
    model = second_long_steps(num_kv_blocks=4)
    assert model.fits(60, 5)
    assert not model.fits(60, 6)

    model.submit(Sequence("a", 60, 5), 0.0)
    assert until_idle(model)[-1] == (5.0, Happening.FINISHED, "a")
    assert model.batch.num_preemptions == 0


def test_kv_that_comes_by_a_slower_link_takes_so_many_times_as_long_and_the_next_one_waits_for_it() -> None:
    model = second_long_steps(kv_bytes_per_token=10, kv_bandwidth_bytes_per_s=10.0)
    for name, slowdown in (("near", 1.0), ("far", 2.5), ("behind", 1.0)):
        model.submit(Sequence(name, 4, 1, pulls_kv=True, link_slowdown=slowdown), 0.0)

    pulled = {name: at_s for at_s, what, name in until_idle(model) if what == "kv_pulled"}
    assert pulled == {"near": 4.0, "far": 14.0, "behind": 18.0}
