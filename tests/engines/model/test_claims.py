"""Two engines have a prompt and one computes it: who asks, who tells, and which step waits."""

import math
from typing import Any

from engines.model.batching import Batch, BatchLimits
from engines.model.cost_model import StepCoefficients
from engines.model.kv_blocks import KvBlocks
from engines.model.sequences import ExecutionClaim, Sequence, SequenceStage
from engines.model.step_model import StepModel, StepModelSpec
from tests.tables import for_each

Told = list[tuple[float, str, str]]


def second_long_steps(**limits: Any) -> StepModel:
    bounds: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 100} | limits
    coefficients = StepCoefficients(
        step_s=1.0, new_token_s=0.0, attention_pair_s=0.0, sequence_s=0.0, context_token_s=0.0
    )
    return StepModel(StepModelSpec(coefficients=coefficients, limits=BatchLimits(**bounds), num_kv_blocks=1000))


def second(name: str = "second", prompt_tokens: int = 10, output_tokens: int = 1) -> Sequence:
    return Sequence(name, prompt_tokens, output_tokens, claim=ExecutionClaim.WANTED)


def advanced(model: StepModel, until_s: float = math.inf) -> Told:
    told: Told = []
    while model.next_event_s <= until_s and model.next_event_s < math.inf:
        told += [(each.at_s, each.happening, each.sequence.request_id) for each in model.advance(model.next_event_s)]
    return told


def test_one_that_has_to_ask_does_so_when_its_turn_comes_and_begins_when_it_may() -> None:
    model, sequence = second_long_steps(), second()
    model.submit(sequence, 0.0)
    assert advanced(model) == [(0.0, "turn", "second")]

    model.grant(sequence, 0.25)

    assert advanced(model) == [(1.25, "first_token", "second"), (1.25, "finished", "second")]
    assert model.busy_s == 1.0, "it did nothing while it waited"


def test_one_that_may_not_begin_costs_nothing_but_the_wait() -> None:
    model, sequence = second_long_steps(), second()
    model.submit(sequence, 0.0)
    model.submit(Sequence("behind", 10, 1), 0.0)
    assert advanced(model) == [(0.0, "turn", "second")]

    model.abort(sequence, 0.25)

    assert advanced(model) == [(1.25, "first_token", "behind"), (1.25, "finished", "behind")]
    assert model.batch.num_prompt_tokens == 10


def test_nobody_asks_before_the_turn_comes() -> None:
    model = second_long_steps()
    model.submit(Sequence("before", 100, 1), 0.0)
    model.submit(second(), 0.0)

    assert advanced(model, 0.5) == []
    assert (1.0, "turn", "second") in advanced(model, 1.5)


def test_answers_under_way_wait_with_the_step() -> None:
    model, sequence = second_long_steps(), second()
    model.submit(Sequence("answering", 10, 5), 0.0)
    advanced(model, 1.0)
    model.submit(sequence, 1.5)
    assert advanced(model, 2.0) == [(2.0, "turn", "second")]

    model.grant(sequence, 2.25)

    assert advanced(model)[-1] == (5.25, "finished", "answering")


def test_nobody_asks_behind_another_that_the_same_step_has_room_for() -> None:
    """Its turn would come first here, and its first token perhaps later than where it is alone in its step."""
    model, sequence = second_long_steps(), second()
    model.submit(Sequence("before", 10, 1), 0.0)
    model.submit(sequence, 0.0)
    model.submit(Sequence("behind", 10, 1), 0.0)

    told = advanced(model)

    assert told == [(1.0, "first_token", "before"), (1.0, "finished", "before"), (1.0, "turn", "second")]
    model.grant(sequence, 1.25)
    assert {name for at_s, what, name in advanced(model) if (at_s, what) == (2.25, "finished")} == {"second", "behind"}


def test_one_that_may_begin_goes_first_and_the_next_one_asks_for_the_step_after() -> None:
    model = second_long_steps()
    sequences = [second(name) for name in "ab"]
    for each in sequences:
        model.submit(each, 0.0)
    assert advanced(model) == [(0.0, "turn", "a")]

    model.grant(sequences[0], 0.25)

    assert advanced(model)[-1] == (1.25, "turn", "b")


def test_a_full_batch_has_nobody_ask() -> None:
    model = second_long_steps(max_num_seqs=1)
    model.submit(Sequence("answering", 10, 3), 0.0)
    model.submit(second(), 0.0)

    assert (3.0, "turn", "second") in advanced(model)


def test_a_long_prompt_that_is_held_back_leaves_room_to_ask_in() -> None:
    model = second_long_steps(long_prefill_token_threshold=20)
    model.submit(Sequence("long", 500, 1), 0.0)
    advanced(model, 0.5)
    sequence = second()
    model.submit(sequence, 0.5)

    assert advanced(model, 1.0) == [(1.0, "turn", "second")]


def test_one_with_the_claim_begins_without_asking_and_says_so() -> None:
    model, sequence = second_long_steps(), Sequence("first", 10, 2)
    model.submit(sequence, 0.0)
    model.share(sequence)

    assert advanced(model) == [
        (0.0, "turn", "first"),
        (1.0, "first_token", "first"),
        (2.0, "finished", "first"),
    ]


def test_one_with_the_claim_that_is_stopped_says_nothing() -> None:
    model, sequence = second_long_steps(), Sequence("first", 10, 2)
    model.submit(Sequence("before", 100, 1), 0.0)
    advanced(model, 0.5)
    model.submit(sequence, 0.5)
    model.share(sequence)

    model.abort(sequence, 0.7)

    assert [name for _, _, name in advanced(model)] == ["before", "before"]


def test_a_stalled_engine_does_not_ask() -> None:
    model = second_long_steps()
    model.stall(0.0)
    model.submit(second(), 0.0)
    assert advanced(model) == []

    model.resume(5.0)

    assert advanced(model) == [(5.0, "turn", "second")]


@for_each(("num_places", "num_tokens"), [(1, 100), (2, 60), (2, 100)])
def test_next_in_line_is_whom_a_step_takes_in_first(num_places: int, num_tokens: int) -> None:
    batch = Batch(BatchLimits(max_num_seqs=num_places, max_num_batched_tokens=num_tokens), KvBlocks(1000, 4))
    running, gone, waiting = (Sequence(name, 60, 5) for name in ("running", "gone", "waiting"))
    assert batch.next_in_line() is None
    batch.submit(running)
    assert batch.next_in_line() is running
    batch.schedule()
    batch.submit(gone)
    batch.drop(gone)
    batch.submit(waiting)

    has_room = (num_places, num_tokens) == (2, 100)

    assert batch.next_in_line() is (waiting if has_room else None)


def test_a_sequence_has_begun_once_a_step_has_taken_it_in() -> None:
    model, sequence = second_long_steps(), Sequence("a", 10, 1)
    begun = [sequence.has_begun]
    model.submit(sequence, 0.0)
    begun.append(sequence.has_begun)
    model.advance(0.0)
    begun.append(sequence.has_begun)
    advanced(model)

    assert sequence.stage is SequenceStage.GONE
    assert [*begun, sequence.has_begun] == [False, False, True, True]
