"""Content numbers become tokens: equal where the plan says equal, and nobody's otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.seeds import Seeds
from cluster.sim.traffic import PlannedRequest
from loadtests.drivers.prompts import PromptsAlone, PromptTokens
from loadtests.workloads.clients import Clients
from loadtests.workloads.turns import ConstantTurns
from loadtests.workloads.workload import Workload
from policies.errors import ConfigError
from tests.cluster.simulated import planned
from tests.hash_seeds import printed_by
from tests.loadtests.sample_workloads import COMPLETED, dialogue
from tests.tables import for_each

VOCABULARY = range(5, 1000)


def asked(
    logical_request: int = 1, prompt_tokens: int = 100, content: tuple[int, ...] = (), unit: int = 16
) -> PlannedRequest:
    unit_tokens = unit if content else 0
    return planned(logical_request, prompt_tokens=prompt_tokens, content=content, content_unit_tokens=unit_tokens)


@given(
    prompt_tokens=st.integers(1, 400),
    content=st.lists(st.integers(0, (1 << 60) - 1), max_size=30).map(tuple),
    unit=st.sampled_from([1, 16, 64]),
)
def test_a_prompt_has_the_length_that_was_planned_and_ordinary_tokens_alone(
    prompt_tokens: int, content: tuple[int, ...], unit: int
) -> None:
    """Whatever the content; an id outside the range would be refused, or would end a text."""
    tokens = PromptTokens(VOCABULARY, "run").of(asked(prompt_tokens=prompt_tokens, content=content, unit=unit))

    assert len(tokens) == prompt_tokens
    assert set(tokens) <= set(VOCABULARY)


def test_prompts_agree_in_their_common_content_and_nowhere_else() -> None:
    """Two units are shared; the third differs; behind whole units all text is a request's own."""
    prompts = PromptTokens(VOCABULARY, "run")
    one = prompts.of(asked(1, 60, (11, 22, 33)))
    other = prompts.of(asked(2, 60, (11, 22, 44)))

    assert one[:32] == other[:32]
    assert one[32:48] != other[32:48]
    assert one[48:] != other[48:]


def test_requests_without_content_share_no_text() -> None:
    """Not even their first block."""
    prompts = PromptTokens(VOCABULARY, "run")
    beginnings = {tuple(prompts.of(asked(logical_request))[:16]) for logical_request in range(500)}

    assert len(beginnings) == 500


def test_another_salt_is_other_text() -> None:
    """A second run on the same engine meets no warm prefix cache."""
    one = PromptTokens(VOCABULARY, "first run").of(asked(1, 60, (11, 22, 33)))
    other = PromptTokens(VOCABULARY, "second run").of(asked(1, 60, (11, 22, 33)))

    assert not {tuple(one[at : at + 16]) for at in (0, 16, 32)} & {tuple(other[at : at + 16]) for at in (0, 16, 32)}


def test_a_retry_sends_the_same_text() -> None:
    """The logical request counts, not the request."""
    prompts = PromptTokens(VOCABULARY, "run")
    first = asked(7)
    again = planned(7, request_id="7-1", retry_index=1, prompt_tokens=100)

    assert prompts.of(first) == prompts.of(again)


def test_prompts_are_the_same_in_every_process() -> None:
    """Python's own hash differs from process to process."""
    program = (
        "from loadtests.drivers.prompts import PromptTokens; "
        "from tests.loadtests.drivers.test_prompts import asked, VOCABULARY; "
        "print(PromptTokens(VOCABULARY, 'run').of(asked(3, 50, (1, 2))))"
    )

    assert printed_by("1", program) == str(PromptTokens(VOCABULARY, "run").of(asked(3, 50, (1, 2))))


@for_each("vocabulary", [range(0), range(5, 6), range(0, 100, 2), range(-5, 100)])
def test_a_vocabulary_of_which_no_text_can_be_made_is_refused(vocabulary: range) -> None:
    with pytest.raises(ConfigError, match="vocabulary"):
        PromptTokens(vocabulary)


def test_answers_leave_the_content_and_prompts_stay() -> None:
    """Every turn's content covers its prompt's whole units, and begins with the turn's before."""
    workload = Workload(classes=(dialogue(ConstantTurns(num_turns=4), system_prompt_tokens=128),), duration_s=60)
    traffic = PromptsAlone(Clients(workload, Seeds(3)))
    num_turns = 0
    for arrival in traffic.arrivals():
        before: tuple[int, ...] = ()
        following = [arrival]
        while following:
            request = following[0].request
            assert len(request.content) == request.prompt_tokens // request.content_unit_tokens
            assert request.content[: len(before)] == before
            before = request.content
            num_turns += 1
            following = list(traffic.on_end(request, COMPLETED, following[0].at_s + 1.0))
    assert num_turns > 50
