"""Engines that say what is in their prefix caches: what gateways expect to be cached is what is found."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import pytest

from cluster.sim.faults import Fault
from cluster.sim.simulator import simulate
from cluster.sim.traffic import Arrival
from engines.faults import FaultKind
from policies.views import Role
from routing import Send
from tests.cluster.simulated import PROFILE, PlainTraffic, dispatcher, fleet, request

BLOCK_TOKENS = PROFILE.kv.block_tokens
PROMPT_BLOCKS = 100
SMALL = msgspec.structs.replace(
    PROFILE,
    kv=msgspec.structs.replace(PROFILE.kv, capacity_tokens=310 * BLOCK_TOKENS),
    context_tokens=200 * BLOCK_TOKENS,
    start_s=0.1,
)
"""Three prompts fit into the cache with their answers; a fourth pushes nearly all of the first one out."""


def plan(texts: Sequence[int]) -> Iterator[Arrival]:
    """One after the other; equal numbers are equal texts, and no two others begin alike."""
    for number, text in enumerate(texts):
        arrival = request(number, 2.0 * number, PROMPT_BLOCKS * BLOCK_TOKENS + 1, 2)
        content = tuple(range(1000 * text, 1000 * text + PROMPT_BLOCKS))
        its = msgspec.structs.replace(arrival.request, content=content, content_unit_tokens=BLOCK_TOKENS)
        yield Arrival(arrival.at_s, its)


def expected_and_found(
    texts: Sequence[int], *, kv_events: bool, num_gateways: int = 1, faults: Sequence[Fault] = ()
) -> list[tuple[int, int]]:
    """For each request, blocks of its prompt that its gateway took to be cached, and that were."""
    spec = fleet(1, profile=SMALL, kv_events=kv_events, num_gateways=num_gateways)
    made_from = replace(dispatcher(spec), num_gateways=num_gateways, has_load_coordinator=True)
    sends: list[Send] = []

    def listen(gateway: int, now_s: float, event: object, effects: Sequence[object]) -> None:
        sends.extend(each for each in effects if isinstance(each, Send))

    traffic = PlainTraffic(list(plan(texts)))
    table = simulate(spec, made_from, traffic, ["all"], seed=1, faults=faults, on_event=listen)
    computed_tokens = PROMPT_BLOCKS * BLOCK_TOKENS + 1
    expected = [(computed_tokens - send.prefill_tokens) // BLOCK_TOKENS for send in sends]
    return list(zip(expected, (int(tokens) // BLOCK_TOKENS for tokens in table.cached_tokens), strict=True))


@pytest.mark.parametrize("num_gateways", [1, 3])
def test_what_was_pushed_out_is_not_expected_any_more(num_gateways: int) -> None:
    told = expected_and_found([1, 1, 2, 3, 4, 1, 4], kv_events=True, num_gateways=num_gateways)

    expected, found = zip(*told, strict=True)
    assert expected == found
    assert [blocks // 10 for blocks in found] == [0, PROMPT_BLOCKS // 10, 0, 0, 0, 0, PROMPT_BLOCKS // 10]


@pytest.mark.parametrize("kv_events", [True, False])
def test_a_replica_that_comes_back_has_an_empty_cache(kv_events: bool) -> None:
    restart = Fault(kind=FaultKind.CRASH, at_s=3.0, for_s=0.5, role=Role.UNIFIED, replica=0)

    assert expected_and_found([1, 1, 1, 1], kv_events=kv_events, faults=[restart]) == [
        (0, 0),
        (PROMPT_BLOCKS, PROMPT_BLOCKS),
        (0, 0),
        (PROMPT_BLOCKS, PROMPT_BLOCKS),
    ]


def test_without_their_word_it_is() -> None:
    expected, found = expected_and_found([1, 2, 3, 4, 1], kv_events=False)[-1]

    assert expected == PROMPT_BLOCKS
    assert found < 10
