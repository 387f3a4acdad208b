"""Orders inside engines: who goes before whom."""

from hypothesis import given
from hypothesis import strategies as st

from policies import ConfigError, Need, Priority
from policies.engine_order import ByClass, ShortestPrompt
from tests.policies.built import EVERY_NEED, refusal_of
from tests.policy_doubles import a_request

TOKENS = st.integers(0, 2**40)
CLASSES = st.sampled_from(Priority)


@given(CLASSES, CLASSES, TOKENS, TOKENS)
def test_a_class_that_matters_more_goes_first_whatever_has_to_be_computed(
    one: Priority, other: Priority, one_tokens: int, other_tokens: int
) -> None:
    for order in (ByClass(), ShortestPrompt()):
        mine = order.priority(a_request(priority=one), one_tokens)
        yours = order.priority(a_request(priority=other), other_tokens)
        assert -(2**63) <= mine < 2**63
        if one.rank < other.rank:
            assert mine < yours


def test_within_a_class_the_engine_goes_by_arrival() -> None:
    assert ByClass().priority(a_request(), 20) == ByClass().priority(a_request(), 20_000)


def test_the_shortest_prompt_goes_before_longer_ones_of_its_class() -> None:
    order = ShortestPrompt()
    assert order.priority(a_request(prompt_tokens=9_000), 100) < order.priority(a_request(prompt_tokens=200), 200), (
        "what is cached need not be computed"
    )


def test_engines_that_go_by_arrival_can_not_put_short_prompts_first_and_that_is_said() -> None:
    refusal = refusal_of("engine_order", "shortest_prompt", provided=EVERY_NEED - {Need.ENGINE_PRIORITY})
    assert isinstance(refusal, ConfigError)
    assert "scheduling_policy: priority" in str(refusal)
