"""Orders inside engines: who goes before whom in a class."""

from hypothesis import given
from hypothesis import strategies as st

from policies import ConfigError, Need
from policies.contracts import MOST_PLACE
from policies.engine_order import ByArrival, ShortestPrompt
from tests.policies.built import EVERY_NEED, refusal_of
from tests.policy_doubles import a_request

TOKENS = st.integers(0, 2**40)


@given(TOKENS)
def test_a_place_is_no_further_back_than_there_are_places(tokens: int) -> None:
    for order in (ByArrival(), ShortestPrompt()):
        assert 0 <= order.place(a_request(), tokens) <= MOST_PLACE


def test_the_shortest_prompt_goes_before_longer_ones_of_its_class() -> None:
    order = ShortestPrompt()
    assert order.place(a_request(prompt_tokens=9_000), 100) < order.place(a_request(prompt_tokens=200), 200), (
        "what is cached need not be computed"
    )


def test_engines_that_go_by_arrival_can_not_put_short_prompts_first_and_that_is_said() -> None:
    refusal = refusal_of("engine_order", "shortest_prompt", provided=EVERY_NEED - {Need.ENGINE_PRIORITY})
    assert isinstance(refusal, ConfigError)
    assert "scheduling_policy: priority" in str(refusal)
