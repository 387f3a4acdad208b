"""Answers that are kept for equal requests."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.response_cache import (
    NO_CACHE_ENTRY,
    OVERHEAD_BYTES,
    NoResponseCache,
    ResponseCache,
    joined,
    key_of,
)
from deployments.telemetry.metrics import GatewayMetrics
from engines.contract import ChosenLogprob, Chunk, EngineRequest, Sampling, TokenLogprob
from policies import PolicyChoice, Role
from tests.deployments.host_dialogue import FixedClock, HostDialogue
from tests.deployments.metrics_text import text_of
from tests.routing.dialogue import DOUBLES, completed
from tests.tables import for_each

HELLO = Chunk("Hello", (1, 2), cached_tokens=1)
END = Chunk(".", (3,), "stop", "x")
WHOLE = Chunk("Hello.", (1, 2, 3), "stop", "x", 1)


class Cache:
    """A cache, the clock that it goes by, and what it has counted."""

    def __init__(self, max_bytes: int = 10_000, ttl_s: float = 60.0) -> None:
        self.clock = FixedClock()
        self.lookups: list[bool] = []
        self.cache = ResponseCache(max_bytes, ttl_s, now_s=self.clock.now_s, count_lookup=self.lookups.append)

    def answered(self, request: EngineRequest, *chunks: Chunk, tenant: str = "") -> None:
        cache_entry = self.cache.look_up(tenant, request)
        for chunk in chunks:
            cache_entry.add(chunk)
        cache_entry.keep()

    def has(self, request: EngineRequest, tenant: str = "") -> bool:
        return self.cache.look_up(tenant, request).has_answer


def greedy(*token_ids: int, request_id: str = "q", **sampling: Any) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(token_ids) or [1, 2, 3],
        sampling=Sampling(**{"max_tokens": 50, "temperature": 0.0, **sampling}),
    )


def degrading(**bounds: Any) -> HostDialogue:
    choice = PolicyChoice(name=f"{DOUBLES}:DegradeTo", params=bounds)
    return HostDialogue(degradation=choice).replicas(Role.UNIFIED, "a")


def test_an_equal_request_finds_the_whole_answer_and_a_prompt_that_needed_no_prefill() -> None:
    kept = Cache()
    kept.answered(greedy(request_id="q", seed=1), HELLO, END)
    found = kept.cache.look_up("", greedy(request_id="r", seed=2))

    assert found.has_answer
    assert found.answer() == Chunk("Hello.", (1, 2, 3), "stop", "x", 3)
    assert kept.lookups == [False, True]


@for_each(
    "other",
    [
        greedy(1, 2),
        greedy(1, 2, 4),
        greedy(max_tokens=51),
        greedy(stop=("x",)),
        greedy(logprobs=0),
        greedy(frequency_penalty=0.5),
        greedy(logit_bias={5: 1.0}),
        greedy(ignore_eos=True),
        greedy(min_tokens=1),
    ],
)
def test_a_request_that_differs_in_anything_that_decides_the_answer_finds_nothing(other: EngineRequest) -> None:
    kept = Cache()
    kept.answered(greedy(), HELLO, END)
    assert not kept.has(other)


def test_nobody_finds_what_another_tenant_was_answered() -> None:
    kept = Cache()
    kept.answered(greedy(), HELLO, END, tenant="shop")
    assert kept.has(greedy(), tenant="shop")
    assert not kept.has(greedy(), tenant="reports")
    assert not kept.has(greedy())


@given(st.text(max_size=4), st.lists(st.integers(0, 9), max_size=3), st.text(max_size=4), st.lists(st.integers(0, 9)))
def test_keys_are_equal_for_equal_requests_alone(one: str, its: list[int], other: str, others: list[int]) -> None:
    first, second = (key_of(tenant, greedy(*ids)) for tenant, ids in ((one, its), (other, others)))
    assert (first == second) is ((one, its or [1, 2, 3]) == (other, others or [1, 2, 3]))


def test_answers_that_were_drawn_are_not_kept() -> None:
    kept = Cache()
    assert kept.cache.look_up("", greedy(temperature=0.01)) is NO_CACHE_ENTRY
    assert kept.lookups == []


@for_each("chunks", [(), (HELLO,), (HELLO, Chunk("", (), "abort"))])
def test_an_answer_without_its_end_is_not_kept(chunks: tuple[Chunk, ...]) -> None:
    kept = Cache()
    kept.answered(greedy(), *chunks)
    assert not kept.has(greedy())


def test_an_answer_is_forgotten_after_a_while() -> None:
    kept = Cache(ttl_s=60.0)
    kept.answered(greedy(), HELLO, END)

    kept.clock.time_s = 59.0
    assert kept.has(greedy())
    kept.clock.time_s = 60.0
    assert not kept.has(greedy())


def test_the_cache_keeps_to_its_size_and_forgets_first_what_was_not_used() -> None:
    size = OVERHEAD_BYTES + len(msgspec.msgpack.encode(WHOLE))
    kept = Cache(max_bytes=2 * size)
    kept.answered(greedy(1), HELLO, END)
    kept.answered(greedy(2), HELLO, END)
    assert kept.cache.num_bytes == 2 * size
    assert kept.has(greedy(1))

    kept.answered(greedy(3), HELLO, END)

    assert kept.cache.num_bytes == 2 * size
    assert [kept.has(greedy(each)) for each in (1, 2, 3)] == [True, False, True]


def test_an_answer_that_is_too_long_for_the_whole_cache_throws_nothing_out() -> None:
    kept = Cache(max_bytes=1000)
    kept.answered(greedy(1), HELLO, END)
    kept.answered(greedy(2), Chunk("x" * 2000, (1,)), END)
    assert kept.has(greedy(1))
    assert not kept.has(greedy(2))


def test_log_probabilities_are_kept_in_order() -> None:
    entries = [ChosenLogprob(TokenLogprob(n, str(n), -0.5), ()) for n in range(2)]
    chunks = [Chunk("a", (0,), logprobs=(entries[0],)), Chunk("b", (1,), "stop", logprobs=(entries[1],))]
    assert joined(chunks).logprobs == tuple(entries)
    assert joined([HELLO, END]).logprobs is None


def test_without_a_cache_nothing_is_kept() -> None:
    assert NoResponseCache().look_up("", greedy()) is NO_CACHE_ENTRY
    assert not NO_CACHE_ENTRY.has_answer
    with pytest.raises(LookupError):
        NO_CACHE_ENTRY.answer()


def test_hits_and_misses_are_there_from_the_start_and_counted() -> None:
    metrics = GatewayMetrics()
    metrics.watch_cache(lambda: 7.0)
    metrics.count_cache_lookup(True)
    page = text_of(metrics)

    assert 'spillway_response_cache_lookups_total{result="hit"} 1.0' in page
    assert 'spillway_response_cache_lookups_total{result="miss"} 0.0' in page
    assert "spillway_response_cache_bytes 7.0" in page


async def test_the_host_keeps_a_whole_answer_and_gives_it_to_the_next_request_without_an_engine() -> None:
    kept = Cache()
    talk = degrading(may_use_cache=True)
    first, call = await talk.opens("q", cache_entry=kept.cache.look_up("", greedy()), priority="critical")
    assert await talk.answered(first, call, HELLO, END) == ("Hello.", completed())

    second = await talk.arrives("r", cache_entry=kept.cache.look_up("", greedy()))

    assert await talk.answer(second) == ("Hello.", completed())
    assert list(talk.calls) == ["q.0"]
    assert (first.headers, second.headers) == ({}, {"x-spillway-degraded": "cache"})
    assert (second.first_token_at_s, second.output_tokens) == (talk.clock.now_s(), 3)
    assert talk.is_over


@for_each("bounds", [{"max_output_tokens": 20}, {"output_time_limit_s": 1000.0}])
async def test_the_host_does_not_keep_what_was_degraded(bounds: dict[str, Any]) -> None:
    kept = Cache()
    talk = degrading(**bounds)
    opened, call = await talk.opens("q", cache_entry=kept.cache.look_up("", greedy()))
    await talk.answered(opened, call, HELLO, END)
    assert not kept.has(greedy())


async def test_the_host_does_not_keep_what_broke_off() -> None:
    kept = Cache()
    talk = HostDialogue().replicas(Role.UNIFIED, "a")
    opened, call = await talk.opens("q", cache_entry=kept.cache.look_up("", greedy()))
    call.gives(HELLO)
    assert await opened.stream.read() == HELLO
    talk.host.abandon("q")
    await talk.until(lambda: talk.is_over)

    assert not kept.has(greedy())
