"""What every process knows of a model's adapters comes to be the same, in whichever order it hears of it."""

import random

from hypothesis import given
from hypothesis import strategies as st

from deployments.adapters.registry import AdapterRegistry
from engines import NO_ADAPTER, Adapter

LISTED = [Adapter("listed", "/adapters/listed")]


def test_what_is_listed_is_there_and_what_was_loaded_too() -> None:
    registry = AdapterRegistry(LISTED)
    registry.say("more", "/adapters/more", 10.0)
    assert registry.names == ("listed", "more")
    assert registry.get("more") == Adapter("more", "/adapters/more")
    assert registry.get("none") == NO_ADAPTER
    assert registry.said() == {"more": (10.0, "/adapters/more")}


def test_the_latest_word_counts_and_what_is_listed_can_be_unloaded() -> None:
    registry = AdapterRegistry(LISTED)
    registry.say("listed", "", 5.0)
    registry.say("listed", "/late", 3.0)
    assert registry.names == ()
    registry.say("listed", "/again", 6.0)
    assert registry.get("listed").path == "/again"


WORDS = st.tuples(st.sampled_from("abc"), st.sampled_from(["", "/one", "/two"]), st.integers(1, 6).map(float))


@given(st.lists(WORDS, max_size=12), st.randoms(use_true_random=False))
def test_all_agree_once_each_has_heard_of_all(words: list[tuple[str, str, float]], rng: random.Random) -> None:
    registries = [AdapterRegistry(LISTED) for _ in range(3)]
    for word in words:
        rng.choice(registries).say(*word)
    for _ in range(2):
        for one in registries:
            for other in registries:
                one.hear(other.said())
    assert len({registry.names for registry in registries}) == 1
    assert all(registry.said() == registries[0].said() for registry in registries)
