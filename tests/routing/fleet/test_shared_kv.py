"""What attempts hold in common: held once, however many there are, on each replica by itself."""

from collections import Counter
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Role
from routing.fleet.fleet import Fleet
from routing.fleet.shared_kv import SharedKv
from routing.request.request import Attempt
from tests.policy_doubles import replica_info

BLOCK_TOKENS = 64
NUMBERS = count()


def an_attempt(blocks: tuple[int, ...], replica_id: str = "a", rest_tokens: int = 10) -> Attempt:
    return Attempt(
        attempt_id=f"q{next(NUMBERS)}.0",
        request_id="q",
        stage=Role.UNIFIED,
        replica_id=replica_id,
        prefill_tokens=1,
        sent_at_s=0.0,
        kv_tokens=len(blocks) * BLOCK_TOKENS + rest_tokens,
        kv_blocks=blocks,
        kv_block_tokens=BLOCK_TOKENS,
    )


PROMPTS = st.integers(1, 9).map(lambda length: tuple(range(length)))
ATTEMPTS = st.lists(st.builds(an_attempt, PROMPTS, st.sampled_from("ab")), max_size=12)


@given(ATTEMPTS, st.randoms(use_true_random=False))
def test_a_block_counts_once_on_each_replica_that_holds_it_however_seldom_one_asks(
    attempts: list[Attempt], random: Random
) -> None:
    shared, under_way = SharedKv(), list[Attempt]()
    for attempt in attempts:
        shared.take(attempt)
        under_way.append(attempt)
        if len(under_way) > 3:
            shared.give_back(under_way.pop(random.randrange(len(under_way))))
        if random.random() < 0.5:
            held = Counter((each.replica_id, block) for each in under_way for block in each.kv_blocks)
            assert shared.tokens() == BLOCK_TOKENS * (held.total() - len(held))
    for attempt in under_way:
        shared.give_back(attempt)
    assert shared.tokens() == 0


def test_a_gateway_knows_which_part_of_its_requests_kv_is_held_once() -> None:
    fleet = Fleet()
    fleet.replace("unified", Role.UNIFIED, [replica_info(each) for each in "ab"])
    assert fleet.shared_kv_fraction() == 0.0
    first, second = an_attempt((1, 2), rest_tokens=0), an_attempt((1, 2), rest_tokens=2 * BLOCK_TOKENS)
    fleet.take(first)
    fleet.take(second)
    assert fleet.shared_kv_fraction() == pytest.approx(2 / 6)
    fleet.grow(second, second.kv_tokens + 2 * BLOCK_TOKENS)
    assert fleet.shared_kv_fraction() == pytest.approx(2 / 8), "an answer is its own"
    fleet.move(second, "b")
    assert fleet.shared_kv_fraction() == 0.0, "another engine holds it too"
    fleet.give_back(first)
    fleet.give_back(second)
    assert fleet.shared_kv_fraction() == 0.0
