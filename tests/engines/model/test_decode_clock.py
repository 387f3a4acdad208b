from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from engines.model.decode_clock import DecodeClock
from engines.model.sequences import Sequence, SequenceStage

BLOCK_TOKENS = 4


@dataclass
class Walk:
    """The same sequences, each followed token by token."""

    computed: dict[Sequence, int] = field(default_factory=dict)
    left: dict[Sequence, int] = field(default_factory=dict)

    def step(self) -> int:
        """One token for each; returns how many of them began a block."""
        begun = sum(computed % BLOCK_TOKENS == 0 for computed in self.computed.values())
        for sequence in self.computed:
            self.computed[sequence] += 1
            self.left[sequence] -= 1
        return begun


def joined(clock: DecodeClock, turn: int, num_computed: int, tokens_left: int) -> Sequence:
    sequence = Sequence(f"request-{turn}", num_computed, tokens_left)
    sequence.turn = turn
    clock.join(sequence, num_computed)
    return sequence


JOINS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=1, max_size=12)


@given(JOINS, st.lists(st.integers(1, 9), max_size=10))
def test_the_clock_knows_of_each_sequence_what_following_it_token_by_token_shows(
    joins: list[tuple[int, int]], runs: list[int]
) -> None:
    clock, walk = DecodeClock(BLOCK_TOKENS), Walk()
    for turn, (num_computed, tokens_left) in enumerate(joins):
        sequence = joined(clock, turn, num_computed, tokens_left)
        walk.computed[sequence], walk.left[sequence] = num_computed, tokens_left
    for run in runs:
        if not walk.computed:
            return
        num_steps = clock.num_equal_steps(run, num_blocks_available=10**6)
        assert num_steps == min(run, *walk.left.values())
        assert clock.num_blocks_begun(clock.clock, 1) == sum(map(clock.begins_block, walk.computed))
        walk.step()
        assert clock.advance(num_steps) == sum(walk.step() for _ in range(num_steps - 1))
        assert clock.context_tokens == sum(computed + 1 for computed in walk.computed.values())
        finished = clock.finished()
        assert set(finished) == {each for each, left in walk.left.items() if not left}
        for sequence in finished:
            assert clock.leave(sequence) == -(-walk.computed[sequence] // BLOCK_TOKENS)
            assert sequence.num_generated == sequence.output_tokens
            assert sequence.num_computed == walk.computed.pop(sequence)
            del walk.left[sequence]
        assert clock.num_sequences == len(walk.computed)


@given(JOINS, st.integers(0, 20), st.integers(1, 30))
def test_blocks_begun_in_any_steps_ahead_are_counted_right(
    joins: list[tuple[int, int]], steps_ahead: int, num_steps: int
) -> None:
    clock, walk = DecodeClock(BLOCK_TOKENS), Walk()
    for turn, (num_computed, _) in enumerate(joins):
        sequence = joined(clock, turn, num_computed, 1000)
        walk.computed[sequence], walk.left[sequence] = num_computed, 1000
    for _ in range(steps_ahead):
        walk.step()

    assert clock.num_blocks_begun(steps_ahead, num_steps) == sum(walk.step() for _ in range(num_steps))


@given(JOINS, st.integers(0, 40))
def test_a_run_ends_before_the_first_step_whose_blocks_are_not_there(
    joins: list[tuple[int, int]], num_blocks: int
) -> None:
    clock, walk = DecodeClock(BLOCK_TOKENS), Walk()
    for turn, (num_computed, _) in enumerate(joins):
        sequence = joined(clock, turn, num_computed, 1000)
        walk.computed[sequence], walk.left[sequence] = num_computed, 1000
    walk.step()  # its blocks were taken beforehand
    expected, begun = 1, walk.step()
    while begun <= num_blocks:
        expected += 1
        begun += walk.step()

    assert clock.num_equal_steps(1000, num_blocks) == min(expected, 1000)


def test_a_sequence_that_left_and_came_back_finishes_once_and_at_its_new_time() -> None:
    clock = DecodeClock(BLOCK_TOKENS)
    sequence, other = joined(clock, 1, 5, 3), joined(clock, 2, 5, 10)
    clock.leave(sequence)
    sequence.stage = SequenceStage.WAITING
    assert clock.num_equal_steps(100, 100) == 10
    clock.advance(1)
    sequence.turn = 3
    clock.join(sequence, 5)
    assert sequence.finish_clock == 4

    clock.advance(2)
    assert clock.finished() == []
    clock.advance(1)
    assert clock.finished() == [sequence]
    clock.leave(sequence)
    clock.advance(6)
    assert clock.finished() == [other]


def test_a_sequence_that_came_back_to_the_same_finishing_time_finishes_once() -> None:
    clock = DecodeClock(BLOCK_TOKENS)
    sequence = joined(clock, 1, 5, 3)
    clock.leave(sequence)
    sequence.turn = 2
    clock.join(sequence, 5)

    clock.advance(3)

    assert clock.finished() == [sequence]


def test_a_sequence_that_leaves_while_a_step_is_scheduled_has_the_block_that_it_grew_by() -> None:
    clock = DecodeClock(BLOCK_TOKENS)
    first, second, third = (joined(clock, turn, 8, 10) for turn in range(3))
    clock.grown.add(first)
    assert clock.leave(first) == 3
    assert clock.leave(second) == 2
    clock.has_grown = True
    assert clock.leave(third) == 3
