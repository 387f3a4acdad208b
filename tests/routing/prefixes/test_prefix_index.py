"""The prefix index against a model that keeps a list for each replica and looks at every block."""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from policies import ConfigError, RequestView, Role
from policies.catalog import PolicyChoice
from routing.config.catalog import build_tracker
from routing.prefixes.prefix_index import PrefixIndex
from routing.prefixes.prefix_tracking import note_prompt
from tests.policy_doubles import a_request
from tests.tables import for_each

BLOCK_TOKENS = 16
REPLICAS = ("a", "b", "c")
LETTERS = st.text("xyz", min_size=0, max_size=6)
"""A prompt, a letter for each block: few letters, so that prompts share beginnings."""
BLOCKS = st.lists(st.integers(0, 9), unique=True).map(tuple)


def prompt(text: str) -> RequestView:
    """Blocks are named by all the text up to them, as chained hashes name them."""
    blocks = tuple(int.from_bytes(text[: n + 1].encode(), "big") for n in range(len(text)))
    return replace(
        a_request(), prompt_tokens=len(text) * BLOCK_TOKENS + 1, prefix_blocks=blocks, prefix_block_tokens=BLOCK_TOKENS
    )


class Naive:
    """For each replica its blocks as texts, the least recently used first."""

    def __init__(self, most: int, in_all: int, least: int) -> None:
        self.most = most
        self.in_all = in_all
        self.least = least
        self.used: dict[str, list[str]] = {}

    @property
    def share(self) -> int:
        return min(self.most, self.in_all // max(1, len(self.used)))

    def cached(self, text: str) -> dict[str, int]:
        found = {}
        for replica_id, used in self.used.items():
            depth = next((n for n in range(len(text)) if text[: n + 1] not in used), len(text))
            if depth >= self.least:
                found[replica_id] = depth * BLOCK_TOKENS
        return found

    def sent(self, text: str, replica_id: str) -> None:
        used = self.used.setdefault(replica_id, [])
        self.cut()
        for depth in range(min(len(text), self.share), 0, -1):
            if text[:depth] in used:
                used.remove(text[:depth])
            used.append(text[:depth])
        self.cut()

    def dropped(self, text: str, replica_id: str) -> None:
        used = self.used.setdefault(replica_id, [])
        self.cut()
        used[:] = [each for each in used if not each.startswith(text)]

    def forget(self, replica_id: str) -> None:
        self.used.pop(replica_id, None)

    def cut(self) -> None:
        for used in self.used.values():
            del used[: max(0, len(used) - self.share)]


class IndexMachine(RuleBasedStateMachine):
    """Sends prompts about, and asks after each step what every prompt of the run would find."""

    def __init__(self, most: int, in_all: int, least: int) -> None:
        super().__init__()
        self.index = PrefixIndex(blocks_per_replica=most, max_blocks=in_all, min_blocks=least)
        self.naive = Naive(most, in_all, least)
        self.in_all = in_all
        self.asked = {"xyx", "zz"}

    @rule(text=LETTERS, replica_id=st.sampled_from(REPLICAS))
    def sent(self, text: str, replica_id: str) -> None:
        self.asked.add(text)
        self.index.sent(prompt(text), replica_id)
        self.naive.sent(text, replica_id)

    @rule(text=LETTERS, replica_id=st.sampled_from(REPLICAS))
    def sent_elsewhere(self, text: str, replica_id: str) -> None:
        self.asked.add(text)
        self.index.sent_elsewhere(prompt(text).prefix_blocks, replica_id)
        self.naive.sent(text, replica_id)

    @rule(text=LETTERS, replica_id=st.sampled_from(REPLICAS))
    def stored(self, text: str, replica_id: str) -> None:
        self.asked.add(text)
        self.index.cache_changed(replica_id, prompt(text).prefix_blocks, ())
        self.naive.sent(text, replica_id)

    @rule(text=LETTERS.filter(bool), replica_id=st.sampled_from(REPLICAS))
    def dropped(self, text: str, replica_id: str) -> None:
        """A block goes with all that follow it."""
        known = {each[:depth] for each in self.asked for depth in range(1, len(each) + 1) if each.startswith(text)}
        gone = [prompt(each).prefix_blocks[-1] for each in sorted(known) if each.startswith(text)]
        self.index.cache_changed(replica_id, (), tuple(gone))
        self.naive.dropped(text, replica_id)

    @rule(replica_id=st.sampled_from(REPLICAS))
    def forget(self, replica_id: str) -> None:
        self.index.forget(replica_id)
        self.naive.forget(replica_id)

    @invariant()
    def finds_what_the_model_finds(self) -> None:
        for text in sorted(self.asked):
            found = self.index.cached_tokens(prompt(text))
            assert found == self.naive.cached(text)
            assert list(found.values()) == sorted(found.values(), reverse=True)

    @invariant()
    def no_block_is_there_without_the_one_before_it(self) -> None:
        for used in self.naive.used.values():
            assert all(len(text) == 1 or text[:-1] in used for text in used)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.index.num_blocks == sum(map(len, self.naive.used.values())) <= self.in_all
        assert len(self.index._holders) == len({text for used in self.naive.used.values() for text in used})


@for_each(("most", "in_all", "least"), [(100, 1000, 1), (4, 1000, 2), (6, 8, 1), (5, 2, 2)])
def test_the_index_finds_what_a_naive_model_finds(most: int, in_all: int, least: int) -> None:
    run_state_machine_as_test(
        cast(type[RuleBasedStateMachine], lambda: IndexMachine(most, in_all, least)),
        settings=settings(max_examples=60, stateful_step_count=25, deadline=None),
    )


def test_the_end_of_a_prompt_goes_before_its_beginning() -> None:
    index = PrefixIndex(blocks_per_replica=5, min_blocks=1)

    index.sent(prompt("xyz"), "a")
    index.sent(prompt("zzzz"), "a")

    assert index.cached_tokens(prompt("xyz")) == {"a": 1 * BLOCK_TOKENS}
    assert index.cached_tokens(prompt("zzzz")) == {"a": 4 * BLOCK_TOKENS}


def test_what_was_asked_for_again_stays() -> None:
    index = PrefixIndex(blocks_per_replica=4, min_blocks=2)
    for text in ("xx", "yy", "xx", "zz"):
        index.sent(prompt(text), "a")

    assert index.cached_tokens(prompt("xx"))
    assert not index.cached_tokens(prompt("yy"))


def test_a_match_of_one_block_does_not_count() -> None:
    index = PrefixIndex()
    index.sent(prompt("xyz"), "a")

    assert index.cached_tokens(prompt("xzz")) == {}
    assert index.cached_tokens(prompt("xyx")) == {"a": 2 * BLOCK_TOKENS}


def test_of_a_prompt_that_is_too_long_the_beginning_is_known() -> None:
    index = PrefixIndex(blocks_per_replica=3)
    index.sent(prompt("xyzxyz"), "a")

    assert index.cached_tokens(prompt("xyzxyz")) == {"a": 3 * BLOCK_TOKENS}


def test_asking_twice_costs_one_look_until_something_is_sent() -> None:
    index = PrefixIndex()
    request = prompt("xyz")
    index.sent(request, "a")

    first = index.cached_tokens(request)
    assert index.cached_tokens(replace(request, lane="short")) is first
    index.sent(request, "b")
    assert index.cached_tokens(request) == {"a": 3 * BLOCK_TOKENS, "b": 3 * BLOCK_TOKENS}
    index.forget("a")
    assert index.cached_tokens(request) == {"b": 3 * BLOCK_TOKENS}


def test_a_replica_that_went_leaves_its_place_to_another() -> None:
    index = PrefixIndex()
    for name in ("a", "b"):
        index.sent(prompt("xyz"), name)
    index.forget("a")
    index.sent(prompt("zzz"), "c")

    assert index.cached_tokens(prompt("xyz")) == {"b": 3 * BLOCK_TOKENS}
    assert index.cached_tokens(prompt("zzz")) == {"c": 3 * BLOCK_TOKENS}
    index.forget("never heard of")


@given(texts=st.lists(LETTERS, max_size=20), num_replicas=st.integers(1, 70))
def test_any_number_of_replicas_is_found_in_the_same_order_every_time(texts: list[str], num_replicas: int) -> None:
    indices = PrefixIndex(min_blocks=1), PrefixIndex(min_blocks=1)
    for index in indices:
        for number in range(num_replicas):
            index.sent(prompt("xyz"), f"r{number:03d}")
        for number, text in enumerate(texts):
            index.sent(prompt(text), f"r{number % num_replicas:03d}")

    answers = [list(index.cached_tokens(prompt("xyzzy")).items()) for index in indices]
    assert answers[0] == answers[1]
    assert len(answers[0]) == num_replicas


@for_each("params", [{"blocks_per_replica": 0}, {"max_blocks": 0}, {"min_blocks": 0}, {"blocks_per_replica": 1}])
def test_a_size_that_makes_no_sense_is_refused(params: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        build_tracker(PolicyChoice(name="block_hash", params=params))


def test_a_prefill_is_noted_and_a_decode_is_not() -> None:
    tracker = build_tracker(PolicyChoice(name="block_hash"))
    request = prompt("xyz")

    assert note_prompt(tracker, request, Role.DECODE, "d") == 0
    assert note_prompt(tracker, request, Role.PREFILL, "a") == 0
    assert note_prompt(tracker, request, Role.PREFILL, "a") == 3 * BLOCK_TOKENS
    assert tracker.cached_tokens(request) == {"a": 3 * BLOCK_TOKENS}


@given(said=st.lists(st.tuples(st.sampled_from(REPLICAS), BLOCKS, BLOCKS)), prompts=st.lists(BLOCKS))
def test_whatever_is_said_of_a_cache_in_whatever_order_the_index_stays_whole(
    said: list[tuple[str, tuple[int, ...], tuple[int, ...]]], prompts: list[tuple[int, ...]]
) -> None:
    """What gateways pass on can overtake what they passed on before, and then a block has lost those before it."""
    index = PrefixIndex(blocks_per_replica=6, min_blocks=1)
    for number, change in enumerate(said):
        index.cache_changed(*change)
        for blocks in prompts[number : number + 1]:
            index.sent_elsewhere(blocks, change[0])
            index.cached_tokens(replace(a_request(), prefix_blocks=blocks, prefix_block_tokens=BLOCK_TOKENS))
    for replica_id in REPLICAS:
        index.forget(replica_id)

    assert (index.num_blocks, index._holders) == (0, {})
