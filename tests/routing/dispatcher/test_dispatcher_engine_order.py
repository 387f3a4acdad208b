"""Which place an attempt has among those that wait inside its engine."""

from hypothesis import given
from hypothesis import strategies as st

from policies import PolicyChoice, Priority, Role
from routing import Send
from tests.routing.dialogue import Dialogue
from tests.tables import for_each

CLASSES = st.sampled_from(Priority)
TOKENS = st.integers(1, 2**31 - 1)


def engine_priority(engine_order: str, priority: Priority, prompt_tokens: int) -> int:
    talk = Dialogue(engine_order=PolicyChoice(name=engine_order))
    talk.replicas(Role.UNIFIED, "a").arrives("q", priority=priority, prompt_tokens=prompt_tokens)
    (sent,) = (each for each in talk.answer if isinstance(each, Send))
    return sent.engine_priority


@for_each("engine_order", ["by_arrival", "shortest_prompt"])
@given(one=CLASSES, other=CLASSES, one_tokens=TOKENS, other_tokens=TOKENS)
def test_a_class_that_matters_more_goes_first_whatever_has_to_be_computed(
    engine_order: str, one: Priority, other: Priority, one_tokens: int, other_tokens: int
) -> None:
    mine, yours = engine_priority(engine_order, one, one_tokens), engine_priority(engine_order, other, other_tokens)
    if one.rank < other.rank:
        assert mine < yours
    elif one is other and engine_order == "by_arrival":
        assert mine == yours
    elif one is other:
        assert (mine < yours) is (one_tokens < other_tokens)
