import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.model.kv_blocks import KvBlocks, KvHolding
from policies.errors import InvariantViolation
from tests.tables import for_each


def holding_of(blocks: KvBlocks, names: list[int], num_own: int = 0, unit_blocks: int = 1) -> KvHolding:
    """A sequence that wrote these units, and holds blocks that nobody can find."""
    holding = KvHolding()
    assert blocks.allocate(holding, len(names) * unit_blocks + num_own)
    blocks.publish(holding, names, unit_blocks)
    return holding


def found(blocks: KvBlocks, names: list[int]) -> int:
    return len(blocks.lookup(names, len(names)))


@for_each(("tokens", "expected"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_tokens_fill_whole_blocks(tokens: int, expected: int) -> None:
    assert KvBlocks(10, 16).blocks_for(tokens) == expected


def test_blocks_that_are_held_are_used_and_the_others_can_be_had() -> None:
    blocks = KvBlocks(10, 16)
    holding = KvHolding()

    assert blocks.allocate(holding, 4)

    assert (blocks.num_used, blocks.num_available, holding.num_own_blocks) == (4, 6, 4)
    assert blocks.usage_fraction == pytest.approx(0.4)


def test_nothing_is_taken_when_too_few_blocks_are_left() -> None:
    blocks = KvBlocks(10, 16)
    holding = KvHolding()

    assert not blocks.allocate(holding, 11)

    assert (blocks.num_used, holding.num_own_blocks) == (0, 0)


def test_a_text_is_found_up_to_its_first_unit_that_is_not_cached() -> None:
    blocks = KvBlocks(10, 16)
    holding_of(blocks, [1, 2, 4])

    assert found(blocks, [1, 2, 3, 4]) == 2
    assert found(blocks, [9, 1, 2]) == 0
    assert [unit.name for unit in blocks.lookup([1, 2, 4], max_units=1)] == [1]


def test_text_is_found_while_it_is_held_and_after() -> None:
    blocks = KvBlocks(10, 16)
    holding = holding_of(blocks, [1, 2])
    assert found(blocks, [1, 2]) == 2

    blocks.release(holding, 2)

    assert found(blocks, [1, 2]) == 2
    assert (blocks.num_used, blocks.num_available) == (0, 10)


def test_shared_text_stays_until_its_last_holder_gives_it_back() -> None:
    blocks = KvBlocks(4, 16)
    writer, reader = holding_of(blocks, [1, 2]), KvHolding()
    blocks.share(reader, blocks.lookup([1, 2], 2))

    blocks.release(writer, 2)
    assert blocks.num_used == 2
    assert not blocks.take(3)

    blocks.release(reader, 2)
    assert blocks.num_used == 0
    assert blocks.take(3)


def test_idle_text_that_is_held_again_can_not_be_pushed_out() -> None:
    blocks = KvBlocks(4, 16)
    blocks.release(holding_of(blocks, [1, 2]), 2)
    units = blocks.lookup([1, 2], 2)
    assert blocks.num_idle_blocks(units) == 2

    blocks.share(KvHolding(), units)

    assert blocks.num_idle_blocks(units) == 0
    assert (blocks.num_used, blocks.num_available) == (2, 2)
    assert not blocks.take(3)


def test_text_is_pushed_out_when_no_untouched_block_is_left_and_not_before() -> None:
    blocks = KvBlocks(4, 16)
    blocks.release(holding_of(blocks, [1, 2]), 2)

    assert blocks.take(2)
    assert found(blocks, [1, 2]) == 2

    assert blocks.take(1)
    assert found(blocks, [1, 2]) == 1


def test_the_end_of_a_text_is_pushed_out_before_its_beginning_and_older_text_before_newer() -> None:
    blocks = KvBlocks(4, 16)
    old, new = holding_of(blocks, [1, 2]), holding_of(blocks, [11, 12])
    blocks.release(old, 2)
    blocks.release(new, 2)

    left = []
    for _ in range(4):
        assert blocks.take(1)
        left.append((found(blocks, [1, 2]), found(blocks, [11, 12])))

    assert left == [(1, 2), (0, 2), (0, 1), (0, 0)]


def test_text_that_was_used_again_is_pushed_out_last() -> None:
    blocks = KvBlocks(4, 16)
    for names in ([1, 2], [11, 12]):
        blocks.release(holding_of(blocks, names), 2)
    reader = KvHolding()
    blocks.share(reader, blocks.lookup([1, 2], 2))
    blocks.release(reader, 2)

    assert blocks.take(2)

    assert (found(blocks, [1, 2]), found(blocks, [11, 12])) == (2, 0)


def test_blocks_that_are_not_full_are_taken_before_any_text() -> None:
    blocks = KvBlocks(5, 16)
    writer = holding_of(blocks, [1, 2])
    half_full = holding_of(blocks, [], num_own=3)
    blocks.release(writer, 2)
    blocks.release(half_full, 2)

    assert blocks.take(1)
    assert found(blocks, [1, 2]) == 2

    assert blocks.take(1)
    assert found(blocks, [1, 2]) == 1


def test_nameless_text_pushes_named_text_out_when_it_came_later() -> None:
    blocks = KvBlocks(5, 16)
    writer, nameless = holding_of(blocks, [1, 2]), holding_of(blocks, [], num_own=3)
    blocks.release(writer, 2)
    blocks.release(nameless, 3)

    assert blocks.take(2)
    assert found(blocks, [1, 2]) == 0
    assert blocks.take(3)


def test_a_nameless_stretch_is_pushed_out_from_its_end_and_its_sequence_finds_the_rest() -> None:
    blocks = KvBlocks(5, 16)
    rest = blocks.release(holding_of(blocks, [], num_own=4), 3, comes_back=True)
    assert rest is not None
    assert rest.num_blocks == 3

    assert blocks.take(3)  # one untouched, one that was not full, one of the stretch
    assert rest.num_blocks == 2

    holding = KvHolding()
    blocks.reclaim(holding, rest, 2)
    assert (holding.num_own_blocks, rest.num_blocks) == (2, 0)
    assert (blocks.num_used, blocks.num_available) == (5, 0)


def test_a_stretch_that_was_pushed_out_altogether_has_no_blocks() -> None:
    blocks = KvBlocks(4, 16)
    rest = blocks.release(holding_of(blocks, [], num_own=4), 4, comes_back=True)

    assert blocks.take(4)

    assert rest is not None
    assert rest.num_blocks == 0


def test_a_second_copy_is_found_when_the_first_is_gone() -> None:
    blocks = KvBlocks(4, 16)
    first, second = holding_of(blocks, [1]), holding_of(blocks, [1])
    assert blocks.has_copies
    assert (blocks.num_used, found(blocks, [1])) == (2, 1)
    blocks.release(first, 1)

    assert blocks.take(3)

    assert found(blocks, [1]) == 1
    assert not blocks.has_copies
    blocks.release(second, 1)
    assert blocks.take(1)
    assert found(blocks, [1]) == 0


def test_the_first_copy_is_found_when_the_second_is_gone() -> None:
    blocks = KvBlocks(2, 16)
    first, second = holding_of(blocks, [1]), holding_of(blocks, [1])
    blocks.release(second, 1)

    assert blocks.take(1)

    assert found(blocks, [1]) == 1
    assert not blocks.has_copies
    assert blocks.num_idle_blocks(blocks.lookup([1], 1)) == 0
    blocks.release(first, 1)
    assert blocks.num_available == 1


def test_a_unit_of_several_blocks_goes_as_a_whole() -> None:
    blocks = KvBlocks(8, 16)
    blocks.release(holding_of(blocks, [1, 2], unit_blocks=4), 8)

    assert blocks.take(1)

    assert found(blocks, [1, 2]) == 1
    assert (blocks.num_used, blocks.num_available) == (1, 7)


def test_giving_back_more_than_was_taken_is_a_bug_and_says_so() -> None:
    blocks = KvBlocks(4, 16)
    holding = KvHolding()
    holding.num_own_blocks = 1

    with pytest.raises(InvariantViolation, match="more KV blocks"):
        blocks.release(holding)


@given(
    st.lists(st.tuples(st.sampled_from("write take free".split()), st.integers(0, 5), st.integers(0, 6)), max_size=60)
)
def test_every_block_is_used_or_can_be_had_and_all_can_be_had_in_the_end(ops: list[tuple[str, int, int]]) -> None:
    blocks = KvBlocks(20, 16)
    holdings: list[tuple[KvHolding, int]] = []
    for kind, family, size in ops:
        if kind == "free" and holdings:
            blocks.release(*holdings.pop(family % len(holdings)))
        else:
            _hold(blocks, holdings, [family * 100 + unit for unit in range(size if kind == "write" else 0)], size)
        units = {unit for holding, _ in holdings for unit in holding.units}
        assert blocks.num_used == len(units) + sum(holding.num_own_blocks for holding, _ in holdings)
        assert blocks.num_used + blocks.num_available == blocks.num_blocks
        assert all(unit.num_holders == sum(unit in holding.units for holding, _ in holdings) for unit in units)

    for holding, num_full_blocks in holdings:
        blocks.release(holding, num_full_blocks)
    assert blocks.take(blocks.num_blocks)
    assert all(found(blocks, [family * 100]) == 0 for family in range(6))


def _hold(blocks: KvBlocks, holdings: list[tuple[KvHolding, int]], names: list[int], size: int) -> None:
    """A sequence comes in: it holds what is cached of its text and writes the rest."""
    cached, holding = blocks.lookup(names, len(names)), KvHolding()
    if size - len(cached) + blocks.num_idle_blocks(cached) > blocks.num_available:
        return
    blocks.share(holding, cached)
    blocks.allocate(holding, size - len(cached))
    blocks.publish(holding, names[len(cached) :], 1)
    holdings.append((holding, size))


@given(st.lists(st.tuples(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True), st.booleans())))
def test_changes_add_up_to_what_can_be_found(steps: list[tuple[list[int], bool]]) -> None:
    blocks = KvBlocks(10, 16)
    blocks.watch()
    there: set[int] = set()
    held: list[KvHolding] = []
    for names, is_looked_at in steps:
        while held and blocks.num_available < len(names):
            blocks.release(held.pop(0))
        held.append(holding_of(blocks, names))
        if is_looked_at:
            changes = blocks.take_changes()
            there = {name for name in there | changes.keys() if changes.get(name, True)}
            assert there == {name for name in range(1, 13) if found(blocks, [name])}
    blocks.take_changes()
    assert not blocks.take_changes()


def test_nothing_is_kept_where_nobody_wants_to_know() -> None:
    blocks = KvBlocks(10, 16)
    holding_of(blocks, [1, 2])

    assert not blocks.take_changes()
