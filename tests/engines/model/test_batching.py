from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.model.batching import Batch, BatchLimits
from engines.model.kv_blocks import KvBlocks
from engines.model.sequences import Sequence, SequenceStage
from engines.model.speculation import Drafts, Speculation
from policies.errors import ConfigError
from tests.tables import for_each

BLOCK_TOKENS = 4


def batch_of(num_blocks: int = 1000, **limits: Any) -> Batch:
    bounds: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 100} | limits
    return Batch(BatchLimits(**bounds), KvBlocks(num_blocks, BLOCK_TOKENS))


def submitted(batch: Batch, *sequences: Sequence) -> None:
    for sequence in sequences:
        batch.submit(sequence)


def step(batch: Batch) -> dict[str, int]:
    batch.schedule()
    tokens = batch.scheduled_tokens()
    batch.complete(1)
    return tokens


@for_each(
    ("field_name", "limits"),
    [
        ("max_num_seqs", {"max_num_seqs": 0}),
        ("max_num_batched_tokens", {"max_num_seqs": 8, "max_num_batched_tokens": 7}),
        ("long_prefill_token_threshold", {"long_prefill_token_threshold": -1}),
    ],
)
def test_a_limit_out_of_range_is_named(field_name: str, limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        batch_of(**limits)

    assert caught.value.field == field_name


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_beside_those_that_decode() -> None:
    batch = batch_of()
    submitted(batch, Sequence("short", 10, 5), Sequence("long", 250, 5))

    assert [step(batch) for _ in range(4)] == [
        {"short": 10, "long": 90},
        {"short": 1, "long": 99},
        {"short": 1, "long": 61},
        {"short": 1, "long": 1},
    ]


def test_the_first_token_comes_with_the_prompts_last_chunk() -> None:
    batch = batch_of()
    sequence = Sequence("long", 150, 2)
    batch.submit(sequence)

    firsts = []
    for _ in range(3):
        batch.schedule()
        output = batch.complete(1)
        firsts.append((output.first_tokens == [sequence], output.finished == [sequence]))

    assert firsts == [(False, False), (True, False), (False, True)]


def test_a_batch_that_is_full_takes_nobody_in() -> None:
    batch = batch_of(max_num_seqs=2)
    submitted(batch, *(Sequence(name, 4, 3) for name in "abc"))

    assert [set(step(batch)) for _ in range(4)] == [{"a", "b"}, {"a", "b"}, {"a", "b"}, {"c"}]


def test_a_long_prompt_is_held_back_by_the_threshold_only_when_it_is_not_alone() -> None:
    batch = batch_of(long_prefill_token_threshold=20)
    batch.submit(Sequence("long", 190, 5))
    assert step(batch) == {"long": 100}

    batch.submit(Sequence("other", 4, 5))
    assert step(batch) == {"long": 20, "other": 4}


def test_a_sequence_is_taken_in_when_all_of_its_prompt_fits_and_not_before() -> None:
    batch = batch_of(num_blocks=60)
    submitted(batch, Sequence("first", 40, 2), Sequence("long", 208, 2), Sequence("behind", 4, 2))

    assert step(batch) == {"first": 40}
    assert step(batch) == {"first": 1}
    assert step(batch) == {"long": 100}


def test_whoever_came_last_is_preempted_and_goes_to_the_head_of_the_line() -> None:
    batch = batch_of(num_blocks=4)
    first, last = Sequence("first", 8, 8), Sequence("last", 8, 8)
    submitted(batch, first, last, Sequence("new", 4, 1))

    assert step(batch) == {"first": 8, "last": 8}
    assert step(batch) == {"first": 1}
    assert (last.num_preemptions, last.num_generated, batch.num_waiting) == (1, 1, 2)
    while first.stage is not SequenceStage.GONE:
        assert "new" not in step(batch)
    assert "last" in step(batch)


def test_whoever_is_preempted_later_stands_before_whoever_was_earlier_even_if_it_came_later() -> None:
    batch = batch_of(num_blocks=9)
    first, pulls, last = Sequence("first", 9, 20), Sequence("pulls", 9, 20, pulls_kv=True), Sequence("last", 9, 20)
    submitted(batch, first, pulls, last)
    step(batch)
    batch.kv_arrived(pulls)  # takes part after the last one, though it came before it

    assert [set(step(batch)) for _ in range(3)] == [{"first", "last", "pulls"}] * 3
    assert [set(step(batch)) for _ in range(4)] == [{"first", "last"}] * 4
    assert (pulls.num_preemptions, last.num_preemptions) == (1, 0)
    assert step(batch) == {"first": 1}
    assert last.num_preemptions == 1
    assert step(batch) == {"first": 1}  # the pulled one would fit, but it stands behind


def test_a_preempted_sequence_computes_only_what_the_cache_has_lost() -> None:
    for content in ((), tuple(range(1, 6))):
        batch = batch_of(num_blocks=6)
        first = Sequence("first", 8, 4)
        last = Sequence("last", 14, 6, content=content, content_unit_tokens=BLOCK_TOKENS if content else 0)
        submitted(batch, first, last)

        assert step(batch) == {"first": 8, "last": 14}
        assert step(batch) == {"first": 1}  # takes the block that was not full; 12 of the 15 tokens stay
        while first.stage is not SequenceStage.GONE:
            assert step(batch) == {"first": 1}
        assert step(batch) == {"last": 3}
        assert last.cached_tokens == 0


def test_by_priority_the_least_important_is_preempted_whoever_came_first() -> None:
    batch = batch_of(num_blocks=4, priority_scheduling=True)
    submitted(batch, Sequence("unimportant", 8, 8, priority=5), Sequence("important", 8, 8, priority=1))

    assert step(batch) == {"important": 8, "unimportant": 8}
    assert step(batch) == {"important": 1}


def test_a_pull_waits_for_a_place_in_the_batch() -> None:
    batch = batch_of(max_num_seqs=1)
    submitted(batch, Sequence("running", 4, 2), Sequence("pulls", 8, 2, pulls_kv=True))

    step(batch)
    assert batch.pulls_to_start == []
    step(batch)
    step(batch)
    assert [each.request_id for each in batch.pulls_to_start] == ["pulls"]


def test_a_pull_leaves_the_blocks_that_a_prompt_in_progress_will_need() -> None:
    batch = batch_of(num_blocks=60, max_num_batched_tokens=40, long_prefill_token_threshold=32)
    submitted(batch, Sequence("long", 160, 2), Sequence("pulls", 84, 2, pulls_kv=True))

    step(batch)
    assert batch.blocks.num_available >= 84 // BLOCK_TOKENS
    assert batch.pulls_to_start == []


def test_kv_that_is_here_goes_before_all_others() -> None:
    batch = batch_of(max_num_seqs=1)
    pulls = Sequence("pulls", 8, 2, pulls_kv=True)
    batch.submit(pulls)
    step(batch)
    submitted(batch, Sequence("other", 4, 2))

    batch.kv_arrived(pulls)

    assert step(batch) == {"pulls": 1}
    assert batch.num_output_tokens_of(pulls) == 1


def test_held_blocks_stay_used_until_they_are_released() -> None:
    batch = batch_of()
    sequence = Sequence("prefill", 10, 1, holds_kv=True)
    batch.submit(sequence)
    step(batch)
    assert (sequence.stage, batch.blocks.num_used, len(batch.running)) == (SequenceStage.HELD, 3, 0)

    batch.drop(sequence)

    assert batch.blocks.num_used == 0


def test_text_of_a_dropped_sequence_can_be_found_generated_text_included() -> None:
    batch = batch_of()
    dropped = Sequence("dropped", 4, 20, content=tuple(range(1, 7)), content_unit_tokens=BLOCK_TOKENS)
    batch.submit(dropped)
    for _ in range(6):
        step(batch)
    batch.drop(dropped)

    again = Sequence("again", 24, 1, content=tuple(range(1, 7)), content_unit_tokens=BLOCK_TOKENS)
    batch.submit(again)

    assert step(batch) == {"again": 16}  # five of the six tokens that it was given are computed
    assert again.cached_tokens == 8


# -- whatever happens --------------------------------------------------------------------------------------------------


@dataclass
class Bookkeeping:
    """What came out, by sequence."""

    everybody: list[Sequence] = field(default_factory=list)
    first_tokens: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    dropped: set[Sequence] = field(default_factory=set)


SEQUENCES = st.builds(
    lambda prompt, output, priority, pulls, holds, family: Sequence(
        "",
        prompt,
        output,
        priority=priority,
        pulls_kv=pulls,
        holds_kv=holds,
        content=() if family is None else tuple(range(family * 100, family * 100 + (prompt + output) // 8)),
        content_unit_tokens=0 if family is None else 8,
    ),
    st.integers(1, 60),
    st.integers(1, 30),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3]),
)
OPS = st.lists(
    st.one_of(
        SEQUENCES,
        st.tuples(st.sampled_from(["drop", "release"]), st.integers(0, 20)),
        st.tuples(st.just("steps"), st.integers(1, 12)),
    ),
    max_size=50,
)


LIMITS = st.builds(
    BatchLimits,
    max_num_seqs=st.sampled_from([1, 2, 8]),
    max_num_batched_tokens=st.sampled_from([8, 30, 200]),
    long_prefill_token_threshold=st.sampled_from([0, 0, 7]),
    priority_scheduling=st.booleans(),
)


SPECULATIONS = st.builds(
    Speculation,
    num_speculative_tokens=st.sampled_from([0, 0, 1, 3]),
    drafts=st.builds(Drafts, accepted_fraction=st.floats(0.1, 0.99)),
)


@settings(max_examples=200)
@given(OPS, LIMITS, st.integers(24, 60), st.booleans(), SPECULATIONS)
def test_no_token_no_block_and_no_sequence_is_lost(
    ops: list[Sequence | tuple[str, int]], limits: BatchLimits, num_blocks: int, runs: bool, speculation: Speculation
) -> None:
    num_drafts = speculation.num_speculative_tokens
    limits = replace(limits, max_num_batched_tokens=limits.max_num_batched_tokens * (1 + num_drafts))
    batch, book = Batch(limits, KvBlocks(num_blocks, BLOCK_TOKENS), speculation), Bookkeeping()
    runs &= not num_drafts
    for op in ops:
        if isinstance(op, Sequence):
            _submit(batch, book, op)
        else:
            _do(batch, book, *op, runs=runs)
        _check_blocks(batch, book)
    for _ in range(20_000):
        if not batch.running and not batch.num_waiting:
            break
        _do(batch, book, "steps", 1, runs=runs)
        _do(batch, book, "release", 0, runs=runs)  # nobody holds KV for ever
    for sequence in book.everybody:
        batch.drop(sequence)

    completed = [each for each in book.everybody if each not in book.dropped]
    assert sorted(each.number for each in book.finished) == [each.number for each in completed]
    assert all(each.num_generated == each.output_tokens for each in completed)
    assert all(book.first_tokens.count(each) == 1 for each in completed)
    assert batch.blocks.num_used == 0
    assert batch.blocks.num_available == num_blocks


def _submit(batch: Batch, book: Bookkeeping, template: Sequence) -> None:
    sequence = Sequence(
        f"request-{len(book.everybody)}",
        template.prompt_tokens,
        template.output_tokens,
        priority=template.priority,
        pulls_kv=template.pulls_kv,
        holds_kv=template.holds_kv,
        content=template.content,
        content_unit_tokens=template.content_unit_tokens,
    )
    book.everybody.append(sequence)
    batch.submit(sequence)


def _do(batch: Batch, book: Bookkeeping, kind: str, number: int, *, runs: bool) -> None:
    held = [each for each in book.everybody if each.stage is SequenceStage.HELD]
    if kind == "steps":
        for _ in range(number):
            _step(batch, book, runs=runs)
    elif kind == "release" and held:
        batch.drop(held[number % len(held)])
    elif kind == "drop" and book.everybody:
        sequence = book.everybody[number % len(book.everybody)]
        if sequence.stage < SequenceStage.HELD and sequence.stage is not SequenceStage.PULLING:
            book.dropped.add(sequence)
            batch.drop(sequence)


def _step(batch: Batch, book: Bookkeeping, *, runs: bool) -> None:
    work = batch.schedule()
    assert batch.blocks.num_used <= batch.blocks.num_blocks
    pulled, batch.pulls_to_start[:] = batch.pulls_to_start[:], []
    if work is not None:
        assert work.new_tokens == sum(batch.scheduled_tokens().values())
        assert work.sequences == len(batch.scheduled_tokens())
        before = {each: batch.num_output_tokens_of(each) for each in book.everybody}
        output = batch.complete(batch.num_equal_steps(7 if runs else 1))
        for sequence in output.finished:
            assert sequence in book.first_tokens + output.first_tokens
        for sequence, num_before in before.items():
            assert num_before <= batch.num_output_tokens_of(sequence) <= sequence.output_tokens
        book.first_tokens += output.first_tokens
        book.finished += output.finished
    for sequence in pulled:
        batch.kv_arrived(sequence)


def _check_blocks(batch: Batch, book: Bookkeeping) -> None:
    """Between two steps each sequence has the blocks of its computed tokens, and nobody else has any."""
    blocks = batch.blocks
    assert blocks.num_used + blocks.num_available == blocks.num_blocks
    units = {unit for each in book.everybody for unit in each.holding.units}
    num_own = 0
    for sequence in book.everybody:
        if sequence.stage is SequenceStage.DECODING:
            num_computed = sequence.prompt_tokens + batch.num_output_tokens_of(sequence) - 1
            num_own += blocks.blocks_for(num_computed) - sequence.holding.num_unit_blocks
        else:
            num_own += sequence.holding.num_own_blocks
    assert blocks.num_used == num_own + sum(unit.num_blocks for unit in units)
    assert all(unit.num_holders == sum(unit in each.holding.units for each in book.everybody) for unit in units)


# -- adapters ---------------------------------------------------------------------------------------------------------


def with_adapter(name: str, adapter: str, output_tokens: int = 3) -> Sequence:
    return Sequence(name, 8, output_tokens, adapter=adapter)


def test_a_sequence_whose_adapter_has_no_room_holds_up_itself_alone() -> None:
    batch = batch_of(max_adapters=2)
    slots = batch.adapters
    submitted(batch, *(with_adapter(name, name[0]) for name in ("a1", "b1", "c1", "a2")), Sequence("plain", 8, 3))

    assert step(batch) == {"a1": 8, "b1": 8, "a2": 8, "plain": 8}
    assert (slots.names, slots.num_loads) == (("a", "b"), 2)
    for _ in range(2):
        assert "c1" not in step(batch)
    assert step(batch) == {"c1": 8}
    assert slots.names == ("c", "a"), "the one that was used least lately made room"


def test_a_step_costs_more_by_every_adapter_that_it_loads() -> None:
    batch = batch_of(max_adapters=4)
    submitted(batch, *(with_adapter(name, name[0]) for name in ("a1", "a2", "b1")))
    first = batch.schedule()
    batch.complete(1)
    submitted(batch, with_adapter("a3", "a"))
    second = batch.schedule()

    assert first is not None
    assert second is not None
    assert (first.adapter_loads, second.adapter_loads) == (2, 0)


def test_more_may_be_loaded_than_a_step_computes_with() -> None:
    batch = batch_of(max_adapters=3, max_adapters_in_step=1)
    slots = batch.adapters
    submitted(batch, with_adapter("a1", "a", 1), with_adapter("b1", "b", 1), with_adapter("a2", "a", 1))
    assert [step(batch) for _ in range(2)] == [{"a1": 8, "a2": 8}, {"b1": 8}]
    submitted(batch, with_adapter("a3", "a", 1))
    step(batch)
    assert slots.num_loads == 2


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4)), max_size=30), st.integers(1, 3))
def test_no_step_has_more_adapters_than_it_may_and_everything_gets_its_turn(
    wanted: list[tuple[str, int]], num_slots: int
) -> None:
    batch = batch_of(max_adapters=num_slots)
    slots = batch.adapters
    submitted(batch, *(with_adapter(f"{number}", name, length) for number, (name, length) in enumerate(wanted)))
    for _ in range(200):
        batch.schedule()
        running = {each.adapter for each in batch.running.values()}
        assert len(running) <= num_slots
        assert running <= set(slots.names)
        batch.complete(1)
    assert not batch.running
    assert batch.num_waiting == 0
