import msgspec
from hypothesis import given
from hypothesis import strategies as st

from routing.prefixes.block_hashes import block_hashes, prompt_id
from tests.hash_seeds import printed_by

TOKENS = st.lists(st.integers(0, 5), max_size=40)


@given(one=TOKENS, other=TOKENS, block_tokens=st.integers(1, 7))
def test_numbers_are_equal_as_far_as_the_text_is(one: list[int], other: list[int], block_tokens: int) -> None:
    hashes = block_hashes(one, block_tokens), block_hashes(other, block_tokens)

    assert [len(each) for each in hashes] == [len(one) // block_tokens, len(other) // block_tokens]
    for number, pair in enumerate(zip(*hashes, strict=False), start=1):
        end = number * block_tokens
        assert (pair[0] == pair[1]) is (one[:end] == other[:end])


def test_the_same_block_after_other_text_has_another_number() -> None:
    numbers = block_hashes([7, 8] * 4, 2)

    assert len(set(numbers)) == 4
    assert all(0 <= each < 2**64 for each in numbers)


@given(one=TOKENS, other=TOKENS, block_tokens=st.integers(0, 7))
def test_a_prompts_number_is_equal_where_all_of_the_text_is(
    one: list[int], other: list[int], block_tokens: int
) -> None:
    numbers = [
        prompt_id(text, block_hashes(text, block_tokens) if block_tokens else (), block_tokens) for text in (one, other)
    ]

    assert (numbers[0] == numbers[1]) is (one == other)


def test_a_prompts_number_is_another_ones_with_another_adapter_and_for_who_shares_no_kv() -> None:
    blocks = [block_hashes([1, 2, 3], 2, *whose) for whose in (("",), ("lora",), ("", "salt"))]
    numbers = {prompt_id([1, 2, 3], each, 2) for each in blocks}
    numbers |= {prompt_id([1, 2, 3]), prompt_id([1, 2, 3], adapter="lora"), prompt_id([1, 2, 3], cache_salt="salt")}

    assert len(numbers) == 6
    assert all(0 <= each < 2**64 for each in numbers)


def test_they_are_what_an_event_log_can_hold() -> None:
    numbers = block_hashes(range(1000), 4)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(numbers), type=tuple[int, ...]) == numbers


def test_they_are_the_same_in_every_process() -> None:
    program = "from routing.prefixes.block_hashes import block_hashes; print(block_hashes(list(range(256)), 64))"

    assert {printed_by(seed, program) for seed in ("1", "2")} == {str(block_hashes(list(range(256)), 64))}
