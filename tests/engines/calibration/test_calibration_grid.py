"""The grid fits the engine that it is for."""

import random

from hypothesis import given
from hypothesis import strategies as st

from engines.calibration.grid import Bounds, Grid, Point, make_grid

BOUNDS = st.builds(
    Bounds,
    context_tokens=st.sampled_from([2048, 4096, 8192, 16_384]),
    kv_capacity_tokens=st.sampled_from([40_000, 100_000, 524_288]),
    block_tokens=st.sampled_from([16, 32, 128]),
    max_num_seqs=st.sampled_from([4, 16, 128, 256, 1024]),
)
CPU = Bounds(context_tokens=8192, kv_capacity_tokens=524_288, block_tokens=128, max_num_seqs=128)


def all_points(grid: Grid) -> list[Point]:
    return [*grid.points, *grid.idle, *grid.traffic, *grid.held_out]


@given(BOUNDS, st.booleans())
def test_every_point_fits_the_engine(bounds: Bounds, quick: bool) -> None:
    grid = make_grid(bounds, random.Random(1), quick=quick)

    assert sum(grid.documents) <= bounds.kv_capacity_tokens
    for point in (*all_points(grid), *grid.shared):
        assert len(point.prompts) + len(point.joining[:1]) <= bounds.max_num_seqs
        for prompt in (*point.prompts, *point.joining):
            output_tokens = point.output_tokens if prompt in point.prompts else 1
            assert 1 <= prompt.num_tokens <= bounds.context_tokens - output_tokens
            assert prompt.document_tokens <= grid.documents[prompt.document]
        total = sum(each.num_tokens + point.output_tokens for each in (*point.prompts, *point.joining))
        assert total + point.lead_tokens <= bounds.kv_capacity_tokens
        assert len(point.users) <= bounds.max_num_seqs
        turns = [turn for user in point.users for turn in user]
        assert all(turn.prompt.num_tokens + turn.output_tokens <= bounds.context_tokens for turn in turns)
        longest_turn = max((turn.prompt.num_tokens + turn.output_tokens for turn in turns), default=0)
        assert len(point.users) * longest_turn <= bounds.kv_capacity_tokens


@given(BOUNDS)
def test_sequences_that_decode_together_have_documents_of_their_own(bounds: Bounds) -> None:
    for point in all_points(make_grid(bounds, random.Random(1))):
        if point.output_tokens > 1:
            documents = [prompt.document for prompt in point.prompts]
            assert len(set(documents)) == len(documents)


def test_points_have_names_of_their_own() -> None:
    names = [point.name for point in all_points(make_grid(CPU, random.Random(1)))]

    assert len(set(names)) == len(names)


def test_the_grid_spans_batches_contexts_and_prompts() -> None:
    grid = make_grid(CPU, random.Random(1))
    decode = [point for point in grid.points if point.output_tokens > 1 and not point.joining]
    prefill = [point for point in grid.points if point.lead_tokens]

    assert {len(point.prompts) for point in decode} == {1, 2, 4, 8, 16, 32, 64, 128}
    assert max(point.prompts[0].num_tokens for point in decode) > 6000
    assert {len(point.prompts) for point in prefill} == {1, 2, 4, 8}
    assert max(prompt.num_tokens for point in prefill for prompt in point.prompts) > 8000
    assert any(prompt.document_tokens for point in prefill for prompt in point.prompts)


def test_another_seed_holds_other_points_out_and_measures_the_same() -> None:
    first, again, other = (make_grid(CPU, random.Random(seed)) for seed in (1, 1, 2))

    assert first == again
    assert other.points == first.points
    assert other.held_out != first.held_out
